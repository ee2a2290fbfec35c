package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// toBuild is what building a kernel module needs on the host.
var toBuild = []Package{
	{"gcc", "/usr/bin/gcc"},
	{"make", "/usr/bin/make"},
	{"xz-utils", "/usr/bin/xz"},
	{"libelf1", "/usr/lib/*/libelf.so.1"},
}

// getSIW returns the module of SoftiWARP for the guests' kernel. Debian's kernel comes without, so it is built from
// Debian's source of it, which takes half a minute and then stays in the cache.
func getSIW(ctx context.Context) (string, error) {
	k, err := getKernel(ctx)
	if err != nil {
		return "", err
	}
	if err := Require(ctx, toBuild...); err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// kernel-linux-image-6.1.0-57-amd64_6.1.192-3_amd64
	dir := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(k.modules))))
	fields := strings.Split(dir, "_")
	if len(fields) != 3 {
		return "", fmt.Errorf("vm: no version in %s", dir)
	}
	version := fields[1]
	module := filepath.Join(cache, "siw-"+k.release+"-"+version+".ko")
	if exists(module) {
		return module, nil
	}
	unlock, err := lock("siw")
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(module) {
		return module, nil
	}
	tmp, err := os.MkdirTemp(cache, ".tmp-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	b, err := buildSIW(ctx, tmp, k.release, version)
	if err != nil {
		return "", err
	}
	return module, put(module, b, 0o644)
}

func buildSIW(ctx context.Context, tmp, release, version string) ([]byte, error) {
	abi := strings.TrimSuffix(release, "-amd64")                          // 6.1.0-57
	series := strings.Join(strings.SplitN(release, ".", 3)[:2], ".")      // 6.1
	headers := filepath.Join(tmp, "usr", "src", "linux-headers-"+release) // of this configuration
	fetch := []string{"-qq", "-o", "APT::Sandbox::User=", "download"}
	for _, p := range []string{"linux-source-" + series, "linux-headers-" + release, "linux-headers-" + abi + "-common", "linux-kbuild-" + series} {
		fetch = append(fetch, p+"="+version)
	}
	cmd := exec.CommandContext(ctx, "apt-get", fetch...)
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, &UnavailableError{
			Reason:  fmt.Sprintf("apt-get %s: %s", strings.Join(fetch[3:], " "), tail(string(out), 2048)),
			Command: "apt-get update, and remove the directory kernel-* of the cache if Debian has a newer kernel",
		}
	}
	script := exec.CommandContext(ctx, "sh", "-euc", `
for p in linux-headers-*.deb linux-kbuild-*.deb; do dpkg-deb -x "$p" .; done
dpkg-deb --fsys-tarfile linux-source-*.deb | tar xO --wildcards './usr/src/linux-source-*.tar.xz' |
	tar xJ --strip-components=4 --wildcards 'linux-source-*/drivers/infiniband/sw/siw'
sed -i "s#/usr/src/#$PWD/usr/src/#g" "$HEADERS"/Makefile "$HEADERS"/.kernelvariables
make -s -C "$HEADERS" M="$PWD/siw" CONFIG_RDMA_SIW=m modules
strip --strip-debug siw/siw.ko
`)
	script.Dir = tmp
	script.Env = append(os.Environ(), "HEADERS="+headers)
	out, err := script.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("vm: building SoftiWARP for %s: %w\n%s", release, err, tail(string(out), 4096))
	}
	return os.ReadFile(filepath.Join(tmp, "siw", "siw.ko"))
}

// AddSIW makes a SoftiWARP device on an interface that is up, and waits until its port is active.
func (g *Guest) AddSIW(ctx context.Context, device, iface string) error {
	module, err := getSIW(ctx)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(module)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(g.Share, "siw.ko"), b, 0o644); err != nil {
		return err
	}
	if _, err := g.Script(ctx, `
[ -d /sys/module/siw ] && exit
modprobe -a ib_core iw_cm rdma_ucm libcrc32c
insmod /run/share/siw.ko
`); err != nil {
		return err
	}
	if err := g.Command(ctx, "rdma", "link", "add", device, "type", "siw", "netdev", iface).run(); err != nil {
		return err
	}
	return g.waitActive(ctx, device)
}
