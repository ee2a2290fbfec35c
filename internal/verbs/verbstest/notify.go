package verbstest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var notifyTests = []test{
	{"OncePerArm", testOncePerArm},
	{"NotForThePast", testNotForThePast},
	{"LostWakeup", testLostWakeup},
	{"InHandler", testInHandler},
	{"CloseWaits", testCloseWaits},
	{"PollOrArm", testPollOrArm},
}

// settle gives a provider time to do what it must not do.
const settle = 30 * time.Millisecond

// deliver sends n empty messages to b and waits until they are acknowledged.
func deliver(a, b *end, n int) {
	a.t.Helper()
	for i := range n {
		b.recv(verbs.RecvWR{ID: uint64(i)})
		a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled})
	}
	a.wait(n)
}

// waitNotified waits for the queue's n-th notification.
func (q *queue) waitNotified(n int64) {
	q.t.Helper()
	timer := time.NewTimer(q.s.Timeout)
	defer timer.Stop()
	for q.notified.Load() < n {
		select {
		case <-q.wake:
		case <-timer.C:
			require.Equal(q.t, n, q.notified.Load(), "notifications")
		}
	}
}

func testOncePerArm(s *suite, t *testing.T) {
	a, b := s.pair(t)
	deliver(a, b, 10)
	time.Sleep(settle)
	require.Zero(t, b.notified.Load(), "never armed")
	require.NoError(t, b.poll())
	require.Len(t, b.ready, 10)
	for range 5 {
		base := b.notified.Load()
		require.NoError(t, b.cq.Arm())
		require.NoError(t, b.cq.Arm(), "twice is once")
		deliver(a, b, 10)
		b.waitNotified(base + 1)
		time.Sleep(settle)
		require.Equal(t, base+1, b.notified.Load(), "one for each Arm")
		b.ready = nil
		require.NoError(t, b.poll())
		require.Len(t, b.ready, 10)
	}
}

// testNotForThePast arms while completions wait: they raise nothing, the next does.
func testNotForThePast(s *suite, t *testing.T) {
	a, b := s.pair(t)
	deliver(a, b, 3)
	time.Sleep(settle) // a completion may come after the peer's acknowledgement
	require.NoError(t, b.cq.Arm())
	time.Sleep(settle)
	require.Zero(t, b.notified.Load())
	deliver(a, b, 1)
	b.waitNotified(1)
	require.NoError(t, b.poll())
	require.Len(t, b.ready, 4)
}

// testLostWakeup plays ping-pong, each side parking for each message. One
// notification lost would stop it.
func testLostWakeup(s *suite, t *testing.T) {
	const rounds = 1000
	a, b := s.pair(t, func(o *options) { o.init.MaxSendWR, o.depth = rounds, 2*rounds }) // nothing is signaled
	var g group
	play := func(e *end, first bool) func() error {
		return func() error {
			for i := range rounds {
				if first {
					if _, err := e.qp.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend}}); err != nil {
						return err
					}
				}
				wcs, err := e.next(1)
				if err != nil {
					return err
				}
				if err := wcs[0].Status; err != verbs.Success {
					return err
				}
				if _, err := e.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i)}}); err != nil {
					return err
				}
				if !first {
					wr := verbs.SendWR{ID: uint64(i), Op: verbs.OpSend}
					if _, err := e.qp.PostSend([]verbs.SendWR{wr}); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	a.recv(verbs.RecvWR{}, verbs.RecvWR{})
	b.recv(verbs.RecvWR{}, verbs.RecvWR{})
	g.run(play(a, true))
	g.run(play(b, false))
	g.wait(t)
}

// testInHandler runs one side in its Notify alone: it polls, posts and arms there.
func testInHandler(s *suite, t *testing.T) {
	const rounds = 300
	l := s.listen(t)
	oa := s.options(nil)
	oa.init.MaxSendWR = rounds // nothing is signaled
	a := s.active(t, l.Addr().Port(), oa)
	done := a.connect(s.ctx(t), &oa.param)

	id := s.request(t, l)
	var qp atomic.Value
	var cq atomic.Value
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	handle := func() {
		for armed := false; ; armed = !armed {
			var wcs [4]verbs.WC
			n, err := cq.Load().(verbs.CQ).Poll(wcs[:])
			if err != nil {
				fail(err)
				return
			}
			for _, wc := range wcs[:n] {
				if wc.Status == verbs.WRFlushErr {
					return
				}
				q := qp.Load().(verbs.QP)
				if _, err := q.PostRecv([]verbs.RecvWR{{ID: wc.ID}}); err != nil {
					fail(err)
				}
				if _, err := q.PostSend([]verbs.SendWR{{ID: wc.ID, Op: verbs.OpSendWithImm, Imm: wc.Imm + 1}}); err != nil {
					fail(err)
				}
			}
			if n > 0 {
				armed = true
				continue
			}
			if armed {
				return
			}
			if err := cq.Load().(verbs.CQ).Arm(); err != nil {
				fail(err)
				return
			}
		}
	}
	c, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 2 * rounds, Notify: handle})
	require.NoError(t, err)
	t.Cleanup(func() { closeIt(t, "CQ", c) })
	cq.Store(c)
	ob := s.options(nil)
	ob.init.MaxSendWR = rounds
	ob.init.SendCQ, ob.init.RecvCQ = c, c
	b := s.end(t, id, newEvents(), ob)
	qp.Store(b.qp)
	b.recv(verbs.RecvWR{ID: 0}, verbs.RecvWR{ID: 1})
	require.NoError(t, c.Arm())
	require.NoError(t, id.Accept(&ob.param))
	_, err = done()
	require.NoError(t, err)

	a.recv(verbs.RecvWR{}, verbs.RecvWR{})
	for i := range uint32(rounds) {
		a.send(verbs.SendWR{Op: verbs.OpSendWithImm, Imm: 2 * i})
		wcs, err := a.next(1)
		if err != nil {
			select {
			case err = <-failed:
			default:
			}
		}
		require.NoError(t, err)
		require.Equal(t, 2*i+1, wcs[0].Imm)
		a.recv(verbs.RecvWR{})
	}
}

// testCloseWaits closes a queue whose Notify is running.
func testCloseWaits(s *suite, t *testing.T) {
	for range 10 {
		l := s.listen(t)
		oa := s.options(nil)
		a := s.active(t, l.Addr().Port(), oa)
		done := a.connect(s.ctx(t), &oa.param)
		id := s.request(t, l)

		var running, calls atomic.Int32
		entered := make(chan struct{}, 1)
		c, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 8, Notify: func() {
			running.Store(1)
			calls.Add(1)
			entered <- struct{}{}
			time.Sleep(5 * time.Millisecond)
			running.Store(0)
		}})
		require.NoError(t, err)
		t.Cleanup(func() { closeIt(t, "CQ", c) })
		require.NoError(t, c.Arm())
		ob := s.options(nil)
		ob.init.SendCQ, ob.init.RecvCQ = c, c
		b := s.end(t, id, newEvents(), ob)
		require.NoError(t, id.Accept(&ob.param))
		_, err = done()
		require.NoError(t, err)

		b.recv(verbs.RecvWR{})
		a.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled})
		a.wait(1)
		select {
		case <-entered:
		case <-time.After(s.Timeout):
			require.Fail(t, "no notification")
		}
		require.NoError(t, b.qp.Close())
		require.NoError(t, c.Close())
		require.Zero(t, running.Load(), "Notify runs after Close")
		require.Equal(t, int32(1), calls.Load())
	}
}

// testPollOrArm has the one call of queues that have it do what Poll and Arm do.
func testPollOrArm(s *suite, t *testing.T) {
	a, b := s.pair(t)
	q, ok := b.cq.(verbs.ArmPoller)
	if !ok {
		t.Skip("calls of this provider are cheap")
	}
	wcs := make([]verbs.WC, 8)
	look := func(spin time.Duration, arm bool, want int, wantArmed bool) {
		t.Helper()
		n, armed, err := q.PollOrArm(wcs, spin, arm)
		require.NoError(t, err)
		require.Equal(t, want, n)
		require.Equal(t, wantArmed, armed)
	}
	look(0, false, 0, false)
	look(0, true, 0, true)
	deliver(a, b, 3)
	b.waitNotified(1)
	time.Sleep(settle)
	look(0, true, 3, false)
	deliver(a, b, 1)
	time.Sleep(settle)
	require.EqualValues(t, 1, b.notified.Load(), "found something, so not armed")
	look(time.Hour, true, 1, false)
	start := time.Now()
	look(time.Hour, true, 0, true)
	require.Less(t, time.Since(start), time.Minute, "the provider bounds it")
	deliver(a, b, 1)
	b.waitNotified(2)
	time.Sleep(settle)
	look(0, false, 1, false)
}
