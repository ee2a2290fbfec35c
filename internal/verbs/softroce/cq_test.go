package softroce

import (
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

func TestNotifyOnceForEachArm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := 0
		p := newPeer(t, link{notifyA: func() { n++ }})
		p.end.recv(make([]verbs.RecvWR, 5)...)
		arrive := func(i uint32) { p.send(packet(wire.RCSendOnly, peerPSN+i, nil)) }
		arrive(0)
		require.Zero(t, n, "not armed")
		require.NoError(t, p.end.cq.Arm())
		synctest.Wait()
		require.Zero(t, n, "what was there before does not count")
		arrive(1)
		arrive(2)
		require.Equal(t, 1, n)
		require.NoError(t, p.end.cq.Arm())
		require.NoError(t, p.end.cq.Arm())
		arrive(3)
		arrive(4)
		require.Equal(t, 2, n)
		require.Len(t, p.end.completions(), 5)
	})
}

func TestOverrunFailsTheQueueAndItsQueuePairs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		notified := 0
		p := newPeer(t, link{depth: 3, notifyA: func() { notified++ }})
		other, err := p.end.dev.newQP(p.end.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: p.end.cq, RecvCQ: p.end.cq})
		require.NoError(t, err)
		defer other.Close()
		p.end.recv(make([]verbs.RecvWR, 5)...)
		for i := range uint32(3) {
			p.send(packet(wire.RCSendOnly, peerPSN+i, nil))
		}
		require.NoError(t, p.end.cq.Arm())
		require.Zero(t, notified)
		p.send(packet(wire.RCSendOnly, peerPSN+3, nil))
		require.Equal(t, 1, notified)
		var wc [8]verbs.WC
		n, err := p.end.cq.Poll(wc[:])
		require.NoError(t, err)
		require.Equal(t, 3, n, "what was there can still be had")
		_, err = p.end.cq.Poll(wc[:])
		require.ErrorIs(t, err, syscall.ENOSPC)
		for _, q := range []*qp{p.end.q, other} {
			require.Equal(t, stateErr, q.state)
		}
		require.EqualValues(t, 1, p.end.dev.stats.overruns.Load())
	})
}

func TestRingOfCompletionsGrowsToItsDepth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{depth: 100, attr: verbs.QPInitAttr{MaxRecvWR: 200}})
		p.end.recv(make([]verbs.RecvWR, 200)...)
		psn := uint32(peerPSN)
		for range 2 {
			for range 100 {
				p.send(packet(wire.RCSendOnly, psn, nil))
				psn++
			}
			var wc [30]verbs.WC
			got := 0
			for got < 100 {
				n, err := p.end.cq.Poll(wc[:])
				require.NoError(t, err)
				require.NotZero(t, n)
				got += n
			}
			require.Equal(t, 100, got)
		}
	})
}

// TestHandlersNeverRunInsideACallOfTheConsumer holds a lock around every call
// that the handler takes as well.
func TestHandlersNeverRunInsideACallOfTheConsumer(t *testing.T) {
	var mu sync.Mutex
	notes := make(chan bool, 100)
	handler := func() {
		mu.Lock()
		defer mu.Unlock()
		notes <- true
	}
	pa, pb := newPipes()
	a, b := newNode(t, nil, pa, addrA), newNode(t, nil, pb, addrB)
	x, y := connected(a, b, link{notifyA: handler, notifyB: handler, commEstB: handler})
	y.recv(verbs.RecvWR{}, verbs.RecvWR{})
	locked := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	require.NoError(t, x.cq.Arm())
	require.NoError(t, y.cq.Arm())
	locked(func() { x.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled}) })
	locked(func() { require.Len(t, y.completions(), 1) }) // reads the network
	<-notes                                               // of y: established
	<-notes                                               // of y: completion
	locked(func() { require.Len(t, x.completions(), 1) })
	<-notes
	for _, e := range []*end{x, y} {
		require.NoError(t, e.cq.Arm())
		locked(func() { e.recv(verbs.RecvWR{}) })
		locked(func() { require.NoError(t, e.q.ToError()) })
		<-notes
		require.NoError(t, e.cq.Arm())
		locked(func() { e.send(verbs.SendWR{Op: verbs.OpSend}) })
		<-notes
		require.NoError(t, e.cq.Arm())
		locked(func() { e.recv(verbs.RecvWR{}) })
		<-notes
	}
	require.Empty(t, notes)
}

func TestCloseOfACompletionQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{})
		entered, leave := make(chan bool), make(chan bool)
		x, y := connected(a, b, link{notifyA: func() { entered <- true; <-leave }})
		y.recv(verbs.RecvWR{})
		require.ErrorIs(t, x.cq.Close(), verbs.ErrBusy)
		require.NoError(t, x.cq.Arm())
		x.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled})
		<-entered
		require.NoError(t, x.q.Close())
		closed := make(chan error, 1)
		go func() { closed <- x.cq.Close() }()
		synctest.Wait()
		require.Empty(t, closed, "a handler is running")
		leave <- true
		require.NoError(t, <-closed)
		require.NoError(t, x.cq.Close())
		_, err := x.cq.Poll(make([]verbs.WC, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, x.cq.Arm(), net.ErrClosed)
	})
}

func TestNotifyMayCallEverything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{})
		var x, y *end
		got := make(chan outcome, 100)
		x, y = connected(a, b, link{notifyB: func() {
			_ = y.cq.Arm()
			for _, o := range y.outcomes() {
				got <- o
				y.recv(verbs.RecvWR{ID: o.ID + 1})
				y.send(verbs.SendWR{Op: verbs.OpWrite})
				_ = y.dev.Info()
				if o.ID == 3 {
					_ = y.q.Close()
				}
			}
		}})
		y.recv(verbs.RecvWR{ID: 1})
		require.NoError(t, y.cq.Arm())
		for range 3 {
			x.send(verbs.SendWR{Op: verbs.OpSend})
			synctest.Wait()
		}
		require.Len(t, got, 3)
	})
}

func TestHandlerMayCloseAQueueWhoseTurnComes(t *testing.T) {
	for _, own := range []bool{false, true} { // on the notifier's goroutine, or on the network's
		bubble(t, func(t *testing.T) {
			_, a, b := pair(t, 1, simnet.Options{})
			var ends [2]*end
			var peers [2]*end
			called := make(chan int, 2)
			for i := range ends {
				ends[i], peers[i] = connected(a, b, link{psnB: peerPSN, notifyA: func() {
					called <- i
					other := ends[1-i]
					_ = other.q.Close()
					_ = other.cq.Close()
				}})
				require.NoError(t, ends[i].cq.Arm())
			}
			if own {
				a.dev.HandlePackets(slices.Concat(arriving(ends[0]), arriving(ends[1])))
			} else {
				// One overrun fails both at once.
				w := a.dev.begin()
				for _, e := range ends {
					e.recv(verbs.RecvWR{})
					e.q.mu.Lock()
					e.q.fail(w, 0)
					e.q.mu.Unlock()
				}
				w.end(false)
			}
			synctest.Wait()
			require.Len(t, called, 1)
		})
	}
}

// arriving is a packet that completes a receive.
func arriving(e *end) []netio.Packet {
	e.recv(verbs.RecvWR{})
	return []netio.Packet{{Local: addrA, Remote: netipPort(addrB), Data: rawPacket(byte(wire.RCSendOnly), e.q.num, 0)}}
}

func TestCompletionQueueAttributes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, _ := pair(t, 1, simnet.Options{})
		for _, depth := range []int{-1, 0, maxCQE + 1} {
			_, err := a.dev.CreateCQ(&verbs.CQAttr{Depth: depth})
			require.ErrorIs(t, err, syscall.EINVAL)
		}
	})
}
