//go:build linux || darwin

package trace

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openFlags keep opening and writing a pipe from waiting.
const openFlags = unix.O_NONBLOCK | unix.O_NOCTTY

// lock makes the file this process's, until it closes it or dies. File systems without locks do without.
func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return nil //nolint:nilerror // as said
}
