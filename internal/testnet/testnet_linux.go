package testnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Main is to be called by TestMain first. It runs the program again with a network of its own, and ends this
// process as that one ended. There, in its children, and where the system lets nobody have a network, it returns.
func Main() {
	if Own() {
		if err := Up(); err != nil {
			fmt.Fprintln(os.Stderr, "testnet: loopback:", err)
			os.Exit(2)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = Attr(os.Getuid(), os.Getgid())
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN} // for Up
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	runtime.LockOSThread() // which that signal goes by
	err := cmd.Start()
	if err != nil {
		runtime.UnlockOSThread()
		return
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "testnet:", err)
	os.Exit(2)
}

// Attr makes a process that gets a network of its own. It has the user and group IDs uid and gid there, if this process is not
// root's.
func Attr(uid, gid int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// Up brings up the loopback interface, which is all that a new network has.
func Up() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil || lo.Flags&net.FlagUp != 0 {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
