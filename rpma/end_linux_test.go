package rpma_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/rpma"
)

// TestEachEvent: what the connection manager tells of a connection that stands, and what the program hears of it.
func TestEachEvent(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	for name, x := range map[string]struct {
		tell verbs.Event
		want rpma.Event
		err  error
		log  bool
	}{
		"disconnected":             {verbs.Event{Type: verbs.EventDisconnected}, rpma.EventClosed, io.EOF, false},
		"disconnected by a fault":  {verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, rpma.EventClosed, syscall.ECONNRESET, false},
		"device removed":           {verbs.Event{Type: verbs.EventDeviceRemoval}, rpma.EventLost, syscall.ENODEV, true},
		"established once more":    {verbs.Event{Type: verbs.EventEstablished}, rpma.EventUndefined, nil, false},
		"an error of the past":     {verbs.Event{Type: verbs.EventConnectError, Err: syscall.ETIMEDOUT}, rpma.EventUndefined, nil, false},
		"another hardware address": {verbs.Event{Type: verbs.EventAddrChange}, rpma.EventUndefined, nil, false},
		"a number of no event":     {verbs.Event{Type: 200}, rpma.EventUndefined, nil, false},
	} {
		var log bytes.Buffer
		rpma.SetLogger(slog.New(slog.NewTextHandler(&log, nil)))
		c, s := pair(t, p, q, pairOptions{})
		number := c.QPNum()
		ev, err := c.NextEvent(t.Context())
		require.NoError(t, err)
		require.Equal(t, rpma.EventEstablished, ev)
		rpma.Tell(c, x.tell)
		if x.want == rpma.EventUndefined {
			require.NoError(t, c.Err(), name)
			require.NoError(t, s.PostRecv(rpma.Local{}, 1))
			require.NoError(t, c.Do(t.Context(), rpma.Send(rpma.Local{})), name)
			require.NoError(t, c.Disconnect())
			x.want, x.err = rpma.EventClosed, net.ErrClosed
		}
		ev, err = c.NextEvent(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, x.want, ev, name)
		require.ErrorIs(t, c.Err(), x.err, name)
		rpma.Tell(c, x.tell) // a second time, behind the end
		_, err = c.NextEvent(t.Context())
		require.ErrorIs(t, err, rpma.ErrNoEvent, name)
		<-s.Done() // the peer is told in any case
		require.Equal(t, number, c.QPNum(), "%s: the number stays", name)
		require.NoError(t, c.Close())
		require.Equal(t, number, c.QPNum(), "%s: likewise", name)
		rpma.SetLogger(nil)
		if !x.log {
			require.Empty(t, log.String(), name)
			continue
		}
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "connection lost")
		require.Contains(t, log.String(), c.RemoteAddr().String())
	}
}

// patient is a provider that finds out the way to nobody.
type patient struct {
	*softroce.Provider
	took chan time.Duration
}

func (p patient) Resolve(ctx context.Context, _ *verbs.CMIDAttr) (verbs.CMID, error) {
	start := time.Now()
	<-ctx.Done()
	p.took <- time.Since(start)
	return nil, ctx.Err()
}

// TestResolveTimeout: an address and the route to it take as long as librpma's default says, or as was said, once each.
func TestResolveTimeout(t *testing.T) {
	for name, x := range map[string]struct {
		limit, ctx, want time.Duration
	}{
		"default": {0, time.Hour, 2 * time.Second},
		"short":   {time.Millisecond, time.Hour, 2 * time.Millisecond},
		"long":    {time.Minute, time.Hour, 2 * time.Minute},
		"none":    {-1, time.Hour, time.Hour},
		"context": {time.Minute, time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := netip.MustParseAddr("10.0.0.1")
			p := patient{softroce.New(&softroce.Config{
				Name: "sim0", Open: simnet.New(1, simnet.Options{}).Host(a).Open, Rand: simnet.Random(1),
			}), make(chan time.Duration, 1)}
			defer cm.Replace(&cm.Manager{Providers: []verbs.Provider{p}})()
			ds, err := rpma.Devices()
			require.NoError(t, err)
			peer, err := rpma.NewPeer(&ds[0])
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), x.ctx)
			defer cancel()
			_, err = peer.NewConnReq(ctx, "10.0.0.2:7", &rpma.ConnConfig{ResolveTimeout: x.limit})
			assert.ErrorIs(t, err, context.DeadlineExceeded, name)
			assert.Equal(t, x.want, <-p.took, name)
			require.NoError(t, peer.Close())
			require.NoError(t, p.Drain(t.Context()))
		})
	}
}

// TestDefaults are librpma's.
func TestDefaults(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	for _, cfg := range []*rpma.ConnConfig{nil, {}} {
		c, s := pair(t, p, q, pairOptions{client: cfg, server: cfg})
		require.Nil(t, c.RecvCQ())
		_, _, err := c.Wait(t.Context())
		require.ErrorIs(t, err, rpma.ErrNotSharedChannel)
		n := 0
		for ; s.PostRecv(rpma.Local{}, 0) == nil; n++ {
		}
		require.Equal(t, 10, n, "receives")
		n = 0
		for op := rpma.Send(rpma.Local{}); ; n++ {
			if _, err := c.Post(op); err != nil {
				require.ErrorIs(t, err, rpma.ErrQueueFull)
				break
			}
		}
		require.Equal(t, 10, n, "operations")
	}
	for _, cfg := range []*rpma.SRQConfig{nil, {}} {
		srq, err := p.NewSRQ(cfg)
		require.NoError(t, err)
		require.NotNil(t, srq.CQ())
		n := 0
		for ; srq.PostRecv(rpma.Local{}, 0) == nil; n++ {
		}
		require.Equal(t, 20, n, "receives that are shared")
		require.NoError(t, srq.Close())
	}
}
