//go:build guest && cgo

package rdmacore

import (
	"context"
	"flag"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var guestAddr = flag.String("addr", "10.9.0.1", "an address of an RDMA device")

// guestEnd is one end of a connection, with queues of its own, or receives from a shared queue.
type guestEnd struct {
	id     *cmid
	cq     *cq
	qp     *qp
	events chan verbs.Event
	notes  chan struct{}
}

// guestWorld is a device with connections.
type guestWorld struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // of one test
	p   *Provider
	l   verbs.Listener
	dev *device
	pd  verbs.PD
	srq verbs.SRQ

	limits chan struct{}
}

func newGuestWorld(t *testing.T) *guestWorld {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	w := &guestWorld{t: t, ctx: ctx, p: New(&Config{}), limits: make(chan struct{}, 1)}
	var err error
	w.l, err = w.p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(netip.MustParseAddr(*guestAddr), 0)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.l.Close()) })
	return w
}

func (w *guestWorld) end(id verbs.CMID, shared bool) *guestEnd {
	e := &guestEnd{id: id.(*cmid), events: make(chan verbs.Event, 10), notes: make(chan struct{}, 10)}
	if w.dev == nil {
		w.dev = e.id.dev
		var err error
		w.pd, err = w.dev.AllocPD()
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, w.pd.Close()) })
		w.srq, err = w.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 16, MaxSGE: 1, LimitEvent: func() { w.limits <- struct{}{} }})
		require.NoError(w.t, err)
		w.t.Cleanup(func() { require.NoError(w.t, w.srq.Close()) })
		_, err = w.srq.PostRecv(make([]verbs.RecvWR, 16))
		require.NoError(w.t, err)
	}
	c, err := w.dev.CreateCQ(&verbs.CQAttr{Depth: 64, Notify: func() { e.notes <- struct{}{} }})
	require.NoError(w.t, err)
	e.cq = c.(*cq)
	attr := verbs.QPInitAttr{Type: verbs.RC, SendCQ: c, RecvCQ: c, MaxSendWR: 8, MaxRecvWR: 8}
	if shared {
		attr.SRQ = w.srq
	}
	q, err := id.CreateQP(w.pd, &attr)
	require.NoError(w.t, err)
	e.qp = q.(*qp)
	id.SetHandler(func(ev verbs.Event) { e.events <- ev })
	w.t.Cleanup(func() {
		require.NoError(w.t, q.Close())
		require.NoError(w.t, c.Close())
		require.NoError(w.t, id.Close())
	})
	if !shared {
		n, err := q.PostRecv(make([]verbs.RecvWR, 4))
		require.NoError(w.t, err)
		require.Equal(w.t, 4, n)
	}
	require.NoError(w.t, c.Arm())
	return e
}

// pair makes a connection; b's receives are those of the shared queue if shared says so.
func (w *guestWorld) pair(shared bool) (a, b *guestEnd) {
	id, err := w.p.Resolve(w.ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: w.l.Addr()})
	require.NoError(w.t, err)
	a = w.end(id, false)
	done := make(chan error, 1)
	param := &verbs.ConnParam{RetryCount: 1, RNRRetryCount: 1}
	go func() {
		_, err := id.Connect(w.ctx, param)
		done <- err
	}()
	rid, err := w.l.GetRequest(w.ctx)
	require.NoError(w.t, err)
	b = w.end(rid, shared)
	require.NoError(w.t, rid.Accept(param))
	require.NoError(w.t, <-done)
	return a, b
}

// next returns the next completion, or the failure of the queue.
func (e *guestEnd) next(w *guestWorld) (verbs.WC, error) {
	var wc [1]verbs.WC
	for w.ctx.Err() == nil {
		n, err := e.cq.Poll(wc[:])
		if n == 1 || err != nil {
			return wc[0], err
		}
		time.Sleep(time.Millisecond)
	}
	w.t.Fatal("no completion")
	return wc[0], nil
}

// ping sends an empty message, which arrives.
func (w *guestWorld) ping(a, b *guestEnd) {
	w.t.Helper()
	n, err := a.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled}})
	require.NoError(w.t, err)
	require.Equal(w.t, 1, n)
	for _, e := range []*guestEnd{a, b} {
		wc, err := e.next(w)
		require.NoError(w.t, err)
		require.Equal(w.t, verbs.Success, wc.Status)
	}
}

// TestAsyncEvents: each event ends the connections that it is about, and no other, and they learn of it without
// having asked: what they have posted is flushed, or their queue fails.
func TestAsyncEvents(t *testing.T) {
	for event, e := range asyncKinds {
		t.Run(e.name, func(t *testing.T) {
			w := newGuestWorld(t)
			a, b := w.pair(true)
			c, d := w.pair(false)
			w.ping(a, b)
			w.ping(c, d)
			kind := coreAsyncKind(event)
			require.Equal(t, e.kind, kind)
			deliver := func(token uint64) { w.dev.asyncEvent(kind, token) }
			switch kind {
			case asyncCQ:
				drained(b.notes)
				deliver(b.cq.token)
				<-b.notes
				_, err := b.next(w)
				require.ErrorIs(t, err, syscall.ENOSPC)
			case asyncQP:
				deliver(d.qp.token)
				flushed(w, d)
				w.ping(a, b)
				return
			case asyncSRQ:
				deliver(w.srq.(*srq).token)
				// rdma_rxe does not flush what is in a shared queue, so the sends tell.
				require.True(t, b.qp.failed.Load())
				_, err := b.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled}})
				require.NoError(t, err)
				flushed(w, b)
			case asyncSRQLimit:
				deliver(w.srq.(*srq).token)
				<-w.limits
				w.ping(a, b)
			case asyncCommEst:
				deliver(b.qp.token)
				w.ping(a, b)
			case asyncDevice:
				drained(b.notes, c.notes)
				deliver(0)
				<-b.notes // of those that were armed and of those that were not
				<-c.notes
				for _, e := range []*guestEnd{a, b, c, d} {
					_, err := e.next(w)
					require.ErrorIs(t, err, syscall.ENODEV)
					_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}})
					require.ErrorIs(t, err, syscall.ENODEV)
				}
				// The next one opens the device afresh: here it is there.
				again := &guestWorld{t: t, ctx: w.ctx, p: w.p, l: w.l}
				a, b = again.pair(false)
				require.NotSame(t, w.dev, again.dev)
				again.ping(a, b)
				return
			default:
				deliver(0)
				w.ping(a, b)
			}
			w.ping(c, d)
			require.Empty(t, c.events)
		})
	}
}

// flushed wants the next completion to be of a request that was flushed.
func flushed(w *guestWorld, e *guestEnd) {
	w.t.Helper()
	wc, err := e.next(w)
	require.NoError(w.t, err)
	require.Equal(w.t, verbs.WRFlushErr, wc.Status)
}

func drained(chs ...chan struct{}) {
	for _, ch := range chs {
		for len(ch) > 0 {
			<-ch
		}
	}
}
