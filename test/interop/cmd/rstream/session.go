package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/pattern"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

const helloSize = 16 // each test begins with so many bytes from the client, and as many back

// test is one line of rstream's table: iters times count transfers of size bytes from the
// client, then as many back.
type test struct {
	name               string
	size, count, iters int
}

// session is one run of the program. The verifying streams go on from one connection to the next, as
// those of the C program do.
type session struct {
	o        *options
	sent     pattern.Counter
	received pattern.Counter
	random   io.Reader
	pieces   *rand.Rand
	peer     echo
	in, out  []byte
	began    time.Time
}

func newSession(o *options) *session {
	return &session{
		o: o, random: pattern.Random(o.seed), pieces: rand.New(rand.NewPCG(o.seed, 1)), began: time.Now(),
	}
}

// echo is what is known of the C program's buffer. It has one, sends from it what it
// received last, and with verification fills it anew each time.
type echo struct {
	buf   []byte
	known int
}

// wrote notes that the peer's buffer now begins with b.
func (e *echo) wrote(b []byte) {
	if len(e.buf) < len(b) {
		e.buf = append(e.buf, make([]byte, len(b)-len(e.buf))...)
	}
	copy(e.buf, b)
	e.known = max(e.known, len(b))
}

// check compares what came from the peer's buffer with what is known of it, and learns the rest.
func (e *echo) check(b []byte) error {
	n := min(e.known, len(b))
	if !bytes.Equal(b[:n], e.buf[:n]) {
		for i := range n {
			if b[i] != e.buf[i] {
				return fmt.Errorf("byte %d of a transfer of %d is %#02x, not %#02x as the peer's buffer holds", i, len(b), b[i], e.buf[i])
			}
		}
	}
	e.wrote(b)
	return nil
}

// connection takes one connection through tests to the peer's orderly end.
func (s *session) connection(ends *ends, tests []test) (err error) {
	c, err := ends.next()
	if err != nil {
		return err
	}
	start := time.Now()
	defer func() {
		if err != nil {
			fmt.Printf("ended %s after %.3f s: %v\n", peer.Ending(err), time.Since(start).Seconds(), err)
		}
		peer.PrintStats(c)
		if cerr := c.Close(); cerr != nil && err == nil {
			err = cerr
		}
	}()
	fmt.Printf("connected %v to %v\n", c.LocalAddr(), c.RemoteAddr())
	if err := c.SetDeadline(start.Add(s.o.limit)); err != nil {
		return err
	}
	for _, t := range tests {
		if err := s.test(c, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return s.end(c)
}

func (s *session) test(c *rdmanet.Conn, t test) error {
	client := s.o.server != ""
	if err := s.turn(c, helloSize, 1, client); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if s.o.idle && !client {
		fmt.Println("idle")
		return nil
	}
	if err := s.turn(c, helloSize, 1, !client); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	if s.o.idle {
		fmt.Println("idle")
		return nil
	}
	start := time.Now()
	for range t.iters {
		if err := s.turn(c, t.size, t.count, client); err != nil {
			return err
		}
		if err := s.turn(c, t.size, t.count, !client); err != nil {
			return err
		}
	}
	took := time.Since(start)
	bytes := 2 * int64(t.size) * int64(t.count) * int64(t.iters)
	fmt.Printf("%s: %d bytes in transfers of %d, %d one way, %d times: %.2f s, %.1f MB/s\n",
		t.name, bytes, t.size, t.count, t.iters, took.Seconds(), float64(bytes)/1e6/took.Seconds())
	return nil
}

// turn makes count transfers one way.
func (s *session) turn(c *rdmanet.Conn, size, count int, send bool) error {
	for range count {
		var err error
		if send {
			err = s.send(c, size)
		} else {
			err = s.receive(c, size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *session) send(c *rdmanet.Conn, size int) error {
	if len(s.out) < size {
		s.out = make([]byte, size)
	}
	b := s.out[:size]
	if s.o.verify {
		s.sent.Fill(b)
	} else if _, err := io.ReadFull(s.random, b); err != nil {
		return err
	}
	s.peer.wrote(b)
	switch s.o.style {
	case "whole":
		_, err := c.Write(b)
		return err
	case "pieces":
		for len(b) > 0 {
			n := 1 + s.pieces.IntN(len(b))
			if _, err := c.Write(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
		return nil
	case "vector":
		var v net.Buffers
		for len(b) > 0 {
			n := 1 + s.pieces.IntN(len(b))
			v = append(v, b[:n])
			b = b[n:]
		}
		_, err := c.WriteBuffers(&v)
		return err
	}
	return fmt.Errorf("style %q: whole, pieces or vector", s.o.style)
}

func (s *session) receive(c *rdmanet.Conn, size int) error {
	if len(s.in) < size {
		s.in = make([]byte, size)
	}
	b := s.in[:size]
	if s.o.style == "pieces" {
		for off := 0; off < size; {
			n, err := c.Read(b[off : off+1+s.pieces.IntN(size-off)])
			off += n
			if err != nil && off < size {
				return err
			}
		}
	} else if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if s.o.verify {
		return s.received.Check(b)
	}
	return s.peer.check(b)
}

// end ends the connection as the options say. Anything of the peer's but its end is an error.
func (s *session) end(c *rdmanet.Conn) error {
	switch s.o.end {
	case "close":
		return nil
	case "half":
		if err := c.CloseWrite(); err != nil {
			return err
		}
	}
	start := time.Now()
	var b [1]byte
	n, err := c.Read(b[:])
	switch {
	case n != 0:
		return fmt.Errorf("the peer sent more than the protocol has, %#02x first", b[0])
	case errors.Is(err, io.EOF):
		fmt.Printf("end after %.3f s\n", time.Since(start).Seconds())
		return nil
	case err == nil:
		return errors.New("an empty read without an error")
	}
	return fmt.Errorf("instead of the peer's end: %w", err)
}

// The series that the C program runs without -S, -C and -I.

var defaultSizes = []int{1 << 6, 1 << 12, 1 << 16, 1 << 20}

func latencySeries() []test {
	var tests []test
	for _, size := range defaultSizes {
		tests = append(tests, test{name: fmt.Sprintf("%d_lat", size), size: size, count: 1, iters: countFor(size)})
	}
	return tests
}

func bandwidthSeries() []test {
	var tests []test
	for _, size := range defaultSizes {
		tests = append(tests, test{name: fmt.Sprintf("%d_bw", size), size: size, count: countFor(size), iters: 1})
	}
	return tests
}

func countFor(size int) int {
	switch {
	case size >= 1<<20:
		return 100
	case size >= 1<<16:
		return 1000
	case size >= 1<<10:
		return 10000
	}
	return 100000
}
