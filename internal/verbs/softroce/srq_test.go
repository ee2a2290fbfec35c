package softroce

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

func (n *node) newSRQ(attr verbs.SRQAttr) *srq {
	s, err := n.pd.CreateSRQ(&attr)
	require.NoError(n.t, err)
	n.closers = append(n.closers, s)
	return s.(*srq)
}

func (s *srq) mustPost(t testing.TB, wrs ...verbs.RecvWR) {
	t.Helper()
	n, err := s.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

// newSRQPeer is newPeer with an end that takes from a shared queue.
func newSRQPeer(t *testing.T, attr verbs.SRQAttr) (*peer, *srq) {
	p := newPeer(t, link{mtu: 256, srq: &attr})
	return p, p.end.q.srq
}

// TestSRQTakenReceive: a message has its receive from its first packet on. It is flushed with the queue pair; the others stay.
func TestSRQTakenReceive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := newSRQPeer(t, verbs.SRQAttr{MaxWR: 4})
		for i := range uint64(3) {
			s.mustPost(t, verbs.RecvWR{ID: i, SGL: p.end.sgl(int(1000*i), 1000)})
		}
		full := make([]byte, 256)
		p.send(ask(packet(wire.RCSendOnly, peerPSN, full)), packet(wire.RCSendFirst, peerPSN+1, full))
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeACK, 1}}, p.answers())
		require.Equal(t, []outcome{{0, 0}}, p.end.outcomes())
		require.Equal(t, 1, s.rq.len())
		require.NoError(t, p.end.q.ToError())
		require.Equal(t, []outcome{{1, verbs.WRFlushErr}}, p.end.outcomes())
		require.Equal(t, 1, s.rq.len())
		require.NoError(t, p.end.q.ToError())
		require.Empty(t, p.end.outcomes())
		s.mustPost(t, verbs.RecvWR{ID: 4}, verbs.RecvWR{ID: 5}, verbs.RecvWR{ID: 6}) // not flushed
		require.Empty(t, p.end.outcomes())
	})
}

// TestSRQGivenBack: a queue pair that is closed in the middle of a message gives its receive back, the oldest again, even if others
// took all the room meanwhile.
func TestSRQGivenBack(t *testing.T) {
	for _, depth := range []int{2, 4, 5} {
		bubble(t, func(t *testing.T) {
			p, s := newSRQPeer(t, verbs.SRQAttr{MaxWR: depth})
			s.mustPost(t, verbs.RecvWR{ID: 100, SGL: p.end.sgl(0, 1000)})
			p.send(packet(wire.RCSendFirst, peerPSN, make([]byte, 256)))
			require.Zero(t, s.rq.len())
			for i := range depth {
				s.mustPost(t, verbs.RecvWR{ID: uint64(i)})
			}
			require.NoError(t, p.end.q.Close())
			require.Equal(t, depth+1, s.rq.len())
			require.Empty(t, p.end.completions())
			n, err := s.PostRecv([]verbs.RecvWR{{}})
			require.NoError(t, err)
			require.Zero(t, n)
			require.Equal(t, uint64(100), s.rq.at(s.rq.head).id)
			require.Len(t, s.rq.at(s.rq.head).sgl, 1)
			for i := range depth {
				require.Equal(t, uint64(i), s.rq.at(s.rq.head+1+uint32(i)).id)
			}
		})
	}
}

// TestSRQDuplicates: what comes twice takes one receive, and what meets none is answered by an RNR NAK until there is one.
func TestSRQDuplicates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, s := newSRQPeer(t, verbs.SRQAttr{MaxWR: 8})
		full := make([]byte, 256)
		first, last := packet(wire.RCSendFirst, peerPSN, full), ask(packet(wire.RCSendLast, peerPSN+1, full[:4]))
		rnr := answer{peerPSN, wire.SyndromeRNR | verbs.DefaultRNRTimer, 0}
		p.send(first, last)
		require.Equal(t, []answer{rnr}, p.answers())
		p.send(first, last)
		require.Equal(t, []answer{rnr}, p.answers())
		require.EqualValues(t, 2, p.end.dev.stats.notReady.Load())
		s.mustPost(t, verbs.RecvWR{ID: 1, SGL: p.end.sgl(0, 300)}, verbs.RecvWR{ID: 2}, verbs.RecvWR{ID: 3})
		p.send(first)
		p.send(first, last)
		p.send(first, last, last)
		got := p.answers()
		require.Equal(t, answer{peerPSN + 1, wire.SyndromeACK, 1}, got[len(got)-1])
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		only := ask(p.writeTo(packet(wire.RCWriteOnlyImm, peerPSN+2, nil), 0, 0))
		p.send(only)
		p.send(only)
		require.Equal(t, []outcome{{2, 0}}, p.end.outcomes())
		require.Equal(t, 1, s.rq.len())
	})
}

// TestSRQLimitAtOnce: a queue that is below the limit when it is armed would, if it is empty, never fall below it.
func TestSRQLimitAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Int32
		p, s := newSRQPeer(t, verbs.SRQAttr{MaxWR: 8, LimitEvent: func() { told.Add(1) }})
		require.NoError(t, s.ArmLimit(1))
		synctest.Wait()
		require.EqualValues(t, 1, told.Load())
		s.mustPost(t, verbs.RecvWR{}, verbs.RecvWR{})
		p.send(packet(wire.RCSendOnly, peerPSN, nil), packet(wire.RCSendOnly, peerPSN+1, nil))
		require.EqualValues(t, 1, told.Load(), "once for each time")
		require.ErrorIs(t, s.ArmLimit(9), syscall.EINVAL)
		// A closed queue tells nothing.
		s.mustPost(t, verbs.RecvWR{})
		require.NoError(t, s.ArmLimit(1))
		require.NoError(t, p.end.q.Close())
		s.mu.Lock()
		s.limit = 8
		s.checkLimit()
		s.closed = true
		s.mu.Unlock()
		synctest.Wait()
		require.EqualValues(t, 1, told.Load())
		s.mu.Lock()
		s.closed = false
		s.mu.Unlock()
	})
}

func TestSRQOfAnotherDevice(t *testing.T) {
	_, a, b := pair(t, 1, simnet.Options{})
	s := b.newSRQ(verbs.SRQAttr{})
	cq, err := a.dev.CreateCQ(&verbs.CQAttr{Depth: 1})
	require.NoError(t, err)
	attr := verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: s}
	_, err = a.dev.newQP(a.pd, &attr)
	require.ErrorIs(t, err, syscall.EINVAL)
	// What a failure had taken is given back.
	attr.SRQ = a.newSRQ(verbs.SRQAttr{})
	require.NoError(t, attr.SRQ.Close())
	_, err = a.dev.newQP(a.pd, &attr)
	require.ErrorIs(t, err, errClosedSRQ)
	require.NoError(t, cq.Close())
}

// TestSRQOnBadNetwork lets several connections take from one queue while the network loses, doubles and mixes up their packets:
// every message has one receive, and every receive one message.
func TestSRQOnBadNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const ends, messages = 4, 150
		_, a, b := pair(t, 3, simnet.Options{
			Loss: 0.02, Dup: 0.02, Reorder: 0.05, Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond,
		})
		var limits atomic.Int32
		s := b.newSRQ(verbs.SRQAttr{MaxWR: 16, LimitEvent: func() { limits.Add(1) }})
		var from, to [ends]*end
		for i := range from {
			l := link{attr: verbs.QPInitAttr{MaxSendWR: messages}, mtu: 256, psnA: 0xFFFFF0, psnB: uint32(i)}
			l.defaults()
			x, y := a.newEnd(l.attr, l.depth, nil), b.newEnd(verbs.QPInitAttr{SRQ: s}, l.depth, nil)
			x.connect(y, l)
			from[i], to[i] = x, y
			var wrs []verbs.SendWR
			for k := range messages {
				wrs = append(wrs, verbs.SendWR{
					ID: uint64(k), Op: verbs.OpSendWithImm, Imm: uint32(k), Flags: verbs.Signaled, SGL: a.sgl(k, []int{0, 1, 256, 700}[k%4]),
				})
			}
			x.send(wrs...)
		}
		next, seen := uint64(0), map[uint64]bool{}
		for done := 0; done < ends*messages; {
			for {
				n, err := s.PostRecv([]verbs.RecvWR{{ID: next, SGL: b.sgl(int(next%16)*1000, 700)}})
				require.NoError(t, err)
				if n == 0 {
					break
				}
				next++
			}
			require.NoError(t, s.ArmLimit(8))
			time.Sleep(100 * time.Microsecond)
			for i, y := range to {
				for _, wc := range y.completions() {
					require.Equal(t, verbs.Success, wc.Status)
					require.Equal(t, y.q.num, wc.QPN)
					require.False(t, seen[wc.ID], "receive %d twice", wc.ID)
					seen[wc.ID] = true
					require.EqualValues(t, []int{0, 1, 256, 700}[wc.Imm%4], wc.ByteLen, "message %d of %d", wc.Imm, i)
					done++
				}
			}
		}
		require.Positive(t, limits.Load())
		for _, x := range from {
			for {
				time.Sleep(time.Millisecond)
				if x.q.sq.len() == 0 {
					break
				}
			}
			require.Len(t, x.outcomes(), messages)
		}
		require.LessOrEqual(t, s.rq.len(), 16)
	})
}

// TestSRQDomains: keys of receives are those of the queue's domain (IBTA 10.2.9), whatever queue pair takes them.
func TestSRQDomains(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{})
		other, err := b.dev.AllocPD()
		require.NoError(t, err)
		sq, err := other.CreateSRQ(&verbs.SRQAttr{})
		require.NoError(t, err)
		l := link{}
		l.defaults()
		x, y := a.newEnd(l.attr, 8, nil), b.newEnd(verbs.QPInitAttr{SRQ: sq}, 8, nil)
		x.connect(y, l)
		sq.(*srq).mustPost(t, verbs.RecvWR{ID: 1, SGL: b.sgl(0, 8)})
		x.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: a.sgl(0, 8)})
		time.Sleep(time.Second)
		require.Equal(t, []outcome{{1, verbs.LocProtErr}}, y.outcomes())
		require.Equal(t, []outcome{{2, verbs.RemOpErr}}, x.outcomes())
		require.True(t, errors.Is(sq.Close(), verbs.ErrBusy))
		require.NoError(t, y.q.Close())
		require.ErrorIs(t, other.Close(), verbs.ErrBusy)
		require.NoError(t, sq.Close())
		require.NoError(t, other.Close())
	})
}

// TestSRQBit: a peer is told that a queue pair takes from a shared queue (IBTA 12.6.5, 12.6.8).
func TestSRQBit(t *testing.T) {
	for _, c := range []struct{ active, passive bool }{{false, false}, {true, false}, {false, true}} {
		bubble(t, func(t *testing.T) {
			n := newCMNet(simnet.Options{})
			var req, rep atomic.Int32 // bit and its value
			n.Filter(func(f *simnet.Frame) bool {
				if isAttr(ibcm.AttrREQ)(f) {
					req.Store(2 + int32(madOf(f.Data)[24+51]>>3&1))
				} else if isAttr(ibcm.AttrREP)(f) {
					rep.Store(2 + int32(madOf(f.Data)[24+27]>>4&1))
				}
				return false
			})
			l := mustListen(t, n.b, netipPort(addrB), nil)
			x := resolveSide(t, n.a, l.Addr())
			shared := func(s *side) *srq {
				sq, err := s.pd.CreateSRQ(&verbs.SRQAttr{})
				require.NoError(t, err)
				require.NoError(t, sq.(*srq).use())
				s.qp.(*qp).srq = sq.(*srq)
				return sq.(*srq)
			}
			var queues []*srq
			if c.active {
				queues = append(queues, shared(x))
			}
			done := x.dial(background())
			id, err := l.GetRequest(background())
			require.NoError(t, err)
			y := newSide(t, id)
			if c.passive {
				queues = append(queues, shared(y))
			}
			require.NoError(t, id.Accept(&verbs.ConnParam{}))
			require.NoError(t, done())
			require.Equal(t, c.active, req.Load() == 3)
			require.Equal(t, c.passive, rep.Load() == 3)
			require.True(t, req.Load() >= 2 && rep.Load() >= 2)
			require.NoError(t, x.qp.Close())
			require.NoError(t, y.qp.Close())
			for _, q := range queues {
				require.NoError(t, q.Close())
			}
			x.close()
			y.close()
			require.NoError(t, l.Close())
			unused(t, n.a, n.b)
		})
	}
}
