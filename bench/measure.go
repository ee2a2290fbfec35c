package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

type options struct {
	device string
	rounds int
	sample time.Duration
	run    *regexp.Regexp
}

// A row is what was measured of one case in one arrangement.
type row struct {
	c         *benchCase
	processes int
	figures   [2][]float64 // by transport and round, in the case's unit
	allocs    [2]float64   // per operation, of this process
	path      string       // what carried the RDMA side
}

func measureAll(ctx context.Context, o *options) ([]row, error) {
	var rows []row
	for _, processes := range []int{2, 1} {
		start := startPeer
		if processes == 2 {
			start = startPeerProcess
		}
		p, err := start(ctx, o.device)
		if err != nil {
			return nil, err
		}
		for i := range cases {
			if !o.run.MatchString(cases[i].name) {
				continue
			}
			r := row{c: &cases[i], processes: processes}
			fmt.Fprintf(os.Stderr, "%s, %d process(es)\n", r.c.name, processes)
			if err := r.measure(ctx, o, p.Addrs[0][i], p.Addrs[1][i]); err != nil {
				p.close()
				return nil, fmt.Errorf("%s, %d process(es): %w", r.c.name, processes, err)
			}
			rows = append(rows, r)
		}
		p.close()
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no case matches -run %s", o.run)
	}
	return rows, nil
}

// measure takes the samples of both transports in turns, each first every other round.
func (r *row) measure(ctx context.Context, o *options, addrs ...string) error {
	var clients [2]client
	var ops [2]int
	trs := transports(o.device)
	for t := range trs {
		c, err := r.c.dial(ctx, r.dialer(&trs[t], addrs[t]))
		if err != nil {
			return err
		}
		defer c.close() //nolint:gocritic // two of them, and both live until the end
		clients[t] = c
		if ops[t], err = calibrate(c, o.sample); err != nil {
			return fmt.Errorf("%s: %w", trs[t].name, err)
		}
	}
	for round := range o.rounds {
		order := []int{0, 1}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, t := range order {
			if err := ctx.Err(); err != nil {
				return err
			}
			took, allocs, err := timed(clients[t], ops[t])
			if err != nil {
				return fmt.Errorf("%s: %w", trs[t].name, err)
			}
			perOp := took / time.Duration(ops[t])
			r.figures[t] = append(r.figures[t], r.c.value(perOp))
			r.allocs[t] += float64(allocs) / float64(ops[t]) / float64(o.rounds)
		}
	}
	return nil
}

// dialer notes on which path the RDMA connection went: with "" as device that is the library's choice.
func (r *row) dialer(tr *transport, addr string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := tr.dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		if rc, ok := rdmanet.Unwrap(c); ok {
			s := rc.Stats()
			r.path = fmt.Sprintf("provider %s, device %s", s.Provider, s.Device)
		}
		return c, nil
	}
}

// calibrate finds how many operations take about a sample's time, which also warms up.
func calibrate(c client, sample time.Duration) (int, error) {
	n := 1
	for {
		took, _, err := timed(c, n)
		if err != nil {
			return 0, err
		}
		if took >= sample/2 {
			return max(1, int(float64(n)*sample.Seconds()/took.Seconds())), nil
		}
		n *= 2
	}
}

func timed(c client, n int) (time.Duration, uint64, error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := c.do(n)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return took, after.Mallocs - before.Mallocs, err
}
