//go:build guest

package guest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
)

// TestCloseAtOnce closes connections at both ends as soon as they stand: the kernel is done with all of them in seconds. It
// would not be for more than a minute if it were told that one stands whose RTU and DREQ it is about to read.
func TestCloseAtOnce(t *testing.T) {
	p := rdmacore.New(&rdmacore.Config{})
	l, err := p.Listen(t.Context(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(netip.MustParseAddr(*addr), 0)})
	require.NoError(t, err)
	defer l.Close()
	param := &verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7}
	const rounds = 100
	for i := range rounds {
		id, err := p.Resolve(t.Context(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), Handler: func(verbs.Event) {}})
		require.NoError(t, err)
		qp := queuePair(t, id)
		done := make(chan error, 1)
		go func() { // RTU and DREQ, one behind the other
			_, err := id.Connect(t.Context(), param)
			done <- errors.Join(err, id.Close(), qp.Close())
		}()
		rid, err := l.GetRequest(t.Context())
		require.NoError(t, err)
		rqp := queuePair(t, rid)
		require.NoError(t, rid.Accept(param))
		time.Sleep(time.Duration(i) * 5 * time.Millisecond / rounds)
		require.NoError(t, errors.Join(rid.Close(), rqp.Close(), <-done))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	begin := time.Now()
	require.NoError(t, p.Drain(ctx))
	t.Logf("all have ended after %v", time.Since(begin))
}

// queuePair makes a queue pair and what it takes, which lives until the test ends.
func queuePair(t *testing.T, id verbs.CMID) verbs.QP {
	t.Helper()
	pd, err := id.Device().AllocPD()
	require.NoError(t, err)
	cq, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 4})
	require.NoError(t, err)
	qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, qp.Close())
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
	})
	return qp
}
