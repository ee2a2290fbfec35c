//go:build guest

package guest

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

// TestCallsForABatch: a batch goes into C at once, each way.
func TestCallsForABatch(t *testing.T) {
	p := provider(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(netip.MustParseAddr(*addr), 0)})
	require.NoError(t, err)
	defer l.Close()
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), Handler: func(verbs.Event) {}})
	require.NoError(t, err)
	defer id.Close()
	pd, err := id.Device().AllocPD()
	require.NoError(t, err)
	defer pd.Close()
	const batch = 16
	notified := make(chan struct{}, 1)
	cq, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 2 * batch, Notify: func() { notified <- struct{}{} }})
	require.NoError(t, err)
	defer cq.Close()
	rcq, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 2 * batch})
	require.NoError(t, err)
	defer rcq.Close()
	qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: batch, MaxRecvWR: 1, MaxInline: 64})
	require.NoError(t, err)
	defer qp.Close()
	param := &verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7}
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(ctx, param)
		done <- err
	}()
	rid, err := l.GetRequest(ctx)
	require.NoError(t, err)
	defer rid.Close()
	rqp, err := rid.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: rcq, RecvCQ: rcq, MaxSendWR: 1, MaxRecvWR: batch, MaxRecvSGE: 1})
	require.NoError(t, err)
	defer rqp.Close()
	require.NoError(t, rid.Accept(param))
	require.NoError(t, <-done)
	arena, err := pd.NewArena(os.Getpagesize())
	require.NoError(t, err)
	defer arena.Close()
	mr, err := pd.RegMR(arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	defer mr.Close()

	one := func(what string, f func()) {
		t.Helper()
		before := runtime.NumCgoCall()
		f()
		require.EqualValues(t, 1, runtime.NumCgoCall()-before, "calls into C: %s", what)
	}
	time.Sleep(100 * time.Millisecond) // what connecting brings is taken
	recvs, sends := make([]verbs.RecvWR, batch), make([]verbs.SendWR, batch)
	for i := range batch {
		recvs[i].SGL = []verbs.SGE{{Addr: mr.Addr() + uint64(i)*64, Length: 64, LKey: mr.LKey()}}
		sends[i] = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, Inline: make([]byte, 48)}
	}
	one("receives", func() {
		n, err := rqp.PostRecv(recvs)
		require.NoError(t, err)
		require.Equal(t, batch, n)
	})
	one("sends", func() {
		n, err := qp.PostSend(sends)
		require.NoError(t, err)
		require.Equal(t, batch, n)
	})
	time.Sleep(time.Second)
	wcs := make([]verbs.WC, 2*batch)
	for _, q := range []verbs.CQ{cq, rcq} {
		one("completions", func() {
			n, err := q.Poll(wcs)
			require.NoError(t, err)
			require.Equal(t, batch, n)
		})
	}
	one("arming", func() {
		n, armed, err := cq.(verbs.ArmPoller).PollOrArm(wcs, 0, true)
		require.NoError(t, err)
		require.Zero(t, n)
		require.True(t, armed)
	})
	require.NoError(t, qp.ToError())
	_, err = qp.PostSend(sends[:1]) // flushed, which completes
	require.NoError(t, err)
	select {
	case <-notified:
	case <-ctx.Done():
		require.Fail(t, "armed, and not notified")
	}
}

// TestCallsOfStreams: what a message costs of both ends in one process that sleep for each: for each end
// and round trip, one call that posts, one that takes the notification, one that polls and one that arms, one in eight that posts
// receives; and no allocation.
func TestCallsOfStreams(t *testing.T) {
	a, b := streamPair(t)
	for _, c := range []net.Conn{a, b} {
		require.NoError(t, c.(*rdmanet.Conn).SetBusyPoll(-1))
	}
	const rounds = 300
	turn := func(c net.Conn, buf []byte) error {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		_, err := c.Write(buf)
		return err
	}
	done := make(chan error, 1)
	go func() {
		var err error
		for buf := make([]byte, 64); err == nil; {
			err = turn(b, buf)
		}
		done <- err
	}()
	buf := make([]byte, 64)
	_, err := a.Write(buf)
	require.NoError(t, err)
	var before, after runtime.MemStats
	calls, mallocs := int64(1<<62), uint64(1<<62)
	for range 4 { // the first warms up
		runtime.ReadMemStats(&before)
		n := runtime.NumCgoCall()
		for range rounds {
			require.NoError(t, turn(a, buf))
		}
		n = runtime.NumCgoCall() - n
		runtime.ReadMemStats(&after)
		calls, mallocs = min(calls, n), min(mallocs, after.Mallocs-before.Mallocs)
	}
	t.Logf("%d calls into C and %d allocations for %d round trips; %+v", calls, mallocs, rounds, a.(*rdmanet.Conn).Stats())
	require.LessOrEqual(t, float64(calls)/rounds, 2*4.5)
	require.LessOrEqual(t, mallocs, uint64(rounds/10))
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-done, io.EOF)
}
