package verbstest

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// A steady is an exchange in a steady state, whose allocations are counted: those of the provider's goroutines too. Its
// methods allocate nothing, and do nothing once something has failed.
type steady struct {
	s   *suite
	wcs []verbs.WC
	err error
}

// steady skips where allocations say nothing about the provider.
func (s *suite) steady(t *testing.T) *steady {
	if s.Allocates {
		t.Skip("what is below the provider allocates")
	}
	if race.Enabled {
		t.Skip("under the race detector pools lose what they hold")
	}
	return &steady{s: s, wcs: make([]verbs.WC, 8)}
}

var (
	errLate   = errors.New("a completion is missing")
	errNoRoom = errors.New("a queue has no room")
)

// posted looks at what a call that posts one request returned.
func (x *steady) posted(n int, err error) {
	if err == nil && n != 1 {
		err = errNoRoom
	}
	if x.err == nil {
		x.err = err
	}
}

// take polls a queue until it has had n successful completions, and others beside it: the peer's end of the network.
func (x *steady) take(cq verbs.CQ, n int, beside ...verbs.CQ) {
	for deadline := time.Now().Add(x.s.Timeout); n > 0 && x.err == nil; runtime.Gosched() {
		for _, other := range beside {
			_, _ = other.Poll(x.wcs)
		}
		got, err := cq.Poll(x.wcs[:min(n, len(x.wcs))])
		for _, wc := range x.wcs[:got] {
			if wc.Status != verbs.Success {
				err = wc.Status
			}
		}
		if err == nil && time.Now().After(deadline) {
			err = errLate
		}
		n, x.err = n-got, err
	}
}

// require runs the exchange, which is 100 times the same, until one run allocates no more than most. The best of several counts:
// what fills a pool, or what goroutines with nothing to do with these requests do meanwhile, is not their cost.
func (x *steady) require(t *testing.T, most float64, exchange func()) {
	hundred := func() {
		for range 100 {
			exchange()
		}
	}
	best := testing.AllocsPerRun(1, hundred)
	for i := 0; i < 9 && best > most; i++ {
		best = min(best, testing.AllocsPerRun(1, hundred))
	}
	require.NoError(t, x.err)
	require.LessOrEqual(t, best, most, "allocations of 100 exchanges")
}

// requireRequests posts requests that the peer's consumer need not do anything for.
func (x *steady) requireRequests(t *testing.T, a, b *end, wrs []verbs.SendWR) {
	// Goroutines of the provider that have nothing to do with these requests allocate now and then.
	x.require(t, 30, func() {
		if n, err := a.qp.PostSend(wrs); err != nil || n != len(wrs) {
			x.posted(0, err)
		}
		x.take(a.cq, len(wrs), b.cq)
	})
}

// testAllocations exchanges messages in a steady state and counts what is allocated for one.
func testAllocations(s *suite, t *testing.T) {
	x := s.steady(t)
	a, b := s.pair(t)
	src, dst := a.span(3000).fill(1), b.span(3000)
	send := []verbs.SendWR{{
		Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey(),
	}}
	recv := []verbs.RecvWR{{}}
	inline := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, Inline: make([]byte, 16)}}
	buf := []verbs.RecvWR{{SGL: a.span(16).sgl()}}
	x.require(t, 2, func() {
		x.posted(b.qp.PostRecv(recv))
		x.posted(a.qp.PostSend(send))
		x.take(b.cq, 1)
		x.take(a.cq, 1)
		x.posted(a.qp.PostRecv(buf))
		x.posted(b.qp.PostSend(inline))
		x.take(a.cq, 1)
		x.take(b.cq, 1)
		_ = b.cq.Arm()
	})
	dst.requireBytes(t, src.bytes())
}
