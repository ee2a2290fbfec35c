//go:build linux

package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// word64 and word32 are words of mapped memory. off is a multiple of their size, and mem starts at one of 8.
func word64(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem[off : off+8])))
}

func word32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem[off : off+4])))
}

// processor is the number of the one that the thread runs on.
func processor() int {
	var n uint32
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0) // it cannot fail
	return int(n)
}

func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// offsetIn is where part begins in whole, in which it lies.
func offsetIn(part, whole []byte) uint64 { return uint64(addressOf(part) - addressOf(whole)) }

// packet is what a message is received with. It is made once: package unix allocates for each.
type packet struct {
	data [maxMessage + 1]byte // one more tells a message that is too long
	oob  [64]byte
	iov  unix.Iovec
	hdr  unix.Msghdr
}

// receive takes a message without waiting. n is 0 at the end of the connection.
func (p *packet) receive(fd int) (n, oobn int, truncated bool, err error) {
	p.iov.Base = &p.data[0]
	p.iov.SetLen(len(p.data))
	p.hdr.Iov = &p.iov
	p.hdr.SetIovlen(1)
	p.hdr.Control = &p.oob[0]
	p.hdr.SetControllen(len(p.oob))
	p.hdr.Flags = 0
	for {
		r, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&p.hdr)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, 0, false, e
		}
		return int(r), int(p.hdr.Controllen), p.hdr.Flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0, nil
	}
}
