package netio

import (
	"encoding/binary"
	"strconv"

	"golang.org/x/sys/unix"
)

// Control messages, cmsg(3), written and read in place. x/sys has functions for
// both, which allocate.

// appendCmsg appends a control message of n data bytes and returns the buffer and its data. b has the room.
func appendCmsg(b []byte, level, typ int32, n int) (buf, data []byte) {
	off := len(b)
	b = b[:off+unix.CmsgSpace(n)]
	h := b[off:]
	clear(h)
	if strconv.IntSize == 64 {
		binary.NativeEndian.PutUint64(h, uint64(unix.CmsgLen(n)))
	} else {
		binary.NativeEndian.PutUint32(h, uint32(unix.CmsgLen(n)))
	}
	t := h[unix.SizeofCmsghdr-8:]
	binary.NativeEndian.PutUint32(t, uint32(level))
	binary.NativeEndian.PutUint32(t[4:], uint32(typ))
	d := unix.CmsgLen(0)
	return b, h[d : d+n]
}

func appendIntCmsg(b []byte, level, typ int32, v int) []byte {
	b, d := appendCmsg(b, level, typ, 4)
	binary.NativeEndian.PutUint32(d, uint32(v))
	return b
}

// nextCmsg takes the first control message off b. It returns ok false at the end of b.
func nextCmsg(b []byte) (level, typ int32, data, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil, false
	}
	var n uint64
	if strconv.IntSize == 64 {
		n = binary.NativeEndian.Uint64(b)
	} else {
		n = uint64(binary.NativeEndian.Uint32(b))
	}
	d := unix.CmsgLen(0)
	if n < uint64(d) || n > uint64(len(b)) {
		return 0, 0, nil, nil, false
	}
	t := b[unix.SizeofCmsghdr-8:]
	level = int32(binary.NativeEndian.Uint32(t))
	typ = int32(binary.NativeEndian.Uint32(t[4:]))
	data = b[d:n]
	if next := unix.CmsgSpace(int(n) - d); next < len(b) {
		rest = b[next:]
	}
	return level, typ, data, rest, true
}

// cmsgInt reads a control message that is an int, or a byte as IP_TOS is.
func cmsgInt(data []byte) int {
	switch {
	case len(data) >= 4:
		return int(int32(binary.NativeEndian.Uint32(data)))
	case len(data) >= 1:
		return int(data[0])
	}
	return 0
}
