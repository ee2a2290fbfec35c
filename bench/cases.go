package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// A case is one figure: a service, and a client that uses it n times.
type benchCase struct {
	name string
	unit string
	// value turns the time of one operation into the figure.
	value func(perOp time.Duration) float64
	// faster is how many times as fast a is as b.
	faster func(a, b float64) float64

	serve func(l net.Listener) // until l is closed
	dial  func(ctx context.Context, dial dialFunc) (client, error)
}

type dialFunc func(ctx context.Context) (net.Conn, error)

type client interface {
	do(n int) error
	close()
}

const (
	pingSize = 64
	readSize = 64 << 10
	bodySize = 1 << 10

	// sampleLimit bounds one sample, however wrong its estimate is.
	sampleLimit = 30 * time.Second
)

var cases = []benchCase{
	roundTrip("64 B round trip", 0),
	roundTrip("64 B round trip, spinning", time.Millisecond),
	roundTrip("64 B round trip, parked", -1),
	stream("4 KiB", 4<<10),
	stream("64 KiB", 64<<10),
	stream("1 MiB", 1<<20),
	{
		name: "HTTP GET, 1 KiB", unit: "µs", value: micros, faster: lessIsFaster,
		serve: serveHTTP,
		dial: func(_ context.Context, dial dialFunc) (client, error) {
			tr := &http.Transport{
				DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
				DisableCompression: true,
			}
			return &getter{http.Client{Transport: tr, Timeout: sampleLimit}}, nil
		},
	},
}

// roundTrip has both ends of RDMA wait as BusyPoll says: 0 is the library's own way.
func roundTrip(name string, busyPoll time.Duration) benchCase {
	return benchCase{
		name: name, unit: "µs", value: micros, faster: lessIsFaster,
		serve: serveConns(func(c net.Conn) {
			if setBusyPoll(c, busyPoll) == nil {
				echo(c)
			}
		}),
		dial: func(ctx context.Context, dial dialFunc) (client, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			if err := setBusyPoll(c, busyPoll); err != nil {
				c.Close()
				return nil, err
			}
			return &pinger{conn: c}, nil
		},
	}
}

func setBusyPoll(c net.Conn, d time.Duration) error {
	if rc, ok := rdmanet.Unwrap(c); ok {
		return rc.SetBusyPoll(d)
	}
	return nil
}

func stream(name string, size int) benchCase {
	return benchCase{
		name: "stream, " + name + " writes", unit: "MiB/s", value: mibPerSecond(size), faster: moreIsFaster,
		serve: serveConns(sink),
		dial: func(ctx context.Context, dial dialFunc) (client, error) {
			c, err := dial(ctx)
			return &streamer{conn: c, buf: make([]byte, size)}, err
		},
	}
}

func micros(d time.Duration) float64    { return float64(d.Nanoseconds()) / 1e3 }
func lessIsFaster(a, b float64) float64 { return b / a }
func moreIsFaster(a, b float64) float64 { return a / b }

func mibPerSecond(size int) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return float64(size) / (1 << 20) / d.Seconds() }
}

func serveConns(h func(net.Conn)) func(l net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h(c)
			}()
		}
	}
}

func echo(c net.Conn) {
	buf := make([]byte, pingSize)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

type pinger struct {
	conn net.Conn
	out  [pingSize]byte
	in   [pingSize]byte
}

func (p *pinger) do(n int) error {
	if err := p.conn.SetDeadline(time.Now().Add(sampleLimit)); err != nil {
		return err
	}
	for i := range n {
		binary.LittleEndian.PutUint64(p.out[:], uint64(i))
		if _, err := p.conn.Write(p.out[:]); err != nil {
			return err
		}
		if _, err := io.ReadFull(p.conn, p.in[:]); err != nil {
			return err
		}
		if p.in != p.out {
			return fmt.Errorf("round trip %d came back as %x", i, p.in)
		}
	}
	return nil
}

func (p *pinger) close() { p.conn.Close() }

// sink reads a length, as many bytes, and says so.
func sink(c net.Conn) {
	buf := make([]byte, readSize)
	for {
		if _, err := io.ReadFull(c, buf[:8]); err != nil {
			return
		}
		for left := binary.LittleEndian.Uint64(buf); left > 0; {
			n, err := c.Read(buf[:min(left, readSize)])
			if err != nil {
				return
			}
			left -= uint64(n)
		}
		if _, err := c.Write(buf[:1]); err != nil {
			return
		}
	}
}

type streamer struct {
	conn net.Conn
	buf  []byte
}

func (s *streamer) do(n int) error {
	if err := s.conn.SetDeadline(time.Now().Add(sampleLimit)); err != nil {
		return err
	}
	var head [8]byte
	binary.LittleEndian.PutUint64(head[:], uint64(n)*uint64(len(s.buf)))
	if _, err := s.conn.Write(head[:]); err != nil {
		return err
	}
	for range n {
		if _, err := s.conn.Write(s.buf); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(s.conn, head[:1])
	return err
}

func (s *streamer) close() { s.conn.Close() }

var body = bytes.Repeat([]byte("rdma"), bodySize/4)

func serveHTTP(l net.Listener) {
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }),
		ReadHeaderTimeout: sampleLimit,
	}
	_ = srv.Serve(l) // until l is closed
}

type getter struct{ http.Client }

func (g *getter) do(n int) error {
	for range n {
		resp, err := g.Get("http://peer/")
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if size != bodySize {
			return fmt.Errorf("body of %d bytes instead of %d", size, bodySize)
		}
	}
	return nil
}

func (g *getter) close() { g.CloseIdleConnections() }
