package verbstest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// testAllocations exchanges messages in a steady state and counts what is allocated
// for one, by the provider's own goroutines too.
func testAllocations(s *suite, t *testing.T) {
	if s.Allocates {
		t.Skip("what is below the provider allocates")
	}
	if race.Enabled {
		t.Skip("under the race detector pools lose what they hold")
	}
	a, b := s.pair(t)
	src, dst := a.span(3000).fill(1), b.span(3000)
	send := []verbs.SendWR{{
		Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey(),
	}}
	recv := []verbs.RecvWR{{}}
	inline := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, Inline: make([]byte, 16)}}
	buf := []verbs.RecvWR{{SGL: a.span(16).sgl()}}
	wcs := make([]verbs.WC, 8)
	var failed error
	var late bool
	// take polls for one completion.
	take := func(cq verbs.CQ) {
		for deadline := time.Now().Add(s.Timeout); !late && failed == nil; {
			n, err := cq.Poll(wcs[:1])
			if n == 1 && wcs[0].Status != verbs.Success {
				err = wcs[0].Status
			}
			if n == 1 || err != nil {
				failed = err
				return
			}
			late = time.Now().After(deadline)
			runtime.Gosched()
		}
	}
	post := func(n int, err error) {
		if err != nil || n != 1 {
			failed, late = err, late || n != 1
		}
	}
	exchange := func() {
		for range 100 {
			post(b.qp.PostRecv(recv))
			post(a.qp.PostSend(send))
			take(b.cq)
			take(a.cq)
			post(a.qp.PostRecv(buf))
			post(b.qp.PostSend(inline))
			take(a.cq)
			take(b.cq)
			_ = b.cq.Arm()
		}
	}
	// The best of several runs: what fills a pool, or what others do meanwhile, is
	// not the messages' cost.
	best := testing.AllocsPerRun(1, exchange)
	for i := 0; i < 9 && best > 2; i++ {
		best = min(best, testing.AllocsPerRun(1, exchange))
	}
	require.NoError(t, failed)
	require.False(t, late, "a message is missing")
	require.LessOrEqual(t, best, 2.0, "allocations for 200 messages")
	dst.requireBytes(t, src.bytes())
}
