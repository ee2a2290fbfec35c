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
)

// A case is one figure: a service, and a client that uses it n times.
type benchCase struct {
	name string
	unit string
	// value turns the time of one operation into the figure.
	value func(perOp time.Duration) float64
	// faster is how many times as fast a is as b.
	faster func(a, b float64) float64
	bytes  int    // of an operation, where time per byte says more; else 0
	ping   int    // bytes of a round trip; else 0
	label  string // its name in a plot

	sides   []string // the first is what the others are compared with
	busy    bool     // with the machine's processors at something else
	service string
	dial    func(ctx context.Context, dial dialFunc) (client, error)
}

type dialFunc func(ctx context.Context) (net.Conn, error)

type client interface {
	do(n int) error
	close()
}

// sampleLimit bounds one sample, however wrong its estimate is.
const sampleLimit = 30 * time.Second

var (
	allSides = []string{
		sideTCP, sideUnix, sideRDMA, sideSpin, sideParked, sideShm, sideShmSpin, sideShmParked, sideQUIC, sideUCX,
	}
	streamSides = []string{sideTCP, sideUnix, sideRDMA, sideShm, sideShmSpin, sideQUIC, sideUCX}
)

var cases = []benchCase{
	roundTrip(pingSize, "echo"),
	roundTrip(longPing, echoLong),
	stream("1 KiB", 1<<10),
	stream("4 KiB", 4<<10),
	stream("64 KiB", 64<<10),
	stream("1 MiB", 1<<20),
	httpGet(1 << 10),
	whileBusy(roundTrip(pingSize, "echo")),
	whileBusy(stream("64 KiB", 64<<10)),
	whileBusy(httpGet(1 << 10)),
}

func whileBusy(c benchCase) benchCase {
	c.name += ", machine busy"
	c.label += ", busy"
	c.busy = true
	return c
}

func roundTrip(size int, service string) benchCase {
	return benchCase{
		name: sizeName(size) + " round trip", label: sizeName(size), unit: "µs", value: micros, faster: lessIsFaster, ping: size,
		sides: allSides, service: service,
		dial: func(ctx context.Context, dial dialFunc) (client, error) {
			c, err := dial(ctx)
			return &pinger{conn: c, out: make([]byte, size), in: make([]byte, size)}, err
		},
	}
}

func stream(name string, size int) benchCase {
	return benchCase{
		name: "stream, " + name + " writes", label: name, unit: "MiB/s", value: mibPerSecond(size), faster: moreIsFaster, bytes: size,
		sides: streamSides, service: "sink",
		dial: func(ctx context.Context, dial dialFunc) (client, error) {
			c, err := dial(ctx)
			return &streamer{conn: c, buf: make([]byte, size)}, err
		},
	}
}

func httpGet(size int) benchCase {
	return benchCase{
		name: "HTTP GET, " + sizeName(size), label: "GET", unit: "µs", value: micros, faster: lessIsFaster, sides: allSides, service: "http",
		dial: func(_ context.Context, dial dialFunc) (client, error) {
			tr := &http.Transport{
				DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
				DisableCompression: true,
			}
			return &getter{Client: http.Client{Transport: tr, Timeout: sampleLimit}, size: size}, nil
		},
	}
}

func sizeName(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func micros(d time.Duration) float64    { return float64(d.Nanoseconds()) / 1e3 }
func lessIsFaster(a, b float64) float64 { return b / a }
func moreIsFaster(a, b float64) float64 { return a / b }

func mibPerSecond(size int) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return float64(size) / (1 << 20) / d.Seconds() }
}

type pinger struct {
	conn    net.Conn
	out, in []byte
}

func (p *pinger) do(n int) error {
	if err := p.conn.SetDeadline(time.Now().Add(sampleLimit)); err != nil {
		return err
	}
	for i := range n {
		binary.LittleEndian.PutUint64(p.out, uint64(i))
		binary.LittleEndian.PutUint64(p.out[len(p.out)-8:], uint64(i))
		if _, err := p.conn.Write(p.out); err != nil {
			return err
		}
		if _, err := io.ReadFull(p.conn, p.in); err != nil {
			return err
		}
		if !bytes.Equal(p.in, p.out) {
			return fmt.Errorf("round trip %d came back as %x", i, p.in)
		}
	}
	return nil
}

func (p *pinger) close() { p.conn.Close() }

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

type getter struct {
	http.Client
	size int
}

func (g *getter) do(n int) error {
	url := fmt.Sprintf("http://peer/%d", g.size)
	for range n {
		resp, err := g.Get(url)
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if size != int64(g.size) {
			return fmt.Errorf("body of %d bytes instead of %d", size, g.size)
		}
	}
	return nil
}

func (g *getter) close() { g.CloseIdleConnections() }
