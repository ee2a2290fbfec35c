package softroce

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// populate has pages brought into memory, as if they were read or written.
var populate = func(pages []byte, write bool) error {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for {
		err := unix.Madvise(pages, advice)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EINVAL):
			return unsupported("prefetching memory (MADV_POPULATE_READ, since Linux 5.14)")
		}
		return os.NewSyscallError("madvise", err)
	}
}
