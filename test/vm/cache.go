package vm

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// cacheDir is where the kernel and the initramfs stay between runs.
func cacheDir() (string, error) {
	dir := os.Getenv("RDMA_VM_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("vm: no directory for the kernel, set RDMA_VM_CACHE: %w", err)
		}
		dir = filepath.Join(user, "go-rdma")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// lock makes this process the only one that works on a part of the cache.
func lock(what string) (unlock func(), err error) {
	dir, err := cacheDir()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, what+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("vm: lock %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// put writes a file of the cache: whole or not at all.
func put(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if e := f.Chmod(mode); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// kernel is an unpacked package linux-image.
type kernel struct {
	release string // as uname -r says it
	image   string // what QEMU loads
	modules string // the directory of lib/modules, with modules.dep
}

const metaPackage = "linux-image-amd64" // the plain one: linux-image-cloud-amd64 has no rdma_rxe

// getKernel finds the newest kernel of the cache, or fetches what Debian has.
func getKernel(ctx context.Context) (*kernel, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, &UnavailableError{Reason: "it is " + runtime.GOOS + "/" + runtime.GOARCH + ", not linux/amd64"}
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if k := cachedKernel(cache); k != nil {
		return k, nil
	}
	unlock, err := lock("kernel")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if k := cachedKernel(cache); k != nil {
		return k, nil
	}
	if err := fetchKernel(ctx, cache); err != nil {
		return nil, err
	}
	if k := cachedKernel(cache); k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("vm: no kernel in %s after fetching one", cache)
}

func cachedKernel(cache string) *kernel {
	dirs, err := filepath.Glob(filepath.Join(cache, "kernel-*"))
	if err != nil || len(dirs) == 0 {
		return nil
	}
	sort.Slice(dirs, func(i, j int) bool { return modified(dirs[i]) > modified(dirs[j]) })
	modules, err := filepath.Glob(filepath.Join(dirs[0], "lib/modules/*/modules.dep"))
	if err != nil || len(modules) != 1 {
		return nil
	}
	k := &kernel{modules: filepath.Dir(modules[0])}
	k.release = filepath.Base(k.modules)
	k.image = filepath.Join(dirs[0], "vmlinux")
	if _, err := os.Stat(k.image); err != nil {
		k.image = filepath.Join(dirs[0], "boot", "vmlinuz-"+k.release)
	}
	return k
}

func modified(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.ModTime().UnixNano()
}

// fetchKernel downloads and unpacks the kernel that Debian's metapackage depends on, which takes no root. It
// becomes visible under its final name when it is complete.
func fetchKernel(ctx context.Context, cache string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return &UnavailableError{Reason: "the kernel is Debian's package " + metaPackage + ", and there is no apt-get"}
	}
	name := kernelPackage(ctx)
	if name == "" {
		if os.Geteuid() != 0 {
			return &UnavailableError{Reason: "apt does not know " + metaPackage, Command: "apt-get update"}
		}
		if err := updateLists(ctx); err != nil {
			return err
		}
		if name = kernelPackage(ctx); name == "" {
			return &UnavailableError{Reason: "apt does not know a kernel behind " + metaPackage}
		}
	}
	tmp, err := os.MkdirTemp(cache, ".tmp-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	download := exec.CommandContext(ctx, "apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", name)
	download.Dir = tmp
	if out, err := download.CombinedOutput(); err != nil {
		if os.Geteuid() != 0 {
			return &UnavailableError{Reason: "apt-get download " + name + ": " + tail(string(out), 2048), Command: "apt-get update"}
		}
		if err := updateLists(ctx); err != nil { // lists that are older than the archive
			return err
		}
		if name = kernelPackage(ctx); name == "" {
			return &UnavailableError{Reason: "apt does not know a kernel behind " + metaPackage}
		}
		download = exec.CommandContext(ctx, "apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", name)
		download.Dir = tmp
		if out, err := download.CombinedOutput(); err != nil {
			return &UnavailableError{Reason: "apt-get download " + name + ": " + tail(string(out), 2048)}
		}
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("vm: apt-get download %s left %d packages", name, len(debs))
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], tmp).CombinedOutput(); err != nil {
		return fmt.Errorf("vm: dpkg-deb -x: %w\n%s", err, out)
	}
	if err := os.Remove(debs[0]); err != nil {
		return err
	}
	release := strings.TrimPrefix(name, "linux-image-")
	if merged := filepath.Join(tmp, "usr/lib/modules"); exists(merged) { // later Debians
		if err := os.MkdirAll(filepath.Join(tmp, "lib"), 0o755); err != nil {
			return err
		}
		if err := os.Rename(merged, filepath.Join(tmp, "lib/modules")); err != nil {
			return err
		}
	}
	if out, err := exec.CommandContext(ctx, "depmod", "-b", tmp, release).CombinedOutput(); err != nil {
		return fmt.Errorf("vm: depmod: %w\n%s", err, out)
	}
	if err := unpackImage(ctx, filepath.Join(tmp, "boot", "vmlinuz-"+release), filepath.Join(tmp, "vmlinux")); err != nil {
		// It boots as it is, five seconds later.
		_ = os.Remove(filepath.Join(tmp, "vmlinux"))
		fmt.Fprintln(os.Stderr, err)
	}
	version := strings.TrimSuffix(filepath.Base(debs[0]), ".deb")
	return os.Rename(tmp, filepath.Join(cache, "kernel-"+sanitize(version)))
}

var dependsOnKernel = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\S+)$`)

func kernelPackage(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", metaPackage).Output()
	if err != nil {
		return ""
	}
	m := dependsOnKernel.FindSubmatch(out)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// unpackImage decompresses the kernel within a bzImage. QEMU enters an unpacked one through its PVH note: without
// firmware, and without the seconds that an emulated processor takes to decompress it.
func unpackImage(ctx context.Context, bzImage, vmlinux string) error {
	b, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	if len(b) < 0x250 || string(b[0x202:0x206]) != "HdrS" {
		return fmt.Errorf("vm: %s is no bzImage", bzImage)
	}
	start := (int(b[0x1f1])+1)*512 + int(binary.LittleEndian.Uint32(b[0x248:]))
	end := start + int(binary.LittleEndian.Uint32(b[0x24c:])) - 4 // behind it is the length
	if start < 0 || start+6 > end || end > len(b) {
		return fmt.Errorf("vm: %s: payload out of bounds", bzImage)
	}
	payload := b[start:end]
	var tool string
	switch {
	case string(payload[:6]) == "\xfd7zXZ\x00":
		tool = "xz"
	case string(payload[:4]) == "\x28\xb5\x2f\xfd":
		tool = "zstd"
	default:
		return fmt.Errorf("vm: %s: unknown compression", bzImage)
	}
	cmd := exec.CommandContext(ctx, tool, "-dc")
	cmd.Stdin = strings.NewReader(string(payload))
	out, err := cmd.Output()
	if err != nil {
		return failed("unpack "+bzImage, err)
	}
	f, err := elf.NewFile(strings.NewReader(string(out)))
	if err != nil {
		return fmt.Errorf("vm: %s: %w", bzImage, err)
	}
	_ = f.Close()
	return put(vmlinux, out, 0o644)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sanitize keeps what may stand in a path on a kernel's command line.
func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("+-._~", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, s)
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:12])
}
