package main

import (
	"encoding/binary"
	"fmt"
	"io"
)

// A message begins with 16 bytes in the byte order of the host (the C program sends its
// struct as it lies in memory): version 0, command, length of the message with what follows the
// header, a word that is a file mode in a request and an errno in a reply, and a number that the reply repeats.
type header struct {
	command byte
	length  uint16
	data    uint32
	id      uint64
}

const (
	headerSize = 16
	writeSize  = headerSize + 8 // a write request has the file's size behind the header

	cmdOpen  = 1
	cmdClose = 2
	cmdWrite = 3
	isReply  = 0x80
)

func (h *header) marshal(b []byte) {
	b[0], b[1] = 0, h.command
	binary.NativeEndian.PutUint16(b[2:], h.length)
	binary.NativeEndian.PutUint32(b[4:], h.data)
	binary.NativeEndian.PutUint64(b[8:], h.id)
}

func readHeader(r io.Reader) (header, error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return header{}, err
	}
	h := header{
		command: b[1],
		length:  binary.NativeEndian.Uint16(b[2:]),
		data:    binary.NativeEndian.Uint32(b[4:]),
		id:      binary.NativeEndian.Uint64(b[8:]),
	}
	if b[0] != 0 || h.length < headerSize {
		return header{}, fmt.Errorf("a message of version %d and %d bytes: not of rcopy", b[0], h.length)
	}
	return h, nil
}

// openRequest asks for a file to be made. The path ends in at least one zero byte and fills units of 8.
func openRequest(path string, mode uint32) ([]byte, error) {
	padded := (len(path) + 8) &^ 7
	if headerSize+padded > 1<<16-1 {
		return nil, fmt.Errorf("a path of %d bytes does not fit into a request", len(path))
	}
	b := make([]byte, headerSize+padded)
	h := header{command: cmdOpen, length: uint16(len(b)), data: mode} //nolint:gosec // checked above
	h.marshal(b)
	copy(b[headerSize:], path)
	return b, nil
}

func writeRequest(size uint64) []byte {
	b := make([]byte, writeSize)
	h := header{command: cmdWrite, length: writeSize}
	h.marshal(b)
	binary.NativeEndian.PutUint64(b[headerSize:], size)
	return b
}

func closeRequest() []byte {
	b := make([]byte, headerSize)
	h := header{command: cmdClose, length: headerSize}
	h.marshal(b)
	return b
}

func reply(to header, status uint32) []byte {
	b := make([]byte, headerSize)
	h := header{command: to.command | isReply, length: headerSize, data: status, id: to.id}
	h.marshal(b)
	return b
}
