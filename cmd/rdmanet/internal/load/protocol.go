// Package load is what rdmanet bench does with a connection, at either end: round trips, and a stream. Any net.Conn will do.
package load

import (
	"encoding/binary"
	"fmt"
)

// Port is where a server listens if it is not told another.
const Port = 7175

// MaxSize is the longest message of a round trip, and the longest write of a stream.
const MaxSize = 1 << 20

// kind is what a client wants.
type kind uint8

const (
	echo kind = iota + 1 // each message comes back
	sink                 // a stream, and at its end the number of bytes that came
)

// A client begins with a header: a magic number, the protocol's version, what it wants, and the size of messages.
const (
	headerSize = 12
	magic      = "rdmb"
	version    = 1
)

func header(k kind, size int) []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = append(b, version, byte(k), 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

func parseHeader(b []byte) (k kind, size int, err error) {
	switch {
	case len(b) != headerSize || string(b[:4]) != magic:
		return 0, 0, fmt.Errorf("this is no rdmanet bench")
	case b[4] != version:
		return 0, 0, fmt.Errorf("an rdmanet bench of version %d, this is version %d: use the same at both ends", b[4], version)
	}
	k = kind(b[5])
	n := binary.BigEndian.Uint32(b[8:])
	if k != echo && k != sink {
		return 0, 0, fmt.Errorf("an rdmanet bench that wants something unknown (%d): use the same at both ends", k)
	}
	if n == 0 || n > MaxSize {
		return 0, 0, fmt.Errorf("messages of %d bytes, there are 1 to %d", n, MaxSize)
	}
	return k, int(n), nil
}
