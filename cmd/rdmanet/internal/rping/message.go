// Package rping speaks the protocol of librdmacm's rping(1), at either end: for each ping the client names a buffer, which the
// server READs, and then another, into which the server WRITEs what it has read. So a ping shows that the connection manager,
// messages, READ and WRITE work between two hosts, whatever programs they run.
package rping

import (
	"encoding/binary"
	"fmt"
)

// Port is where rping listens if it is not told another.
const Port = 7174

// Sizes of a ping's data. rping has the same limits, but for a text and the zero at its end that are longer than 1 byte.
const (
	MinSize     = 1
	MaxSize     = 64 << 10
	DefaultSize = 64
)

// messageSize is that of all messages, which are a buffer's address, remote key and size, big endian. Those of the server have
// nothing in them.
const messageSize = 16

// buffer is memory that a client names.
type buffer struct {
	addr uint64
	key  uint32
	size uint32
}

func (b buffer) put(p []byte) {
	binary.BigEndian.PutUint64(p, b.addr)
	binary.BigEndian.PutUint32(p[8:], b.key)
	binary.BigEndian.PutUint32(p[12:], b.size)
}

// parseBuffer reads what a client says. Whether the memory is there and the client's to name is seen when it is used.
func parseBuffer(p []byte) (b buffer, err error) {
	if len(p) != messageSize {
		return b, fmt.Errorf("a message of %d bytes, rping's have %d", len(p), messageSize)
	}
	b = buffer{binary.BigEndian.Uint64(p), binary.BigEndian.Uint32(p[8:]), binary.BigEndian.Uint32(p[12:])}
	switch {
	case b.size < MinSize || b.size > MaxSize:
		return buffer{}, fmt.Errorf("a buffer of %d bytes, rping's have %d to %d", b.size, MinSize, MaxSize)
	case b.addr+uint64(b.size) < b.addr:
		return buffer{}, fmt.Errorf("a buffer of %d bytes at %#x, beyond the end of memory", b.size, b.addr)
	}
	return b, nil
}

// fill makes the data of ping i: a text as rping has it, whose letters begin with another one each time, and a zero. An rping
// that serves sends back what is before the first zero.
func fill(p []byte, i int) {
	const first, count = 'A', 'z' - 'A' + 1
	n := copy(p, fmt.Sprintf("rdma-ping-%d: ", i))
	for j := n; j < len(p); j++ {
		p[j] = byte(first + (i+j-n)%count)
	}
	p[len(p)-1] = 0
}
