//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package softroce

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// syncMemory writes what is mapped of a file to the file's disk.
var syncMemory = func(mem []byte) error {
	for {
		err := unix.Msync(wholePages(mem), unix.MS_SYNC)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("msync", err)
		}
	}
}
