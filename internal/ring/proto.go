package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol says that the peer does not speak version 1 of rsockets, or broke its rules.
var ErrProtocol = errors.New("peer does not speak rsockets version 1")

// connData is what both sides tell each other in the private data of the
// connection manager: struct rs_conn_data of rsockets version 1. Bytes are in network order.
//
//	 0  version 1
//	 1  flags: 1 the target SGL is big endian, 2 byte 7 is valid
//	 2  credits
//	 4  reserved (3)
//	 7  size of the iomap table
//	 8  target SGL: address, key, entries
//	24  first receive buffer: address, key, bytes
type connData struct {
	bigEndian bool // of the sender's target SGL
	credits   uint16
	sgl       descriptor // length counts entries
	buf       descriptor
}

const (
	connDataLen = 40
	version     = 1

	flagNet = 1 << 0

	// A peer may have more entries in its target SGL than this, but hardly in earnest.
	maxEntries = 1 << 16
)

// appendTo appends the block's bytes. No iomap slots are offered: flag and size are 0.
func (d *connData) appendTo(b []byte) []byte {
	var flags byte
	if d.bigEndian {
		flags |= flagNet
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, d.credits)
	b = append(b, 0, 0, 0, 0)
	b = d.sgl.append(b, binary.BigEndian)
	return d.buf.append(b, binary.BigEndian)
}

// parseConnData reads a peer's block, which trailing bytes may follow.
func parseConnData(b []byte) (d connData, err error) {
	if len(b) == 0 || b[0] != version {
		v := 0
		if len(b) > 0 {
			v = int(b[0])
		}
		return d, fmt.Errorf("%w: private data of version %d", ErrProtocol, v)
	}
	if len(b) < connDataLen {
		return d, fmt.Errorf("%w: private data of %d bytes", ErrProtocol, len(b))
	}
	d.bigEndian = b[1]&flagNet != 0
	d.credits = binary.BigEndian.Uint16(b[2:])
	d.sgl = parseDescriptor(b[8:], binary.BigEndian)
	d.buf = parseDescriptor(b[24:], binary.BigEndian)
	switch {
	case d.credits == 0:
		err = fmt.Errorf("%w: no credits", ErrProtocol)
	case d.sgl.length < 2 || d.sgl.length > maxEntries:
		err = fmt.Errorf("%w: target SGL of %d entries", ErrProtocol, d.sgl.length)
	case d.sgl.addr+uint64(d.sgl.length)*descriptorLen < d.sgl.addr:
		err = fmt.Errorf("%w: target SGL beyond the end of memory", ErrProtocol)
	case !d.buf.valid():
		err = fmt.Errorf("%w: receive buffer of %d bytes at %#x", ErrProtocol, d.buf.length, d.buf.addr)
	}
	return d, err
}

// descriptor tells where a peer may write: an entry of a target SGL.
type descriptor struct {
	addr   uint64
	key    uint32
	length uint32
}

const descriptorLen = 16

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// order returns the byte order of a target SGL.
func order(bigEndian bool) byteOrder {
	if bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (d descriptor) append(b []byte, o byteOrder) []byte {
	b = o.AppendUint64(b, d.addr)
	b = o.AppendUint32(b, d.key)
	return o.AppendUint32(b, d.length)
}

func parseDescriptor(b []byte, o byteOrder) descriptor {
	return descriptor{addr: o.Uint64(b), key: o.Uint32(b[8:]), length: o.Uint32(b[12:])}
}

// valid tells whether the range is one: not empty and not around the end of memory.
func (d descriptor) valid() bool { return d.length > 0 && d.addr+uint64(d.length) > d.addr }

// Immediates: the type in the upper 3 bits, a value in the rest.
const (
	immShift = 29
	immValue = 1<<immShift - 1

	immData = 0 // value: bytes written
	// Types 1, 3 and 5 are reserved; librdmacm takes them for data, and so does this package.
	immInternal = 2 // ignored
	immSGL      = 4 // value: the new limit of messages; with a descriptor, or alone
	immIOMap    = 6 // value: a slot of the iomap table
	immCtrl     = 7

	ctrlDisconnect = 0
	ctrlShutdown   = 2
)

func imm(typ, value uint32) uint32 { return typ<<immShift | value&immValue }

func parseImm(v uint32) (typ, value uint32) { return v >> immShift, v & immValue }
