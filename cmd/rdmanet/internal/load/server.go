package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// MaxConns bounds how many connections a server serves at a time; more wait.
const MaxConns = 256

// headerLimit bounds the time in which a client says what it wants.
const headerLimit = 30 * time.Second

// Serve serves the clients of a listener until ctx ends, and closes it. failed is told why a client was given up.
func Serve(ctx context.Context, l net.Listener, failed func(client net.Addr, err error)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unhook := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer unhook()
	room := make(chan struct{}, MaxConns)
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() {
			defer func() { <-room }()
			unhook := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer unhook()
			defer c.Close()
			if err := serve(c); err != nil && ctx.Err() == nil {
				failed(c.RemoteAddr(), err)
			}
		})
	}
}

func serve(c net.Conn) error {
	if err := c.SetReadDeadline(time.Now().Add(headerLimit)); err != nil {
		return err
	}
	var h [headerSize]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return fmt.Errorf("reading what the client wants: %w", err)
	}
	k, size, err := parseHeader(h[:])
	if err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if k == echo {
		return serveEcho(c, make([]byte, size))
	}
	return serveSink(c)
}

func serveEcho(c net.Conn, buf []byte) error {
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// sinkBuffer is what a server reads at a time.
const sinkBuffer = 256 << 10

func serveSink(c net.Conn) error {
	buf := make([]byte, sinkBuffer)
	for total := uint64(0); ; {
		n, err := c.Read(buf)
		total += uint64(n)
		if errors.Is(err, io.EOF) {
			_, err := c.Write(binary.BigEndian.AppendUint64(nil, total))
			return err
		}
		if err != nil {
			return err
		}
	}
}
