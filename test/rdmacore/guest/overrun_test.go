//go:build guest

package guest

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestOverrun lets far more complete than a queue holds, which may be more than was asked for: what is there comes
// out first, then the failure, which is notified.
func TestOverrun(t *testing.T) {
	p := provider(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(netip.MustParseAddr(*addr), 0)})
	require.NoError(t, err)
	defer l.Close()
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), Handler: func(verbs.Event) {}})
	require.NoError(t, err)
	defer id.Close()
	dev := id.Device()
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	defer pd.Close()
	notified := make(chan struct{}, 10)
	queue := func(depth int) verbs.CQ {
		cq, err := dev.CreateCQ(&verbs.CQAttr{Depth: depth, Notify: func() { notified <- struct{}{} }})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cq.Close()) })
		return cq
	}
	scq, small := queue(128), queue(4)
	qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: scq, RecvCQ: scq, MaxSendWR: 64, MaxRecvWR: 1})
	require.NoError(t, err)
	defer qp.Close()
	param := &verbs.ConnParam{RetryCount: 1, RNRRetryCount: 1}
	done := make(chan error, 1)
	go func() {
		_, err := id.Connect(ctx, param)
		done <- err
	}()
	rid, err := l.GetRequest(ctx)
	require.NoError(t, err)
	defer rid.Close()
	rqp, err := rid.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: scq, RecvCQ: small, MaxSendWR: 1, MaxRecvWR: 64})
	require.NoError(t, err)
	defer rqp.Close()
	n, err := rqp.PostRecv(make([]verbs.RecvWR, 64))
	require.NoError(t, err)
	require.Equal(t, 64, n)
	require.NoError(t, rid.Accept(param))
	require.NoError(t, <-done)
	sends := make([]verbs.SendWR, 60)
	for i := range sends {
		sends[i].Op = verbs.OpSend
	}
	n, err = qp.PostSend(sends)
	require.NoError(t, err)
	require.Equal(t, len(sends), n)
	select {
	case <-notified: // of the failure: nothing was armed
	case <-ctx.Done():
		require.Fail(t, "the overrun was not told")
	}
	var wcs [64]verbs.WC
	n, err = small.Poll(wcs[:])
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 4)
	require.Less(t, n, 60)
	for deadline := time.Now().Add(20 * time.Second); err == nil && time.Now().Before(deadline); {
		_, err = small.Poll(wcs[:])
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
}
