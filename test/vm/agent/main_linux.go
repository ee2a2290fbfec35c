// Command agent is the first program of a guest: it mounts the host's files, enters them and runs what
// the runner asks for over a virtio-serial port. Package vm builds it and puts it into the initramfs as /init.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		boot()
	}
	if err := serve(); err != nil {
		fmt.Println("agent:", err)
		os.Exit(1)
	}
}

// boot prepares the guest, starts the agent proper as a child and stays behind
// to reap orphans. It does not return.
func boot() {
	if err := setup(); err != nil {
		fmt.Println("agent: the guest cannot be set up:", err)
		powerOff()
	}
	child := exec.Command("/proc/self/exe")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		fmt.Println("agent:", err)
		powerOff()
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && err != unix.EINTR {
			fmt.Println("agent: wait4:", err)
			powerOff()
		}
		if pid == child.Process.Pid {
			if status.ExitStatus() != 0 {
				fmt.Printf("agent: it has ended (exit status %d, signal %d)\n", status.ExitStatus(), status.Signal())
			}
			powerOff()
		}
	}
}

// powerOff ends QEMU, which runs with -no-reboot.
func powerOff() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	for { // not reached, unless the machine cannot restart: then the runner's limit ends it
		time.Sleep(time.Hour)
	}
}
