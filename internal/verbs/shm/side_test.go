//go:build linux

package shm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// side is one end of a connection, with everything that a consumer has for it.
type side struct {
	id     verbs.CMID
	pd     verbs.PD
	arena  verbs.Arena
	mr     verbs.MR
	cq     verbs.CQ
	qp     verbs.QP
	wake   chan struct{}
	events chan verbs.Event
}

const sideMemory = 1 << 16

var everything = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic | verbs.RemoteInvalidate

func newSide(id verbs.CMID) (*side, error) {
	s := &side{id: id, wake: make(chan struct{}, 1), events: make(chan verbs.Event, 16)}
	var err error
	if s.pd, err = id.Device().AllocPD(); err != nil {
		return nil, err
	}
	if s.arena, err = s.pd.NewArena(sideMemory); err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.RegMR(s.arena.Bytes(), everything); err != nil {
		return nil, err
	}
	s.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 1024, Notify: func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return nil, err
	}
	s.qp, err = id.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64})
	if err != nil {
		return nil, err
	}
	id.SetHandler(func(e verbs.Event) {
		select {
		case s.events <- e:
		default:
		}
	})
	return s, nil
}

// close closes all. The region may be busy while the peer lives; it tells whether it was.
func (s *side) close() (busy bool, err error) {
	err = errors.Join(s.qp.Close(), s.id.Close(), s.cq.Close())
	e := s.mr.Close()
	if errors.Is(e, verbs.ErrBusy) {
		return true, err
	}
	return false, errors.Join(err, e, s.arena.Close(), s.pd.Close())
}

var sideParam = verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7, ResponderResources: 4, InitiatorDepth: 4}

func listenAt(p *Provider) (verbs.Listener, error) {
	return p.Listen(context.Background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 64})
}

func dialTo(ctx context.Context, p *Provider, to netip.AddrPort) (*side, error) {
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to})
	if err != nil {
		return nil, err
	}
	s, err := newSide(id)
	if err != nil {
		return nil, err
	}
	if _, err = id.Connect(ctx, &sideParam); err != nil {
		_, e := s.close()
		return nil, errors.Join(err, e)
	}
	return s, nil
}

func acceptFrom(ctx context.Context, l verbs.Listener) (*side, error) {
	id, err := l.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	s, err := newSide(id)
	if err != nil {
		return nil, err
	}
	if err := id.Accept(&sideParam); err != nil {
		_, e := s.close()
		return nil, errors.Join(err, e)
	}
	return s, nil
}

// connected makes a connection from a to b.
func connected(t testing.TB, a, b *Provider) (x, y *side) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := listenAt(b)
	require.NoError(t, err)
	defer l.Close()
	type result struct {
		s   *side
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := acceptFrom(ctx, l)
		done <- result{s, err}
	}()
	x, err = dialTo(ctx, a, l.Addr())
	require.NoError(t, err)
	r := <-done
	require.NoError(t, r.err)
	return x, r.s
}

// held counts what the kernel has of ours: mapped segments, and descriptors.
func held(t testing.TB) (maps, fds int) {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	es, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return strings.Count(string(b), "go-rdma-shm"), len(es)
}

// heldAtRest is held once the links of earlier tests have ended, which they do by themselves a moment after their last connection.
func heldAtRest(t testing.TB) (maps, fds int) {
	t.Helper()
	requireNothingHeld(t, 1<<20)
	return held(t)
}

// requireNothingHeld waits until all that a test has used is given back.
func requireNothingHeld(t testing.TB, fdsBefore int) {
	t.Helper()
	var maps, fds int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		runtime.Gosched()
		if maps, fds = held(t); maps == 0 && fds <= fdsBefore {
			return
		}
	}
	require.Failf(t, "leak", "%d mapped segments, %d descriptors where there were %d", maps, fds, fdsBefore)
}
