package trace

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Numbers of pcapng. A file is written in the byte order that its first block tells.
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockPacket    = 6 // enhanced packet

	byteOrderMagic = 0x1A2B3C4D

	optEnd          = 0
	optComment      = 1
	optSectionOS    = 3
	optSectionApp   = 4
	optIfName       = 2
	optIfDescr      = 3
	optIfResolution = 9
	optPacketFlags  = 2
	optPacketDrops  = 4

	linkRaw = 101 // a packet begins with its IP header, whose version tells the family

	packetHead = 28 // of an enhanced packet block, before the packet
	maxPacket  = 1 << 18
)

// direction is what the flags of a packet say.
type direction uint32

const (
	inbound  direction = 1
	outbound direction = 2
)

var le = binary.LittleEndian

// begin appends the head of a block, and end completes it.
func begin(b []byte, typ uint32) []byte {
	b = le.AppendUint32(b, typ)
	return le.AppendUint32(b, 0)
}

// end completes the block that begins at b[start].
func end(b []byte, start int) []byte {
	n := uint32(len(b) - start + 4)
	le.PutUint32(b[start+4:], n)
	return le.AppendUint32(b, n)
}

func pad4(b []byte, n int) []byte {
	for ; n%4 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

func option(b []byte, code uint16, value []byte) []byte {
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, uint16(len(value)))
	return pad4(append(b, value...), len(value))
}

func endOptions(b []byte) []byte { return le.AppendUint32(b, optEnd) }

// preamble is what a file begins with.
func preamble(device string) []byte {
	app := fmt.Sprintf("go-rdma softroce in %s, process %d", filepath.Base(os.Args[0]), os.Getpid())
	b := begin(nil, blockSection)
	b = le.AppendUint32(b, byteOrderMagic)
	b = le.AppendUint32(b, 1)          // version 1.0
	b = le.AppendUint64(b, ^uint64(0)) // length not told
	b = option(b, optSectionOS, []byte(runtime.GOOS+" "+runtime.GOARCH))
	b = option(b, optSectionApp, []byte(app))
	b = end(endOptions(b), 0)

	start := len(b)
	b = begin(b, blockInterface)
	b = le.AppendUint32(b, linkRaw)
	b = le.AppendUint32(b, maxPacket)
	b = option(b, optIfName, []byte(device))
	b = option(b, optIfDescr, []byte(app))
	b = option(b, optIfResolution, []byte{9}) // nanoseconds
	return end(endOptions(b), start)
}
