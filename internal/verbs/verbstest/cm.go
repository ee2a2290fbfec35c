package verbstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var cmTests = []test{
	{"PrivateData", testPrivateData},
	{"PrivateDataTooLong", testPrivateDataTooLong},
	{"Parameters", testParameters},
	{"Reject", testReject},
	{"RejectByClose", testRejectByClose},
	{"NoListener", testNoListener},
	{"AddrInUse", testAddrInUse},
	{"Ports", testPorts},
	{"ListenerClose", testListenerClose},
	{"GetRequest", testGetRequest},
	{"Backlog", testBacklog},
	{"DataBeforeRTU", testDataBeforeRTU},
	{"LateHandler", testLateHandler},
	{"Disconnect", testDisconnect},
	{"DisconnectInHandler", testDisconnectInHandler},
	{"DisconnectCrossing", testDisconnectCrossing},
	{"CloseDisconnects", testCloseDisconnects},
	{"CloseWaitsForHandler", testCloseWaitsForHandler},
	{"CancelConnect", testCancelConnect},
	{"CloseDuringConnect", testCloseDuringConnect},
	{"WrongState", testWrongState},
}

// requirePrivate checks private data as it arrives: what was sent, padded with
// zeros to the size of its field or not at all.
func requirePrivate(t testing.TB, want, got []byte, field int) {
	t.Helper()
	require.LessOrEqual(t, len(got), field)
	require.GreaterOrEqual(t, len(got), len(want))
	require.Equal(t, want, got[:len(want)])
	require.Equal(t, make([]byte, len(got)-len(want)), got[len(want):])
}

func testPrivateData(s *suite, t *testing.T) {
	l := s.listen(t)
	for _, c := range []struct{ req, rep int }{
		{0, 0}, {1, 1}, {verbs.MaxPrivateREQ, verbs.MaxPrivateREP}, {verbs.MaxPrivateREQ - 1, verbs.MaxPrivateREP - 1},
	} {
		oa, ob := s.options(nil), s.options(nil)
		oa.param.PrivateData, ob.param.PrivateData = pattern(c.req, 1), pattern(c.rep, 2)
		a := s.active(t, l.Addr().Port(), oa)
		done := a.connect(s.ctx(t), &oa.param)
		b := s.passive(t, l, ob)
		requirePrivate(t, pattern(c.req, 1), b.id.Request().PrivateData, verbs.MaxPrivateREQ)
		require.NoError(t, b.id.Accept(&ob.param))
		got, err := done()
		require.NoError(t, err)
		requirePrivate(t, pattern(c.rep, 2), got.PrivateData, verbs.MaxPrivateREP)
		a.ping(b)
	}
}

func testPrivateDataTooLong(s *suite, t *testing.T) {
	l := s.listen(t)
	oa, ob := s.options(nil), s.options(nil)
	a := s.active(t, l.Addr().Port(), oa)
	p := oa.param
	p.PrivateData = make([]byte, verbs.MaxPrivateREQ+1)
	_, err := a.id.Connect(s.ctx(t), &p)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Contains(t, err.Error(), fmt.Sprint(verbs.MaxPrivateREQ), "the limit")

	// Nothing was sent, so the identifier may still connect.
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	_, err = l.GetRequest(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	done := a.connect(s.ctx(t), &oa.param)

	b := s.passive(t, l, ob)
	require.ErrorIs(t, b.id.Reject(make([]byte, verbs.MaxPrivateREJ+1)), syscall.EINVAL)
	p = ob.param
	p.PrivateData = make([]byte, verbs.MaxPrivateREP+1)
	err = b.id.Accept(&p)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Contains(t, err.Error(), fmt.Sprint(verbs.MaxPrivateREP), "the limit")
	require.NoError(t, b.id.Accept(&ob.param))
	_, err = done()
	require.NoError(t, err)
	a.ping(b)
}

// testParameters checks what the two sides learn of each other.
func testParameters(s *suite, t *testing.T) {
	l := s.listen(t)
	oa, ob := s.options(nil), s.options(nil)
	oa.param.RetryCount, oa.param.RNRRetryCount = 6, 5
	oa.param.ResponderResources, oa.param.InitiatorDepth = 3, 2
	ob.param.RNRRetryCount = 3
	ob.param.ResponderResources, ob.param.InitiatorDepth = 1, 2
	a := s.active(t, l.Addr().Port(), oa)
	done := a.connect(s.ctx(t), &oa.param)
	b := s.passive(t, l, ob)
	req := b.id.Request()
	require.Equal(t, uint8(6), req.RetryCount)
	require.Equal(t, uint8(5), req.RNRRetryCount)
	// Each side's depth meets the other's resources. A device without READs may say 0.
	limits := func(want, got uint8) {
		t.Helper()
		if got != 0 || s.supports(verbs.OpRead) {
			require.Equal(t, want, got)
		}
	}
	limits(2, req.ResponderResources)
	limits(3, req.InitiatorDepth)
	require.NoError(t, b.id.Accept(&ob.param))
	rep, err := done()
	require.NoError(t, err)
	require.Equal(t, uint8(3), rep.RNRRetryCount)
	limits(2, rep.ResponderResources)
	limits(1, rep.InitiatorDepth)
}

func requireRejected(t testing.TB, err error, reason int) *verbs.RejectError {
	t.Helper()
	var rej *verbs.RejectError
	require.ErrorAs(t, err, &rej)
	require.Equal(t, reason, rej.Reason, "%v", err)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	return rej
}

func testReject(s *suite, t *testing.T) {
	l := s.listen(t)
	for _, n := range []int{0, 1, verbs.MaxPrivateREJ} {
		o := s.options(nil)
		a := s.active(t, l.Addr().Port(), o)
		a.recv(verbs.RecvWR{ID: 1})
		done := a.connect(s.ctx(t), &o.param)
		id := s.request(t, l)
		require.NoError(t, id.Reject(pattern(n, 3)))
		_, err := done()
		rej := requireRejected(t, err, verbs.RejConsumer)
		requirePrivate(t, pattern(n, 3), rej.PrivateData, verbs.MaxPrivateREJ)
		require.NoError(t, id.Close())
		require.NoError(t, a.qp.ToError())
		a.requireFlushed(1)
	}
	// The listener goes on.
	a, b := s.connect(t, l, s.options(nil), s.options(nil))
	a.ping(b)
}

// testRejectByClose gives up a request without an answer.
func testRejectByClose(s *suite, t *testing.T) {
	l := s.listen(t)
	o := s.options(nil)
	a := s.active(t, l.Addr().Port(), o)
	done := a.connect(s.ctx(t), &o.param)
	require.NoError(t, s.request(t, l).Close())
	_, err := done()
	_ = requireRejected(t, err, verbs.RejConsumer)
}

func testNoListener(s *suite, t *testing.T) {
	l := s.listen(t)
	port := l.Addr().Port()
	require.NoError(t, l.Close()) // a port that surely nobody listens on
	o := s.options(nil)
	start := time.Now()
	var err error
	if s.EarlyRefusal {
		_, err = s.Active.Resolve(s.ctx(t), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Device: s.ActiveDevice, Remote: netip.AddrPortFrom(s.Dial, port)})
		require.ErrorIs(t, err, verbs.ErrNoDevice, "others may know somebody who listens")
	} else {
		_, err = s.active(t, port, o).id.Connect(s.ctx(t), &o.param)
	}
	_ = requireRejected(t, err, verbs.RejInvalidServiceID)
	require.Less(t, time.Since(start), s.Timeout/2, "a refusal comes at once")
}

func testAddrInUse(s *suite, t *testing.T) {
	l := s.listen(t)
	_, err := s.Passive.Listen(s.ctx(t), s.listenAttr(l.Addr().Port()))
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	// An address and the wildcard are in each other's way.
	attr := s.listenAttr(l.Addr().Port())
	if s.Listen.IsUnspecified() {
		attr.Local = netip.AddrPortFrom(s.Dial, attr.Local.Port())
	} else {
		wildcard := netip.IPv6Unspecified()
		if s.Listen.Is4() {
			wildcard = netip.IPv4Unspecified()
		}
		attr.Local = netip.AddrPortFrom(wildcard, attr.Local.Port())
	}
	_, err = s.Passive.Listen(s.ctx(t), attr)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "%v beside %v", attr.Local, l.Addr())
	require.NoError(t, l.Close())

	again, err := s.Passive.Listen(s.ctx(t), s.listenAttr(l.Addr().Port()))
	require.NoError(t, err, "the port is free again")
	require.Equal(t, l.Addr(), again.Addr())
	require.NoError(t, again.Close())
}

// testPorts listens on many ports that the provider picks.
func testPorts(s *suite, t *testing.T) {
	seen := map[uint16]bool{}
	for range 50 {
		l := s.listen(t)
		port := l.Addr().Port()
		require.NotZero(t, port)
		require.False(t, seen[port], "port %d twice", port)
		seen[port] = true
	}
}

// testListenerClose closes a listener with a request taken, and with two who
// wait for the next; and one with a request that nobody took.
func testListenerClose(s *suite, t *testing.T) {
	l := s.listen(t)
	oa, ob := s.options(nil), s.options(nil)
	a1 := s.active(t, l.Addr().Port(), oa)
	done1 := a1.connect(s.ctx(t), &oa.param)
	b1 := s.passive(t, l, ob)

	var g group
	for range 2 {
		g.run(func() error {
			if _, err := l.GetRequest(s.ctx(t)); !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("GetRequest of a closed listener: %w", err)
			}
			return nil
		})
	}
	time.Sleep(settle)
	require.NoError(t, l.Close())
	g.wait(t)
	_, err := l.GetRequest(s.ctx(t))
	require.ErrorIs(t, err, net.ErrClosed)
	closeIt(t, "listener", l)

	// The request taken before lives on.
	require.NoError(t, b1.id.Accept(&ob.param))
	_, err = done1()
	require.NoError(t, err)
	a1.ping(b1)

	// One that waits is refused.
	l = s.listen(t)
	a2 := s.active(t, l.Addr().Port(), oa)
	done2 := a2.connect(s.ctx(t), &oa.param)
	require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, s.Timeout, time.Millisecond)
	require.NoError(t, l.Close())
	_, err = done2()
	var rej *verbs.RejectError
	require.ErrorAs(t, err, &rej)
}

func testGetRequest(s *suite, t *testing.T) {
	l := s.listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var g group
	g.run(func() error {
		if _, err := l.GetRequest(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("GetRequest with its context canceled: %w", err)
		}
		return nil
	})
	time.Sleep(settle)
	cancel()
	g.wait(t)
	// A request that comes later is not lost to the one who gave up.
	a, b := s.connect(t, l, s.options(nil), s.options(nil))
	a.ping(b)
}

// testBacklog sends more requests than are kept.
func testBacklog(s *suite, t *testing.T) {
	attr := s.listenAttr(0)
	attr.Backlog = 2
	l, err := s.Passive.Listen(s.ctx(t), attr)
	require.NoError(t, err)
	t.Cleanup(func() { closeIt(t, "listener", l) })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := s.options(nil)
	var dones []func() (*verbs.ConnParam, error)
	for range 5 {
		dones = append(dones, s.active(t, l.Addr().Port(), o).connect(ctx, &o.param))
	}
	require.Eventually(t, func() bool {
		st := l.Stats()
		return st.Requests == 2 && (st.Dropped >= 3 || s.UncountedDrops)
	}, s.Timeout, time.Millisecond)
	time.Sleep(settle)
	require.EqualValues(t, 2, l.Stats().Requests)
	s.request(t, l)
	s.request(t, l)
	cancel()
	for _, done := range dones {
		_, err := done()
		require.Error(t, err)
	}
}

// testDataBeforeRTU sends as soon as the passive side has accepted and the active
// side has connected: either may be first. What comes before a queue pair can take it may be lost until the
// local ACK timeout, seconds, so devices that lose it have fewer rounds.
func testDataBeforeRTU(s *suite, t *testing.T) {
	l := s.listen(t)
	begin := time.Now()
	for i := range uint64(20) {
		if i >= 3 && time.Since(begin) > 6*time.Second {
			break
		}
		oa, ob := s.options(nil), s.options(nil)
		a := s.active(t, l.Addr().Port(), oa)
		fromB := a.span(3000)
		a.recv(verbs.RecvWR{ID: 1, SGL: fromB.sgl()})
		done := a.connect(s.ctx(t), &oa.param)
		b := s.passive(t, l, ob)
		fromA := b.span(3000)
		b.recv(verbs.RecvWR{ID: 2, SGL: fromA.sgl()})
		require.NoError(t, b.id.Accept(&ob.param))
		b.send(verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: b.span(3000).fill(i).sgl()})
		_, err := done()
		require.NoError(t, err)
		a.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, SGL: a.span(3000).fill(i + 100).sgl()})
		a.waitID(1, verbs.Success)
		b.waitID(2, verbs.Success)
		fromB.requireBytes(t, pattern(3000, i))
		fromA.requireBytes(t, pattern(3000, i+100))
		b.waitEvents(verbs.EventEstablished)
		require.Empty(t, a.events.types())
	}
}

// testLateHandler sets the handler when all is over: it hears it all.
func testLateHandler(s *suite, t *testing.T) {
	l := s.listen(t)
	oa, ob := s.options(nil), s.options(nil)
	a := s.active(t, l.Addr().Port(), oa)
	done := a.connect(s.ctx(t), &oa.param)
	id := s.request(t, l)
	ev := newEvents()
	b := s.end(t, id, ev, ob)
	require.NoError(t, id.Accept(&ob.param))
	_, err := done()
	require.NoError(t, err)
	a.ping(b)
	require.NoError(t, a.id.Disconnect())
	a.waitEvents(verbs.EventDisconnected) // the peer's provider has answered,
	time.Sleep(3 * settle)                // and has had the time to tell
	id.SetHandler(ev.add)
	ev.wait(s, t, verbs.EventEstablished, verbs.EventDisconnected)
}

func testDisconnect(s *suite, t *testing.T) {
	for _, side := range []string{"Active", "Passive"} {
		t.Run(side, func(t *testing.T) {
			a, b := s.pair(t)
			b.waitEvents(verbs.EventEstablished)
			x, y, yWant := a, b, []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}
			xWant := []verbs.EventType{verbs.EventDisconnected}
			if side == "Passive" {
				x, y, xWant, yWant = b, a, yWant, xWant
			}
			x.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
			y.recv(verbs.RecvWR{ID: 3})
			require.NoError(t, x.id.Disconnect())
			x.requireFlushed(1, 2)
			y.waitEvents(yWant...)
			x.waitEvents(xWant...)
			y.quiet() // its queue pair is as it was
			require.NoError(t, y.id.Disconnect())
			y.requireFlushed(3)
			require.NoError(t, x.id.Disconnect(), "again")
			require.NoError(t, y.id.Disconnect(), "again")
			time.Sleep(settle)
			x.waitEvents(xWant...)
			y.waitEvents(yWant...)
		})
	}
}

// testDisconnectInHandler disconnects where the peer's disconnect is told.
func testDisconnectInHandler(s *suite, t *testing.T) {
	a, b := s.pair(t)
	told := make(chan error, 1)
	b.id.SetHandler(func(ev verbs.Event) {
		b.events.add(ev)
		if ev.Type == verbs.EventDisconnected {
			told <- b.id.Disconnect()
		}
	})
	b.recv(verbs.RecvWR{ID: 1})
	require.NoError(t, a.id.Disconnect())
	select {
	case err := <-told:
		require.NoError(t, err)
	case <-time.After(s.Timeout):
		require.Fail(t, "no event", "events %v", b.events.types())
	}
	b.requireFlushed(1)
}

// testDisconnectCrossing disconnects both sides at once.
func testDisconnectCrossing(s *suite, t *testing.T) {
	l := s.listen(t)
	for range 20 {
		a, b := s.connect(t, l, s.options(nil), s.options(nil))
		b.waitEvents(verbs.EventEstablished)
		a.recv(verbs.RecvWR{ID: 1})
		b.recv(verbs.RecvWR{ID: 2})
		var g group
		g.run(a.id.Disconnect)
		g.run(b.id.Disconnect)
		g.wait(t)
		a.requireFlushed(1)
		b.requireFlushed(2)
		a.waitEvents(verbs.EventDisconnected)
		b.waitEvents(verbs.EventEstablished, verbs.EventDisconnected)
	}
}

// testCloseDisconnects closes an end: the other is told.
func testCloseDisconnects(s *suite, t *testing.T) {
	for _, side := range []string{"Active", "Passive"} {
		t.Run(side, func(t *testing.T) {
			a, b := s.pair(t)
			b.waitEvents(verbs.EventEstablished)
			x, y, yWant := a, b, []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}
			if side == "Passive" {
				x, y, yWant = b, a, yWant[1:]
			}
			require.NoError(t, x.qp.Close())
			require.NoError(t, x.id.Close())
			before := len(x.events.types())
			y.waitEvents(yWant...)
			require.Len(t, x.events.types(), before, "an event after Close")
		})
	}
}

// testCloseWaitsForHandler closes an identifier whose handler is running.
func testCloseWaitsForHandler(s *suite, t *testing.T) {
	a, b := s.pair(t)
	b.waitEvents(verbs.EventEstablished)
	var running atomic.Bool
	entered := make(chan struct{}, 1)
	b.id.SetHandler(func(verbs.Event) {
		running.Store(true)
		entered <- struct{}{}
		time.Sleep(settle)
		running.Store(false)
	})
	require.NoError(t, a.id.Disconnect())
	select {
	case <-entered:
	case <-time.After(s.Timeout):
		require.Fail(t, "no event")
	}
	require.NoError(t, b.qp.Close())
	require.NoError(t, b.id.Close())
	require.False(t, running.Load(), "the handler runs after Close")
}

// testCancelConnect gives up while the passive side thinks about it.
func testCancelConnect(s *suite, t *testing.T) {
	l := s.listen(t)
	o := s.options(nil)
	a := s.active(t, l.Addr().Port(), o)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := a.id.Connect(ctx, &o.param)
	require.ErrorIs(t, err, context.Canceled, "canceled before")

	for _, deadline := range []bool{false, true} {
		cause := context.Canceled
		a = s.active(t, l.Addr().Port(), o)
		a.recv(verbs.RecvWR{ID: 1})
		ctx, cancel := context.WithCancel(context.Background())
		if deadline {
			cause = context.DeadlineExceeded
			ctx, cancel = context.WithTimeout(context.Background(), 2*settle)
		}
		done := a.connect(ctx, &o.param)
		b := s.passive(t, l, s.options(nil))
		if !deadline {
			cancel()
		}
		start := time.Now()
		_, err = done()
		require.ErrorIs(t, err, cause)
		require.Less(t, time.Since(start), s.Timeout/2, "at once")
		cancel()
		require.NoError(t, a.qp.ToError())
		a.requireFlushed(1)

		// The passive side hears of it: from Accept, or by an event after it.
		time.Sleep(settle)
		if err := b.id.Accept(&o.param); err == nil {
			b.waitEvents(verbs.EventConnectError)
			require.Error(t, b.events.list()[0].Err)
		}
	}
}

// testCloseDuringConnect closes the identifier that connects.
func testCloseDuringConnect(s *suite, t *testing.T) {
	l := s.listen(t)
	o := s.options(nil)
	a := s.active(t, l.Addr().Port(), o)
	done := a.connect(s.ctx(t), &o.param)
	s.request(t, l)
	start := time.Now()
	require.NoError(t, a.qp.Close())
	require.NoError(t, a.id.Close())
	_, err := done()
	require.ErrorIs(t, err, net.ErrClosed)
	require.Less(t, time.Since(start), s.Timeout/2, "at once")
}

// testWrongState calls what is not for the identifier's state.
func testWrongState(s *suite, t *testing.T) {
	l := s.listen(t)
	o := s.options(nil)
	id := s.resolve(t, l.Addr().Port(), nil)
	_, err := id.Connect(s.ctx(t), &o.param)
	require.Error(t, err, "Connect without a queue pair")
	require.Error(t, id.Accept(&o.param), "Accept on the active side")
	require.Error(t, id.Reject(nil), "Reject on the active side")

	a := s.active(t, l.Addr().Port(), o)
	done := a.connect(s.ctx(t), &o.param)
	bid := s.request(t, l)
	require.Error(t, bid.Accept(&o.param), "Accept without a queue pair")
	_, err = bid.Connect(s.ctx(t), &o.param)
	require.Error(t, err, "Connect on the passive side")
	b := s.end(t, bid, newEvents(), o)
	attr := o.init
	attr.SendCQ, attr.RecvCQ = b.cq, b.cq
	_, err = bid.CreateQP(b.pd, &attr)
	require.Error(t, err, "a second queue pair")
	require.NoError(t, bid.Accept(&o.param))
	_, err = done()
	require.NoError(t, err)
	require.Error(t, bid.Accept(&o.param), "Accept twice")
	require.Error(t, bid.Reject(nil), "Reject after Accept")
	_, err = a.id.Connect(s.ctx(t), &o.param)
	require.Error(t, err, "Connect twice")
	a.ping(b)
	b.ping(a)

	require.NoError(t, a.qp.Close())
	require.NoError(t, a.id.Close())
	_, err = a.id.Connect(s.ctx(t), &o.param)
	require.Error(t, err, "Connect after Close")
}
