package dgram

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// earlyCQ calls Notify before its call that armed it returns.
type earlyCQ struct {
	verbs.ArmPoller
	e    *endpoint
	arms int
}

func (c *earlyCQ) Poll([]verbs.WC) (int, error) { return 0, nil }

func (c *earlyCQ) PollOrArm([]verbs.WC, time.Duration, bool) (int, bool, error) {
	if c.arms++; c.arms == 3 {
		c.e.s.rd.Close(net.ErrClosed)
	}
	c.e.received()
	return 0, true, nil
}

// A Notify that comes at once is not forgotten: the queue is armed again before the reader parks.
func TestNotifyAtOnce(t *testing.T) {
	s := New(&Config{BusyPoll: -1, Intern: func(Addr) net.Addr { return nil }})
	e := &endpoint{s: s}
	cq := &earlyCQ{e: e}
	e.rx.cq, e.rx.one = cq, cq
	eps := []*endpoint{e}
	s.eps.Store(&eps)
	require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
	require.ErrorIs(t, s.BeginRead(), net.ErrClosed)
	s.EndRead()
	require.Equal(t, 3, cq.arms)
}
