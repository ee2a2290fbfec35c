package verbstest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

var lifetimeTests = []test{
	{"Busy", testBusy},
	{"LeftBehind", testLeftBehind},
	{"CloseTwice", testCloseTwice},
	{"CloseInAnyOrder", testCloseInAnyOrder},
	{"CloseUnderTraffic", testCloseUnderTraffic},
	{"CloseConcurrently", testCloseConcurrently},
	{"UseAfterClose", testUseAfterClose},
}

// testBusy closes what is still used.
func testBusy(s *suite, t *testing.T) {
	a, b := s.pair(t)
	require.ErrorIs(t, a.cq.Close(), verbs.ErrBusy, "CQ of a QP")
	require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy, "PD of a QP")
	require.ErrorIs(t, a.arena.Close(), verbs.ErrBusy, "arena of a region")
	// None of it did harm.
	a.ping(b)
	b.ping(a)

	require.NoError(t, a.qp.Close())
	require.NoError(t, a.cq.Close())
	require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy, "PD of a region")
	require.NoError(t, a.mr.Close())
	require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy, "PD of an arena")
	require.NoError(t, a.arena.Close())
	require.NoError(t, a.pd.Close())
}

// testCloseTwice closes everything twice.
func testCloseTwice(s *suite, t *testing.T) {
	l := s.listen(t)
	a, b := s.connect(t, l, s.options(nil), s.options(nil))
	for _, e := range []*end{a, b} {
		for _, c := range []struct {
			name string
			c    interface{ Close() error }
		}{{"QP", e.qp}, {"CMID", e.id}, {"CQ", e.cq}, {"MR", e.mr}, {"arena", e.arena}, {"PD", e.pd}, {"listener", l}} {
			closeIt(t, c.name, c.c)
			closeIt(t, c.name+" again", c.c)
		}
	}
}

// testLeftBehind: the tracer names what is not closed with the place that made it, and forgets what is closed.
func testLeftBehind(s *suite, t *testing.T) {
	leak.Start() // tests that follow need not know
	here := func() map[string]int {
		kinds := make(map[string]int)
		for _, o := range leak.Open() {
			if strings.Contains(o.Stack, "verbstest.testLeftBehind(...)\n\t") && strings.Contains(o.Stack, "/verbstest/lifetime.go:") {
				kinds[o.Kind] += o.Count
			}
		}
		return kinds
	}
	// What is closed is forgotten at once, or by the provider's goroutine.
	forgotten := func(left func() bool) {
		for end := time.Now().Add(s.Timeout); left(); time.Sleep(time.Millisecond) {
			require.True(t, time.Now().Before(end), "left behind: %v", here())
		}
	}
	t.Cleanup(func() { forgotten(func() bool { return len(here()) > 0 }) }) // after opened devices are closed, too
	l := s.listen(t)
	a, b := s.connect(t, l, s.options(nil), s.options(nil))
	q, err := a.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4})
	require.NoError(t, err)
	kinds := here()
	handles := map[string]int{
		"queue pair": 2, "completion queue": 2, "memory region": 2, "protection domain": 2, "arena": 2, "listener": 1, "shared receive queue": 1,
	}
	for kind, n := range handles {
		require.Equal(t, n, kinds[kind], kind)
	}
	require.Positive(t, kinds["identifier"], "the passive one may be made by the provider's goroutine")
	requireClosed(t, q, a.qp, b.qp, a.id, b.id, a.cq, b.cq, a.mr, b.mr, a.arena, b.arena, a.pd, b.pd, l)
	forgotten(func() bool {
		kinds := here()
		return kinds["identifier"] > 0 || slices.ContainsFunc(slices.Collect(maps.Keys(handles)), func(kind string) bool { return kinds[kind] > 0 })
	})
}

// permutations calls f with every order of n things.
func permutations(n int, f func(order []int)) {
	order := make([]int, 0, n)
	var rec func(left uint)
	rec = func(left uint) {
		if left == 0 {
			f(order)
			return
		}
		for i := range n {
			if left&(1<<i) != 0 {
				order = append(order, i)
				rec(left &^ (1 << i))
				order = order[:len(order)-1]
			}
		}
	}
	rec(1<<n - 1)
}

// testCloseInAnyOrder closes queue pairs, identifiers and the listener in every
// order. An identifier may insist on outliving its queue pair.
func testCloseInAnyOrder(s *suite, t *testing.T) {
	permutations(5, func(order []int) {
		l := s.listen(t)
		a, b := s.connect(t, l, s.options(nil), s.options(nil))
		a.recv(verbs.RecvWR{ID: 1})
		closers := []interface{ Close() error }{a.qp, a.id, b.qp, b.id, l}
		names := []string{"active QP", "active CMID", "passive QP", "passive CMID", "listener"}
		var again []int
		for _, i := range order {
			err := closers[i].Close()
			if errors.Is(err, verbs.ErrBusy) && (i == 1 || i == 3) {
				again = append(again, i)
				continue
			}
			require.NoError(t, err, "%s of %v", names[i], order)
		}
		for _, i := range again {
			require.NoError(t, closers[i].Close(), "%s of %v", names[i], order)
		}
		for _, e := range []*end{a, b} {
			requireClosed(t, e.cq, e.mr, e.arena, e.pd)
		}
	})
}

// testCloseUnderTraffic closes a queue pair, its region and its memory while the
// peer writes to them.
func testCloseUnderTraffic(s *suite, t *testing.T) {
	for range 5 {
		a, b := s.pair(t)
		src, dst := a.span(20000).fill(1), b.span(20000)
		for i := range 30 {
			a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey()})
		}
		require.NoError(t, b.qp.Close())
		// No peer touches the memory any more.
		clear(b.arena.Bytes())
		require.NoError(t, b.mr.Close())
		for i, v := range b.arena.Bytes() {
			require.Zero(t, v, "byte %d", i)
		}
		requireClosed(t, b.arena, b.cq, b.pd, b.id)
		requireClosed(t, a.qp, a.mr, a.arena, a.cq, a.pd, a.id)
	}
}

// testCloseConcurrently closes an end from several goroutines, while others post and poll.
func testCloseConcurrently(s *suite, t *testing.T) {
	for range 5 {
		a, b := s.pair(t)
		src := a.span(100)
		dst := b.span(100)
		var g group
		allowed := func(err error) error {
			if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, verbs.ErrBusy) {
				return nil
			}
			return err
		}
		for _, e := range []*end{a, b} {
			g.run(func() error {
				for range 200 {
					wr := verbs.SendWR{Op: verbs.OpWrite, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey()}
					if e == b {
						wr = verbs.SendWR{Op: verbs.OpSend}
					}
					if _, err := e.qp.PostSend([]verbs.SendWR{wr}); allowed(err) != nil {
						return fmt.Errorf("PostSend: %w", err)
					}
					if _, err := e.qp.PostRecv([]verbs.RecvWR{{}}); allowed(err) != nil {
						return fmt.Errorf("PostRecv: %w", err)
					}
				}
				return nil
			})
			g.run(func() error {
				for range 200 {
					var wcs [8]verbs.WC
					if _, err := e.cq.Poll(wcs[:]); allowed(err) != nil {
						return fmt.Errorf("call of Poll: %w", err)
					}
					if err := allowed(e.cq.Arm()); err != nil {
						return fmt.Errorf("call of Arm: %w", err)
					}
				}
				return nil
			})
			for range 2 {
				g.run(func() error { return allowed(e.qp.ToError()) })
				g.run(func() error { return allowed(e.id.Disconnect()) })
				g.run(func() error { return allowed(e.qp.Close()) })
				g.run(func() error { return allowed(e.id.Close()) })
			}
		}
		g.wait(t)
	}
}

// testUseAfterClose calls what is closed.
func testUseAfterClose(s *suite, t *testing.T) {
	a, _ := s.pair(t)
	num := a.qp.Num()
	require.NoError(t, a.qp.Close())
	_, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = a.qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, net.ErrClosed)
	require.Equal(t, num, a.qp.Num())
	require.NoError(t, a.cq.Close())
	require.ErrorIs(t, a.cq.Arm(), net.ErrClosed)
	var wcs [1]verbs.WC
	_, err = a.cq.Poll(wcs[:])
	require.ErrorIs(t, err, net.ErrClosed)
	requireClosed(t, a.mr, a.arena, a.pd)
	_, err = a.pd.NewArena(1 << 16)
	require.ErrorIs(t, err, net.ErrClosed)
}
