package netio

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// denySocket makes socket(2) fail for one address family in the calling thread, as on a
// kernel without it.
func denySocket(family int) error {
	const (
		offNr   = 0  // of struct seccomp_data
		offArg0 = 16 // low half on little endian machines
	)
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	equal := func(v uint32, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: v, Jf: no}
	}
	prog := []unix.SockFilter{
		load(offNr),
		equal(unix.SYS_SOCKET, 3),
		load(offArg0),
		equal(uint32(family), 1),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	if e != 0 {
		return e
	}
	return nil
}
