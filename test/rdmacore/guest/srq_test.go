//go:build guest

package guest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// poll returns the next completion.
func poll(t *testing.T, cq verbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		n, err := cq.Poll(wc[:])
		require.NoError(t, err)
		if n == 1 {
			return wc[0]
		}
	}
	require.Fail(t, "no completion")
	return wc[0]
}

// TestSRQ lets three connections take their receives from one queue: every ID comes back once, room is given
// back, a full queue takes no more, and the limit is told.
func TestSRQ(t *testing.T) {
	p := provider(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(netip.MustParseAddr(*addr), 0)})
	require.NoError(t, err)
	defer l.Close()
	dev, err := p.Open(*device)
	require.NoError(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	defer pd.Close()
	cq, err := dev.CreateCQ(&verbs.CQAttr{Depth: 256})
	require.NoError(t, err)
	defer cq.Close()
	arena, err := pd.NewArena(1 << 16)
	require.NoError(t, err)
	defer arena.Close()
	mr, err := pd.RegMR(arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	defer mr.Close()
	limits := make(chan struct{}, 10)
	srq, err := pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 8, MaxSGE: 1, LimitEvent: func() { limits <- struct{}{} }})
	require.NoError(t, err)
	defer srq.Close()
	recv := func(id uint64) verbs.RecvWR {
		return verbs.RecvWR{ID: id, SGL: []verbs.SGE{{Addr: mr.Addr() + id%100*64, Length: 64, LKey: mr.LKey()}}}
	}
	var wrs []verbs.RecvWR
	for i := range uint64(12) {
		wrs = append(wrs, recv(100+i))
	}
	n, err := srq.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, 8, n, "as many as fit")

	param := &verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7}
	qpAttr := verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 16, MaxRecvWR: 1, MaxInline: 16}
	var senders, receivers []verbs.QP
	var sent []verbs.CQ
	for range 3 {
		id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), Handler: func(verbs.Event) {}})
		require.NoError(t, err)
		defer id.Close()
		scq, err := dev.CreateCQ(&verbs.CQAttr{Depth: 32})
		require.NoError(t, err)
		defer scq.Close()
		attr := qpAttr
		attr.SendCQ, attr.RecvCQ = scq, scq
		qp, err := id.CreateQP(pd, &attr)
		require.NoError(t, err)
		defer qp.Close()
		done := make(chan error, 1)
		go func() {
			_, err := id.Connect(ctx, param)
			done <- err
		}()
		rid, err := l.GetRequest(ctx)
		require.NoError(t, err)
		defer rid.Close()
		attr = qpAttr
		attr.SRQ = srq
		rqp, err := rid.CreateQP(pd, &attr)
		require.NoError(t, err)
		defer rqp.Close()
		_, err = rqp.PostRecv([]verbs.RecvWR{{ID: 1}})
		require.Error(t, err, "its receives are elsewhere")
		require.NoError(t, rid.Accept(param))
		require.NoError(t, <-done)
		senders, receivers, sent = append(senders, qp), append(receivers, rqp), append(sent, scq)
	}
	require.ErrorIs(t, srq.Close(), verbs.ErrBusy)
	require.NoError(t, srq.ArmLimit(4))

	seen := map[uint64]bool{}
	next := uint64(108)
	for i := range 60 {
		msg := fmt.Appendf(nil, "message %d", i)
		k, err := senders[i%3].PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, Inline: msg}})
		require.NoError(t, err)
		require.Equal(t, 1, k)
		require.Equal(t, uint64(i), poll(t, sent[i%3]).ID)
		wc := poll(t, cq)
		require.Equal(t, verbs.Success, wc.Status)
		require.Equal(t, verbs.WCRecv, wc.Op)
		require.Equal(t, receivers[i%3].Num(), wc.QPN)
		require.False(t, seen[wc.ID], "ID %d twice", wc.ID)
		require.True(t, wc.ID >= 100 && wc.ID < next)
		seen[wc.ID] = true
		require.Equal(t, string(msg), string(arena.Bytes()[wc.ID%100*64:][:wc.ByteLen]))
		if i == 5 { // two are left: the limit was passed
			select {
			case <-limits:
			case <-time.After(20 * time.Second):
				require.Fail(t, "the limit was not told")
			}
		}
		if i >= 5 {
			k, err := srq.PostRecv([]verbs.RecvWR{recv(next)})
			require.NoError(t, err)
			require.Equal(t, 1, k)
			next++
		}
	}
}
