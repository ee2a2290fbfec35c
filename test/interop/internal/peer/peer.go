// Package peer holds what the programs of this directory share: how a connection's end is
// told, and how a program that serves or dials says where it is and how it ended.
package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// Main runs a program and ends the process with its verdict, after what was written to
// connections now closed has been delivered.
func Main(name string, run func(args []string) error) {
	err := run(os.Args[1:])
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	if derr := rdmanet.Drain(ctx); derr != nil && err == nil {
		err = fmt.Errorf("connections that were closed still have data to deliver: %w", derr)
	}
	cancel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Dial connects, trying again while nobody listens: the server may just be starting.
func Dial(ctx context.Context, d *rdmanet.Dialer, addr string, patience time.Duration) (*rdmanet.Conn, error) {
	deadline := time.Now().Add(patience)
	for {
		c, err := d.DialContext(ctx, "rdma", addr)
		if err == nil {
			return c.(*rdmanet.Conn), nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Listen announces the address and says so on standard output, for whoever waits for it.
func Listen(lc *rdmanet.ListenConfig, addr string) (net.Listener, error) {
	l, err := lc.Listen(context.Background(), "rdma", addr)
	if err != nil {
		return nil, err
	}
	fmt.Printf("listening on %v\n", l.Addr())
	return l, nil
}

// Ending names how a connection ended, in one word: EOF, an errno, or what the error says.
func Ending(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "EOF"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "DEADLINE"
	case errors.As(err, &errno):
		switch errno {
		case syscall.ECONNRESET:
			return "ECONNRESET"
		case syscall.EPIPE:
			return "EPIPE"
		case syscall.ETIMEDOUT:
			return "ETIMEDOUT"
		case syscall.ECONNREFUSED:
			return "ECONNREFUSED"
		}
	}
	return err.Error()
}

// PrintStats prints what the connection counted.
func PrintStats(c *rdmanet.Conn) {
	b, err := json.Marshal(c.Stats())
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	fmt.Printf("stats %s\n", b)
}
