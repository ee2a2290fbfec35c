package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A cell of the grid is HTTP with so many connections, so many requests outstanding on each, and bodies of so many bytes.
// With one request on a connection that is HTTP/1.1, with more HTTP/2 without TLS, a stream for each.
type cell struct{ conns, depth, body int }

func (c cell) name() string {
	return fmt.Sprintf("grid %dx%dx%s", c.conns, c.depth, sizeName(c.body))
}

func cells() (all []cell) {
	for _, body := range []int{64, 8 << 10, 1 << 20} {
		for _, conns := range []int{1, 8, 64, 512} {
			for _, depth := range []int{1, 8, 64} {
				all = append(all, cell{conns, depth, body})
			}
		}
	}
	return all
}

// gridSides are measured in each cell.
var gridSides = []string{sideTCP, sideUnix, sideRDMA, sideShm}

type gridRow struct {
	cell  cell
	sides []gridFigures
}

// gridFigures are one side's, by round.
type gridFigures struct {
	side     string
	requests []float64 // a second
	cpu      []float64 // seconds of both processes, per request
	latency  histogram // of requests that ended in any round
}

func (r *results) measureGrid(ctx context.Context) error {
	var p *peer
	for _, c := range cells() {
		if !r.o.pick(c.name(), false) {
			continue
		}
		if p == nil {
			var err error
			if p, err = startPeerProcess(ctx, r.o); err != nil {
				return err
			}
			defer p.close() //nolint:gocritic // once
		}
		progress("%s", c.name())
		x := gridRow{cell: c}
		if err := r.measureCell(ctx, &x, p); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		r.grid = append(r.grid, x)
	}
	return nil
}

func (r *results) measureCell(ctx context.Context, x *gridRow, p *peer) error {
	ss, err := r.o.picked(gridSides)
	if err != nil {
		return err
	}
	pools := make([]*pool, len(ss))
	x.sides = make([]gridFigures, len(ss))
	for i := range ss {
		x.sides[i].side = ss[i].name
		addr, err := p.offer("http", ss[i].name)
		if err != nil {
			return err
		}
		pools[i] = newPool(x.cell, r.dialer(&ss[i], addr))
		defer pools[i].close() //nolint:gocritic // a few of them, and all live until the end
		if err := pools[i].warm(ctx); err != nil {
			return fmt.Errorf("%s: %w", ss[i].name, err)
		}
	}
	for round := range r.o.rounds {
		for _, i := range turns(len(ss), round) {
			if err := pools[i].sample(ctx, r.o.sample, p, &x.sides[i]); err != nil {
				return fmt.Errorf("%s: %w", x.sides[i].side, err)
			}
		}
	}
	return nil
}

// pool is the client of a cell.
type pool struct {
	cell    cell
	clients []*http.Client // one for each connection
}

func newPool(c cell, dial dialFunc) *pool {
	p := &pool{cell: c}
	for range c.conns {
		tr := &http.Transport{
			DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableCompression: true,
			MaxConnsPerHost:    1,
			Protocols:          new(http.Protocols),
			// What an end may buffer is bounded, so that all of them together are.
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: connBuffer},
		}
		tr.Protocols.SetHTTP1(c.depth == 1)
		tr.Protocols.SetUnencryptedHTTP2(c.depth > 1)
		p.clients = append(p.clients, &http.Client{Transport: tr})
	}
	return p
}

// connBuffer is what a client's end of HTTP/2 buffers, for all its streams.
const connBuffer = 4 << 20

func (p *pool) close() {
	for _, c := range p.clients {
		c.CloseIdleConnections()
	}
}

// warm has a request go over each connection.
func (p *pool) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	return inParallel(idleDialers, len(p.clients), func(i int) error {
		var w window
		return p.get(ctx, i, make([]byte, readSize), &w)
	})
}

// window is when requests count.
type window struct {
	phase   atomic.Int32
	bytes   atomic.Int64 // of bodies
	latency histogram    // of requests that ended
}

// Phases of a window.
const (
	closed   = iota
	warming  // bytes are counted, to see when it is warm
	counting // all is
)

// get does one request on connection i.
func (p *pool) get(ctx context.Context, i int, buf []byte, w *window) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://peer/%d", p.cell.body), http.NoBody)
	if err != nil {
		return err
	}
	start := time.Now()
	resp, err := p.clients[i].Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", resp.Status)
	}
	got := 0
	for {
		n, err := resp.Body.Read(buf)
		got += n
		if w.phase.Load() != closed {
			w.bytes.Add(int64(n))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if got != p.cell.body {
		return fmt.Errorf("body of %d bytes instead of %d", got, p.cell.body)
	}
	if w.phase.Load() == counting {
		w.latency.add(time.Since(start))
	}
	return nil
}

// sample keeps all requests outstanding for a time, and counts in the most of it. Bodies count by their bytes: where
// many long ones are under way none may end in a short time.
func (p *pool) sample(ctx context.Context, long time.Duration, with *peer, f *gridFigures) error {
	runtime.GC()
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	var w window
	var stop atomic.Bool
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for i := range p.clients {
		for range p.cell.depth {
			wg.Go(func() {
				buf := make([]byte, min(p.cell.body, gridRead))
				for !stop.Load() {
					if err := p.get(ctx, i, buf, &w); err != nil {
						if !stop.Load() {
							failed.CompareAndSwap(nil, &err)
						}
						return
					}
				}
			})
		}
	}
	w.phase.Store(warming)
	p.await(ctx, &w, long/4, mostWarm)
	w.phase.Store(counting)
	used, err := with.processorTime()
	w.bytes.Store(0)
	start := time.Now()
	p.await(ctx, &w, long, mostCount)
	took := time.Since(start)
	w.phase.Store(closed)
	now, err2 := with.processorTime()
	stop.Store(true)
	if p.cell.depth > 1 {
		cancel() // streams; the connections stay
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		err = *e
	}
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	n := float64(w.bytes.Load()) / float64(p.cell.body)
	f.requests = append(f.requests, n/took.Seconds()) // 0 if nothing came, which is a collapse
	f.cpu = append(f.cpu, (now-used).Seconds()/max(n, 1))
	f.latency.merge(&w.latency)
	return nil
}

// await waits so long, and longer until as many requests' bytes have come as are outstanding: what is asked for at one
// time may be answered at another. It does not wait for ever.
func (p *pool) await(ctx context.Context, w *window, long, most time.Duration) {
	want := int64(p.cell.conns * p.cell.depth * p.cell.body)
	for start := time.Now(); ; {
		sleep(ctx, long)
		if w.bytes.Load() >= want || time.Since(start)+long > most || ctx.Err() != nil {
			return
		}
	}
}

// How long a sample may take where more than a sample's time is too little.
const (
	mostWarm  = 2 * time.Second
	mostCount = 5 * time.Second
)

// gridRead is how much of a body is read at once.
const gridRead = 16 << 10

// collapsed tells whether a side has come to a halt beside the first side.
func (x *gridRow) collapsed(i int) bool { return x.speed(i) < collapse }

// collapse is the share of TCP's requests below which a cell is looked into.
const collapse = 0.3

// speed is the median of how many times as many requests as the first side's the side i did.
func (x *gridRow) speed(i int) float64 {
	return median(ratios(x.sides[i].requests, x.sides[0].requests, moreIsFaster))
}
