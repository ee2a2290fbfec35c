package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

func copyFile(o *options, path, server, name string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	d := &rdmanet.Dialer{Timeout: o.limit, ReadBuffer: o.buffer, WriteBuffer: o.buffer}
	c, err := peer.Dial(context.Background(), d, net.JoinHostPort(server, o.port), 10*time.Second)
	if err != nil {
		return err
	}
	defer func() {
		peer.PrintStats(c)
		if cerr := c.Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	if err := c.SetDeadline(time.Now().Add(o.limit)); err != nil {
		return err
	}

	request, err := openRequest(name, uint32(syscall.S_IFREG)|uint32(info.Mode().Perm()))
	if err != nil {
		return err
	}
	if err := ask(c, cmdOpen, request); err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	start := time.Now()
	if _, err := c.Write(writeRequest(uint64(info.Size()))); err != nil { //nolint:gosec // a size
		return err
	}
	h := sha256.New()
	n, err := c.ReadFrom(io.TeeReader(io.LimitReader(f, info.Size()), h))
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	if n != info.Size() {
		return fmt.Errorf("%s shrank from %d to %d bytes", path, info.Size(), n)
	}
	if err := status(c, cmdWrite); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	took := time.Since(start)
	if err := ask(c, cmdClose, closeRequest()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	report("sent", name, n, h.Sum(nil), took)
	return nil
}

func ask(c io.ReadWriter, command byte, request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	return status(c, command)
}

func status(c io.Reader, command byte) error {
	h, err := readHeader(c)
	switch {
	case err != nil:
		return err
	case h.command != command|isReply || h.length != headerSize:
		return fmt.Errorf("reply %#x of %d bytes to command %d", h.command, h.length, command)
	case h.data != 0:
		return fmt.Errorf("the server says: %w", syscall.Errno(h.data))
	}
	return nil
}
