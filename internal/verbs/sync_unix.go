//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package verbs

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// SyncMemory is for providers: it writes what is mapped of a file to the file's disk. It is nil where the system has no msync(2).
var SyncMemory = func(mem []byte) error {
	for {
		err := unix.Msync(WholePages(mem), unix.MS_SYNC)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("msync", err)
		}
	}
}
