package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// results are what is measured in one run.
type results struct {
	machine machine
	o       *options
	rows    []row
	grid    []gridRow
	idle    []*idleRow

	datagrams []datagramRow
	once      sync.Once
	path      string // what carried RDMA, first
	took      time.Duration
}

// A row is what was measured of one case in one arrangement.
type row struct {
	c         *benchCase
	processes int
	sides     []sideFigures
}

// sideFigures are one side's, by round.
type sideFigures struct {
	side    string
	figures []float64 // in the case's unit
	cpu     []float64 // seconds of all processes, per operation
	allocs  float64   // per operation, of this process
	failed  bool      // it is left out
}

func (r *results) measure(ctx context.Context) error {
	start := time.Now()
	for _, processes := range []int{2, 1} {
		if r.o.processes != 0 && r.o.processes != processes {
			continue
		}
		if err := r.measureCases(ctx, processes); err != nil {
			return err
		}
	}
	if err := r.measureDatagrams(ctx); err != nil {
		return err
	}
	if err := r.measureGrid(ctx); err != nil {
		return err
	}
	if err := r.measureAllIdle(ctx); err != nil {
		return err
	}
	if len(r.rows)+len(r.datagrams)+len(r.grid)+len(r.idle) == 0 {
		return fmt.Errorf("nothing is picked by -run; -list lists what there is")
	}
	r.took = time.Since(start)
	return nil
}

func (r *results) start(ctx context.Context, processes int) (*peer, error) {
	if processes == 2 {
		return startPeerProcess(ctx, r.o)
	}
	return startPeer(ctx, r.o.device)
}

func (r *results) measureCases(ctx context.Context, processes int) error {
	p, err := r.start(ctx, processes)
	if err != nil {
		return err
	}
	defer p.close()
	for i := range cases {
		c := &cases[i]
		if !r.o.pick(c.name, true) || c.busy && processes == 1 {
			continue
		}
		progress("%s, %d process(es)", c.name, processes)
		x := row{c: c, processes: processes}
		if err := r.measureCase(ctx, &x, p); err != nil {
			return fmt.Errorf("%s, %d process(es): %w", c.name, processes, err)
		}
		r.rows = append(r.rows, x)
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// picked are the sides that are measured of a case that has these by itself.
func (o *options) picked(own []string) ([]side, error) {
	if o.sides == nil {
		return sidesNamed(o.device, own)
	}
	some := slices.DeleteFunc(sides(o.device), func(s side) bool {
		return !o.sides.MatchString(s.name) || s.name == sideUCX && !slices.Contains(own, sideUCX)
	})
	if len(some) == 0 {
		return nil, fmt.Errorf("no side matches -sides %s", o.sides)
	}
	return some, nil
}

// measureCase takes the samples of all sides in turns, in another order each round.
func (r *results) measureCase(ctx context.Context, x *row, p *peer) error {
	if x.c.busy {
		stop, err := busyMachine(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	ss, err := r.o.picked(x.c.sides)
	if err != nil {
		return err
	}
	if !x.c.forUCX() || x.processes != 2 || !ucxThere() {
		ss = slices.DeleteFunc(ss, func(s side) bool { return s.name == sideUCX })
	}
	clients, ops := make([]client, len(ss)), make([]int, len(ss))
	x.sides = make([]sideFigures, len(ss))
	for i := range ss {
		x.sides[i].side = ss[i].name
		if ss[i].name == sideUCX {
			clients[i] = x.c.ucxTest(ctx)
			continue
		}
		addr, err := p.offer(x.c.service, ss[i].name)
		if err != nil {
			return err
		}
		c, err := x.c.dial(ctx, r.dialer(&ss[i], addr))
		if err != nil {
			return fmt.Errorf("%s: %w", ss[i].name, err)
		}
		defer c.close() //nolint:gocritic // a few of them, and all live until the end
		clients[i] = c
		if ops[i], err = calibrate(c, r.o.sample); err != nil {
			return fmt.Errorf("%s: %w", ss[i].name, err)
		}
	}
	for round := range r.o.rounds {
		for _, i := range turns(len(ss), round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			s := &x.sides[i]
			if m, ok := clients[i].(selfTimed); ok {
				if s.failed {
					continue
				}
				perOp, cpu, err := m.measure(r.o.sample)
				if err != nil {
					progress("%s is left out: %v", s.side, err)
					s.failed = true
					continue
				}
				s.figures = append(s.figures, x.c.value(perOp))
				s.cpu = append(s.cpu, cpu.Seconds())
				continue
			}
			took, cpu, allocs, err := timed(clients[i], ops[i], p)
			if err != nil {
				return fmt.Errorf("%s: %w", s.side, err)
			}
			n := float64(ops[i])
			s.figures = append(s.figures, x.c.value(took/time.Duration(ops[i])))
			s.cpu = append(s.cpu, cpu.Seconds()/n)
			s.allocs += float64(allocs) / n / float64(r.o.rounds)
		}
	}
	x.sides = slices.DeleteFunc(x.sides, func(f sideFigures) bool { return f.failed })
	return nil
}

// turns is the order of n sides in a round.
func turns(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (i + round/2) % n
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// dialer notes on which path the RDMA connection went: with "" as device that is the library's choice.
func (r *results) dialer(s *side, addr string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := s.dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		if rc, ok := rdmanet.Unwrap(c); ok {
			s := rc.Stats()
			r.once.Do(func() { r.path = fmt.Sprintf("provider %s, device %s", s.Provider, s.Device) })
		}
		return c, nil
	}
}

// calibrate finds how many operations take about a sample's time, which also warms up.
func calibrate(c client, sample time.Duration) (int, error) {
	n := 1
	for {
		start := time.Now()
		if err := c.do(n); err != nil {
			return 0, err
		}
		took := time.Since(start)
		if took >= sample/2 {
			return max(1, int(float64(n)*sample.Seconds()/took.Seconds())), nil
		}
		n *= 2
	}
}

// timed does n operations, and tells how long they took, what processor time in all processes, and how many allocations in this one.
func timed(c client, n int, p *peer) (took, cpu time.Duration, allocs uint64, err error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used, err := p.processorTime()
	if err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	if err := c.do(n); err != nil {
		return 0, 0, 0, err
	}
	took = time.Since(start)
	cpu, err = p.processorTime()
	runtime.ReadMemStats(&after)
	return took, cpu - used, after.Mallocs - before.Mallocs, err
}

// processorTime is what this process and the peer's have used.
func (p *peer) processorTime() (time.Duration, error) {
	own, err := processorTime(os.Getpid())
	if err != nil || p.pid == 0 {
		return own, err
	}
	other, err := processorTime(p.pid)
	return own + other, err
}
