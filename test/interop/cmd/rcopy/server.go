package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

func serve(o *options) error {
	l, err := peer.Listen(&rdmanet.ListenConfig{ReadBuffer: o.buffer, WriteBuffer: o.buffer}, net.JoinHostPort(o.bind, o.port))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // what matters was the connections
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		err = serveClient(o, c.(*rdmanet.Conn))
		if err != nil {
			fmt.Printf("ended %s: %v\n", peer.Ending(err), err)
		}
		if o.once {
			return err
		}
	}
}

// receiving is the file that a client has open.
type receiving struct {
	file *os.File
	name string
	sum  hash.Hash
	n    int64
	took time.Duration
}

func serveClient(o *options, c *rdmanet.Conn) (err error) {
	var r *receiving
	defer func() {
		peer.PrintStats(c)
		if r != nil {
			_ = r.file.Close() // left in the middle: that is the error there is
		}
		if cerr := c.Close(); cerr != nil && err == nil && !errors.Is(cerr, syscall.EPIPE) {
			err = cerr
		}
	}()
	fmt.Printf("client %v\n", c.RemoteAddr())
	if err := c.SetDeadline(time.Now().Add(o.limit)); err != nil {
		return err
	}
	for {
		h, err := readHeader(c)
		if errors.Is(err, io.EOF) && r == nil {
			return nil
		}
		if err != nil {
			return err
		}
		var failed error
		switch {
		case h.command == cmdOpen && r == nil:
			r, failed = open(o, c, h)
		case h.command == cmdWrite && r != nil && h.length == writeSize:
			failed = r.receive(c)
		case h.command == cmdClose && r != nil:
			failed = r.file.Close()
			report("received", r.name, r.n, r.sum.Sum(nil), r.took)
			r = nil
		default:
			failed = syscall.EINVAL
		}
		if _, err := c.Write(reply(h, errno(failed))); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
}

func errno(err error) uint32 {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return uint32(errno)
	}
	return uint32(syscall.EIO)
}

// open makes a file of the name that the client gives, whatever the path before it.
func open(o *options, c io.Reader, h header) (*receiving, error) {
	b := make([]byte, h.length-headerSize)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	path, _, ok := bytes.Cut(b, []byte{0})
	if !ok || len(path) == 0 {
		return nil, syscall.EINVAL
	}
	name := filepath.Base(string(path))
	f, err := os.OpenFile(filepath.Join(o.dir, name), os.O_CREATE|os.O_TRUNC|os.O_RDWR, os.FileMode(h.data&0o777))
	if err != nil {
		return nil, err
	}
	return &receiving{file: f, name: name, sum: sha256.New()}, nil
}

func (r *receiving) receive(c io.Reader) error {
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	size := binary.NativeEndian.Uint64(b[:])
	if size > 1<<40 {
		return syscall.EFBIG
	}
	start := time.Now()
	n, err := io.CopyN(io.MultiWriter(r.file, r.sum), c, int64(size)) //nolint:gosec // bounded above
	r.n, r.took = n, time.Since(start)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
