package netio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Neither call waits. Go's scheduler is not told of them: it takes the processor from a goroutine whose call lasts longer than
// 20 µs, as a send of some hundred kilobytes does, and wakes a thread that finds nothing to do with it.

// recvmmsg is recvmmsg(2) without waiting.
func recvmmsg(fd int, msgs []unix.Mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// sendmmsg is sendmmsg(2) without waiting.
func sendmmsg(fd int, msgs []unix.Mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
