package vm

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Package is a package of Debian, known to be installed by a file of it.
type Package struct {
	Name string
	File string // absolute, may be a pattern of path.Match
}

// Needed is what every guest and the tests of this module need on the host. Start requires it.
var Needed = []Package{
	{"qemu-system-x86", "/usr/bin/qemu-system-x86_64"},
	{"kmod", "/*bin/depmod"},
	{"xz-utils", "/usr/bin/xz"},
	{"iproute2", "/*bin/rdma"},
	{"iputils-ping", "/usr/bin/ping"},
	{"rdmacm-utils", "/usr/bin/rping"},
	{"ibverbs-utils", "/usr/bin/ibv_devinfo"},
	{"ibverbs-providers", "/usr/lib/*/libibverbs/librxe-*.so"},
	{"perftest", "/usr/bin/ib_write_bw"},
	{"tcpdump", "/usr/bin/tcpdump"},
}

// Require sees to it that the packages are installed: as root it installs what is missing, otherwise
// the error is an [*UnavailableError] with the command to type.
func Require(ctx context.Context, packages ...Package) error {
	missing := absent(packages)
	if len(missing) == 0 {
		return nil
	}
	install := []string{"apt-get", "install", "-y", "--no-install-recommends"}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return &UnavailableError{Reason: "it needs Debian's packages " + strings.Join(missing, ", ") + ", and there is no apt-get"}
	}
	if os.Geteuid() != 0 {
		return &UnavailableError{
			Reason:  "it lacks Debian's packages " + strings.Join(missing, ", "),
			Command: strings.Join(append(install, missing...), " "),
		}
	}
	unlock, err := lock("apt")
	if err != nil {
		return err
	}
	defer unlock()
	if missing = absent(packages); len(missing) == 0 { // another process was faster
		return nil
	}
	if err := updateLists(ctx); err != nil {
		return err
	}
	if out, err := apt(ctx, append(install[1:], missing...)...); err != nil {
		return &UnavailableError{
			Reason:  "apt-get cannot install " + strings.Join(missing, ", ") + ": " + tail(string(out), 2048),
			Command: strings.Join(append(install, missing...), " "),
		}
	}
	if missing = absent(packages); len(missing) != 0 {
		return &UnavailableError{Reason: "installed, but without the files looked for: " + strings.Join(missing, ", ")}
	}
	return nil
}

func absent(packages []Package) (names []string) {
	for _, p := range packages {
		found := false
		for _, prefix := range []string{"", "/usr"} { // before and after the merge of /usr
			m, err := filepath.Glob(prefix + p.File)
			found = found || err == nil && len(m) != 0
		}
		if !found {
			names = append(names, p.Name)
		}
	}
	return names
}

func apt(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

func updateLists(ctx context.Context) error {
	if out, err := apt(ctx, "update"); err != nil {
		return &UnavailableError{Reason: "apt-get update: " + tail(string(out), 2048), Command: "apt-get update"}
	}
	return nil
}
