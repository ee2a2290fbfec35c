package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// idleRow is what many connections that do nothing cost.
type idleRow struct {
	side              string
	conns             int
	few               int              // how many there were at first
	dialed            time.Duration    // for the rest
	echoed            time.Duration    // for one round trip on each
	settled           time.Duration    // how long they were idle
	first, full, late [2]usage         // of client and server: with few, with all, and that much later
	before            [2]time.Duration // processor time when the idle time began
}

// each is what a connection takes of something, at one end.
func (r *idleRow) each(end int, of func(*usage) int64) float64 {
	return float64(of(&r.full[end])-of(&r.first[end])) / float64(r.conns-r.few)
}

// idleSides are those that are measured.
var idleSides = []string{sideTCP, sideQuiet, sideRDMA, sideShmQuiet, sideShm}

func idleName(side string) string { return "idle, " + side }

func (r *results) measureAllIdle(ctx context.Context) error {
	for _, name := range idleSides {
		if !r.o.pick(idleName(name), false) {
			continue
		}
		progress("%s", idleName(name))
		s, err := sidesNamed(r.o.device, []string{name})
		if err != nil {
			return err
		}
		x, err := measureIdle(ctx, r.o, &s[0], r.o.idle, r.o.settle)
		if err != nil {
			return fmt.Errorf("%s: %w", idleName(name), err)
		}
		r.idle = append(r.idle, x)
	}
	return nil
}

// idleDialers is how many goroutines dial: it takes a round trip or two, and some work at both ends.
const idleDialers = 32

// measureIdle opens n connections to a peer process, a goroutine of which waits in Read on each, as in any server
// of Go's; at this end they are without one.
func measureIdle(ctx context.Context, o *options, s *side, n int, settle time.Duration) (*idleRow, error) {
	p, err := startPeerProcess(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.close()
	addr, err := p.offer("echo", s.name)
	if err != nil {
		return nil, err
	}
	if err := forget(ctx); err != nil {
		return nil, err
	}
	r := &idleRow{side: s.name, conns: n, few: max(1, n/100), settled: settle}
	conns := make([]net.Conn, n)
	defer func() { closeAll(conns) }()
	// The first bring what a process has once.
	if err := dialAll(ctx, s, addr, conns[:r.few]); err != nil {
		return nil, err
	}
	if err := echoAll(conns[:r.few]); err != nil {
		return nil, err
	}
	if err := r.look(p, &r.first); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := dialAll(ctx, s, addr, conns[r.few:]); err != nil {
		return nil, err
	}
	r.dialed = time.Since(start)
	start = time.Now()
	if err := echoAll(conns); err != nil {
		return nil, err
	}
	r.echoed = time.Since(start)
	sleep(ctx, time.Second) // what a round trip leaves behind, an acknowledgement and timers, is over
	if err := r.look(p, &r.full); err != nil {
		return nil, err
	}
	sleep(ctx, time.Second) // and so is what looking did
	for end, pid := range ends(p) {
		if r.before[end], err = processorTime(pid); err != nil {
			return nil, err
		}
	}
	sleep(ctx, settle)
	for end, pid := range ends(p) { // from outside
		if err := r.late[end].read(pid); err != nil {
			return nil, err
		}
	}
	if err := echoAll(conns); err != nil {
		return nil, err
	}
	return r, ctx.Err()
}

// forget gives back what was measured before this: memory that is used again would not count.
func forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	if err := rdmanet.Drain(ctx); err != nil {
		return fmt.Errorf("connections of earlier cases: %w", err)
	}
	debug.FreeOSMemory()
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// look asks both ends.
func (r *idleRow) look(p *peer, at *[2]usage) error {
	rep, err := p.ask(&request{Usage: true})
	if err != nil {
		return err
	}
	own, err := ownUsage()
	if err != nil {
		return err
	}
	at[0], at[1] = *own, *rep.Usage
	return nil
}

// idleCPU is what an end used while nothing was asked of it.
func (r *idleRow) idleCPU(end int) time.Duration { return r.late[end].CPU - r.before[end] }

// ends tells the processes.
func ends(p *peer) [2]int { return [2]int{os.Getpid(), p.pid} }

func dialAll(ctx context.Context, s *side, addr string, conns []net.Conn) error {
	return inParallel(idleDialers, len(conns), func(i int) error {
		c, err := s.dial(ctx, addr)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		conns[i] = c
		return nil
	})
}

func echoAll(conns []net.Conn) error {
	return inParallel(idleDialers, len(conns), func(i int) error {
		var out, in [pingSize]byte
		copy(out[:], fmt.Sprintf("connection %d", i))
		if err := conns[i].SetDeadline(time.Now().Add(sampleLimit)); err != nil {
			return err
		}
		if _, err := conns[i].Write(out[:]); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		if _, err := io.ReadFull(conns[i], in[:]); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		if in != out {
			return fmt.Errorf("connection %d answers %q", i, in)
		}
		return conns[i].SetDeadline(time.Time{})
	})
}

func closeAll(conns []net.Conn) {
	_ = inParallel(idleDialers, len(conns), func(i int) error {
		if conns[i] != nil {
			conns[i].Close()
		}
		return nil
	})
}

// inParallel calls f for 0 to n-1 on several goroutines, until one fails.
func inParallel(goroutines, n int, f func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	for range min(goroutines, n) {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
