package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A cell of a grid is a kind of request with so many connections, so many requests outstanding on each, and bodies of so many bytes.
type cell struct {
	kind               *gridKind
	conns, depth, body int
}

// gridKind is what the requests of a grid are.
type gridKind struct {
	name    string // before that of a cell; empty: HTTP
	title   string
	about   string
	service string
	most    int // bytes of bodies that may be under way at a time; 0: any number
	connect func(c cell, dial dialFunc) (requester, error)
}

// requester is a client's connection, which is made by the first request.
type requester interface {
	// get does a request for a body of so many bytes, and tells w of them as they come, if it can. It returns how many came.
	get(ctx context.Context, body int, buf []byte, w *window) (n int, err error)
	close()
}

var gridKinds = []*gridKind{
	{
		title: "HTTP", service: "http", connect: connectHTTP,
		about: fmt.Sprintf(`GET, two processes; a cell is connections × requests outstanding on each × bytes of a body. With 1 outstanding that is HTTP/1.1, with more
HTTP/2 without TLS, a stream for each request. Requests a second; latencies are of all requests that ended while it counted, so
a dash says that none did: then many long bodies are under way, and bodies count by their bytes. CPU: microseconds of both processes for a request.
Below %.1f of TCP's requests a cell has collapsed.`, collapse),
	},
	{
		name: "gRPC ", title: "gRPC", service: "grpc", most: 1 << 30, connect: connectGRPC,
		about: `Unary calls of grpc-go, with 5 bytes in the request and so many in the answer, otherwise as above. An answer counts when it is whole. Cells with more than
1 GiB of answers under way are left out: both ends keep each of them in memory.`,
	},
}

func (c cell) name() string {
	return fmt.Sprintf("grid %s%dx%dx%s", c.kind.name, c.conns, c.depth, sizeName(c.body))
}

func cells() (all []cell) {
	for _, kind := range gridKinds {
		for _, body := range []int{64, 8 << 10, 1 << 20} {
			for _, conns := range []int{1, 8, 64, 512} {
				for _, depth := range []int{1, 8, 64} {
					if kind.most == 0 || conns*depth*body <= kind.most {
						all = append(all, cell{kind, conns, depth, body})
					}
				}
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
		addr, err := p.offer(x.cell.kind.service, ss[i].name)
		if err != nil {
			return err
		}
		if pools[i], err = newPool(x.cell, r.dialer(&ss[i], addr)); err != nil {
			return fmt.Errorf("%s: %w", ss[i].name, err)
		}
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
	cell  cell
	conns []requester
}

func newPool(c cell, dial dialFunc) (*pool, error) {
	p := &pool{cell: c}
	for range c.conns {
		conn, err := c.kind.connect(c, dial)
		if err != nil {
			p.close()
			return nil, err
		}
		p.conns = append(p.conns, conn)
	}
	return p, nil
}

func (p *pool) close() {
	for _, c := range p.conns {
		c.close()
	}
}

// warm has a request go over each connection.
func (p *pool) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	return inParallel(idleDialers, len(p.conns), func(i int) error {
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
	start := time.Now()
	n, err := p.conns[i].get(ctx, p.cell.body, buf, w)
	if err != nil {
		return err
	}
	if n != p.cell.body {
		return fmt.Errorf("body of %d bytes instead of %d", n, p.cell.body)
	}
	if w.phase.Load() == counting {
		w.latency.add(time.Since(start))
	}
	return nil
}

// came counts bytes of a body.
func (w *window) came(n int) {
	if w.phase.Load() != closed {
		w.bytes.Add(int64(n))
	}
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
	for i := range p.conns {
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

// side is the index of the side of that name, or -1.
func (x *gridRow) side(name string) int {
	for i := range x.sides {
		if x.sides[i].side == name {
			return i
		}
	}
	return -1
}

// collapsed tells whether a side has come to a halt beside the first side.
func (x *gridRow) collapsed(i int) bool { return x.speed(i) < collapse }

// collapse is the share of TCP's requests below which a cell is looked into.
const collapse = 0.3

// speed is the median of how many times as many requests as the first side's the side i did.
func (x *gridRow) speed(i int) float64 {
	return median(ratios(x.sides[i].requests, x.sides[0].requests, moreIsFaster))
}
