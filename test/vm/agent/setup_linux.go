package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// setup turns the initramfs into a system whose root is the host's, with a layer of memory above it for
// what is written. Where things are on the host comes as variables of the kernel's command line.
func setup() error {
	for _, m := range []struct{ target, fstype string }{
		{"/dev", "devtmpfs"}, {"/proc", "proc"},
	} {
		if err := mount(m.fstype, m.target, m.fstype, 0, ""); err != nil {
			return err
		}
	}
	note("begins")
	if err := loadModules(); err != nil {
		return err
	}
	note("has loaded the first modules")
	const ninep = "trans=virtio,version=9p2000.L,msize=512000"
	if err := mount("host", "/ro", "9p", unix.MS_RDONLY, ninep+",cache=loose"); err != nil {
		return err
	}
	if err := mount("tmpfs", "/rw", "tmpfs", 0, "size=90%,mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"/rw/upper", "/rw/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", "/root", "overlay", 0, "lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work"); err != nil {
		return err
	}
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
		{"devpts", "/dev/pts", "devpts", 0, "ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"debugfs", "/sys/kernel/debug", "debugfs", 0, ""},
		{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777,size=90%"},
		{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
		{"share", "/run/share", "9p", 0, ninep + ",cache=mmap,access=any"},
	} {
		if err := mount(m.source, "/root"+m.target, m.fstype, m.flags, m.data); err != nil {
			return err
		}
	}
	if err := mount("/ro"+os.Getenv("rdmavm_modules"), "/root/usr/lib/modules/"+release(), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Chroot("/root"); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(os.Getenv("rdmavm_name"))); err != nil {
		return fmt.Errorf("sethostname: %w", err)
	}
	for _, limit := range []int{unix.RLIMIT_MEMLOCK, unix.RLIMIT_CORE} {
		v := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		if limit == unix.RLIMIT_CORE {
			v = unix.Rlimit{}
		}
		if err := unix.Setrlimit(limit, &v); err != nil {
			return fmt.Errorf("setrlimit: %w", err)
		}
	}
	for name, value := range map[string]string{
		// Addresses are usable as soon as they are there.
		"net/ipv6/conf/all/accept_dad":     "0",
		"net/ipv6/conf/default/accept_dad": "0",
	} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	note("is in the host's files")
	return loopbackUp()
}

// note leaves a line in the kernel's log, with its time.
func note(what string) {
	if f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("<7>agent: " + what)
		_ = f.Close()
	}
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// loadModules loads what it takes to reach the host's files, in the order of the list.
func loadModules() error {
	list, err := os.ReadFile("/modules.list")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := loadModule(filepath.Join("/modules", name)); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(path) != ".ko" {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	name, _, _ := bytes.Cut(u.Release[:], []byte{0})
	return string(name)
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
}
