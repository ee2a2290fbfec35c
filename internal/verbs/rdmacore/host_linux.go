package rdmacore

import "golang.org/x/sys/unix"

// memlockLimit returns the limit of locked memory, if there is one.
func memlockLimit() (uint64, bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // the type differs between platforms
}
