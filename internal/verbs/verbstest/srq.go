package verbstest

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var srqTests = []test{
	{"Shared", testSRQShared},
	{"Full", testSRQFull},
	{"BadRequests", testSRQBadRequests},
	{"BadAttributes", testSRQBadAttributes},
	{"RNR", testSRQRNR},
	{"RNRExceeded", testSRQRNRExceeded},
	{"Limit", testSRQLimit},
	{"ErrorState", testSRQErrorState},
	{"LocalKey", testSRQLocalKey},
	{"ConcurrentPosts", testSRQConcurrentPosts},
	{"CloseQPUnderTraffic", testSRQCloseQPUnderTraffic},
	{"Close", testSRQClose},
	{"Allocations", testSRQAllocations},
	{"Peers", testSRQPeers},
	{"PeersInTurn", testSRQPeersInTurn},
	{"PeersRNR", testSRQPeersRNR},
	{"PeersGivenUp", testSRQPeersGivenUp},
	{"PeersGoing", testSRQPeersGoing},
}

// udSRQTests are about datagrams too.
var udSRQTests = []test{
	{"Datagrams", testSRQDatagrams},
	{"ShortReceive", testSRQShortReceive},
}

// pool is a shared receive queue, with the end that owns its domain, memory and completion queue. That end's own
// queue pair has a receive queue of its own.
type pool struct {
	*end
	srq    verbs.SRQ
	peer   *end
	limits chan struct{}
	depth  int
}

func (s *suite) pool(t testing.TB, depth int, opts ...option) *pool {
	opts = append([]option{func(o *options) { o.mem = 1 << 18 }}, opts...)
	a, b := s.pair(t, opts...)
	p := &pool{end: b, peer: a, limits: make(chan struct{}, 100), depth: depth}
	srq, err := b.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: depth, MaxSGE: 2, LimitEvent: func() { p.limits <- struct{}{} }})
	require.NoError(t, err, "CreateSRQ")
	t.Cleanup(func() { closeIt(t, "SRQ", srq) })
	p.srq = srq
	return p
}

// member is an option of ends that take from the pool.
func (p *pool) member(o *options) { o.pd, o.queue, o.init.SRQ = p.pd, p.queue.get(), p.srq }

// join makes a connection whose passive end takes from the pool.
func (p *pool) join(opts ...option) (a, b *end) {
	p.t.Helper()
	oa, ob := p.s.options(nil), p.s.options([]option{p.member})
	for _, f := range opts {
		f(oa)
		f(ob)
	}
	return p.s.pairOf(p.t, oa, ob)
}

// post posts receives that there is room for.
func (p *pool) post(wrs ...verbs.RecvWR) {
	p.t.Helper()
	n, err := p.srq.PostRecv(wrs)
	require.NoError(p.t, err, "PostRecv")
	require.Equal(p.t, len(wrs), n, "PostRecv")
}

// postSpan posts a receive of n bytes.
func (p *pool) postSpan(id uint64, n int) span {
	p.t.Helper()
	d := p.span(n)
	p.post(verbs.RecvWR{ID: id, SGL: d.sgl()})
	return d
}

// told waits for the limit event.
func (p *pool) told() {
	p.t.Helper()
	select {
	case <-p.limits:
	case <-time.After(p.s.Timeout):
		require.Fail(p.t, "the limit is not told")
	}
}

// untold checks that there is no limit event.
func (p *pool) untold() {
	p.t.Helper()
	time.Sleep(settle)
	require.Empty(p.t, p.limits, "a limit event")
}

// testSRQShared lets several connections take from one queue, by every operation that consumes a receive and in messages of
// many packets at once: each receive completes once, with what its message had, at the queue pair it came to.
func testSRQShared(s *suite, t *testing.T) {
	const members, rounds = 3, 12
	p := s.pool(t, 2*members)
	var from, to [members]*end
	for i := range from {
		from[i], to[i] = p.join(func(o *options) { o.mem = 1 << 17 })
	}
	mtu := int(from[0].qp.Cap().PathMTU)
	size := func(i int) int { return []int{0, 1, mtu, mtu + 1, 3*mtu + 5}[i%5] }
	ops := []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpWriteWithImm}
	next := uint64(0)
	var dsts []span
	for round := range rounds {
		p.reset()
		dsts = dsts[:0]
		posted := map[uint64]span{}
		for range 2 * members {
			posted[next] = p.postSpan(next, 3*mtu+5)
			next++
		}
		writes := [members]span{}
		for i, a := range from {
			a.reset()
			k := round*members + i
			wr := verbs.SendWR{ID: uint64(i), Op: ops[k%3], Flags: verbs.Signaled, Imm: uint32(k), SGL: a.span(size(k)).fill(uint64(k)).sgl()}
			if wr.Op == verbs.OpWriteWithImm {
				writes[i] = p.span(size(k))
				wr.RemoteAddr, wr.RKey = writes[i].addr(), writes[i].rkey()
			}
			a.send(wr, verbs.SendWR{ID: 100, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: a.span(7).fill(uint64(k) + 1000).sgl()})
		}
		got := map[uint32]int{} // messages by queue pair
		for _, wc := range p.wait(2 * members) {
			require.Equal(t, verbs.Success, wc.Status)
			dst, ok := posted[wc.ID]
			require.True(t, ok, "receive %d twice, or never posted", wc.ID)
			delete(posted, wc.ID)
			i := 0
			for i < members && to[i].qp.Num() != wc.QPN {
				i++
			}
			require.Less(t, i, members, "queue pair %#x", wc.QPN)
			k := round*members + i
			got[wc.QPN]++
			if got[wc.QPN] == 2 { // in the order of the sender
				require.EqualValues(t, 7, wc.ByteLen)
				require.Equal(t, pattern(7, uint64(k)+1000), dst.bytes()[:7])
				dst.requireGuards(t)
				continue
			}
			require.EqualValues(t, size(k), wc.ByteLen)
			if ops[k%3] != verbs.OpSend {
				require.Equal(t, verbs.WCWithImm, wc.Flags)
				require.EqualValues(t, k, wc.Imm)
			}
			if ops[k%3] == verbs.OpWriteWithImm {
				require.Equal(t, verbs.WCRecvWithImm, wc.Op)
				dst.requireUntouched(t)
				writes[i].requireBytes(t, pattern(size(k), uint64(k)))
				continue
			}
			require.Equal(t, verbs.WCRecv, wc.Op)
			require.Equal(t, pattern(size(k), uint64(k)), append([]byte{}, dst.bytes()[:size(k)]...))
			dst.requireGuards(t)
		}
		for i, a := range from {
			a.waitID(uint64(i), verbs.Success)
			a.waitID(100, verbs.Success)
		}
	}
	p.quiet()
	p.peer.ping(p.end) // whose receives are its own
}

func testSRQFull(s *suite, t *testing.T) {
	p := s.pool(t, 8)
	a, b := p.join()
	wrs := make([]verbs.RecvWR, 12)
	for i := range wrs {
		wrs[i].ID = uint64(i)
	}
	n, err := p.srq.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	n, err = p.srq.PostRecv(wrs[n:])
	require.NoError(t, err)
	require.Zero(t, n, "a full queue")
	n, err = p.srq.PostRecv(nil)
	require.NoError(t, err)
	require.Zero(t, n)

	for i := range 20 {
		a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
		a.waitID(1, verbs.Success)
		b.waitID(uint64(i), verbs.Success) // the oldest
		n, err = p.srq.PostRecv([]verbs.RecvWR{{ID: uint64(8 + i)}, {ID: 99}})
		require.NoError(t, err)
		require.Equal(t, 1, n, "room for the one that completed")
	}
}

func testSRQBadRequests(s *suite, t *testing.T) {
	p := s.pool(t, 16)
	a, b := p.join()
	n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 1}})
	require.Error(t, err, "its receives are elsewhere")
	require.Zero(t, n)
	n, err = p.srq.PostRecv([]verbs.RecvWR{{ID: 1}, {ID: 2, SGL: make([]verbs.SGE, 1000)}, {ID: 3}})
	require.Error(t, err)
	require.Equal(t, 1, n)
	a.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(4, verbs.Success)
	b.waitID(1, verbs.Success)
	b.quiet()
	require.Error(t, p.srq.ArmLimit(-1))
	require.Error(t, p.srq.ArmLimit(1<<30))
	p.untold()
}

func testSRQBadAttributes(s *suite, t *testing.T) {
	a := s.active(t, s.listen(t).Addr().Port(), s.options(nil))
	for _, attr := range []verbs.SRQAttr{{MaxWR: -1}, {MaxWR: 1 << 30}, {MaxSGE: -1}, {MaxSGE: 1 << 20}} {
		_, err := a.pd.CreateSRQ(&attr)
		require.Error(t, err, "%+v", attr)
	}
	srq, err := a.pd.CreateSRQ(&verbs.SRQAttr{})
	require.NoError(t, err, "the provider's defaults")
	n, err := srq.PostRecv([]verbs.RecvWR{{SGL: a.span(8).sgl()}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, srq.Close())
}

// testSRQRNR sends to an empty queue, and posts receives later.
func testSRQRNR(s *suite, t *testing.T) {
	p := s.pool(t, 8)
	a, b := p.join()
	c, d := p.join()
	for i := range uint64(3) {
		src := a.span(3000).fill(i)
		a.send(verbs.SendWR{ID: i, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: src.sgl()})
		time.Sleep(10 * time.Millisecond)
		a.quiet()
		dst := p.postSpan(10+i, 3000)
		a.waitID(i, verbs.Success)
		b.waitID(10+i, verbs.Success)
		dst.requireBytes(t, src.bytes())
	}
	// Two wait for one receive: the other goes on waiting.
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	c.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	time.Sleep(5 * time.Millisecond)
	p.post(verbs.RecvWR{ID: 1})
	first := p.wait(1)[0]
	require.Equal(t, verbs.Success, first.Status)
	p.quiet()
	p.post(verbs.RecvWR{ID: 2})
	second := p.wait(1)[0]
	require.Equal(t, verbs.Success, second.Status)
	require.ElementsMatch(t, []uint32{b.qp.Num(), d.qp.Num()}, []uint32{first.QPN, second.QPN})
	a.waitID(1, verbs.Success)
	c.waitID(1, verbs.Success)
}

// testSRQRNRExceeded lets one requester run out of patience. Others are as before.
func testSRQRNRExceeded(s *suite, t *testing.T) {
	p := s.pool(t, 8)
	a, _ := p.join(func(o *options) { o.param.RNRRetryCount = 1 })
	c, d := p.join()
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend}, verbs.SendWR{ID: 2, Op: verbs.OpSend})
	a.waitID(1, verbs.RNRRetryExcErr)
	a.requireFlushed(2)
	p.post(verbs.RecvWR{ID: 3})
	c.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled})
	c.waitID(4, verbs.Success)
	d.waitID(3, verbs.Success)
}

// testSRQLimit: the event comes once for each time that it is asked for, when fewer receives are left than that.
func testSRQLimit(s *suite, t *testing.T) {
	p := s.pool(t, 16)
	from, _ := p.join()
	other, _ := p.join() // in turn
	id := uint64(0)
	post := func(n int) {
		for range n {
			p.post(verbs.RecvWR{ID: id})
			id++
		}
	}
	take := func(n int) {
		for range n {
			from, other = other, from
			from.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
			from.waitID(1, verbs.Success)
			require.Equal(t, verbs.Success, p.wait(1)[0].Status)
		}
	}
	post(10)
	take(2)
	p.untold() // nobody has asked
	require.NoError(t, p.srq.ArmLimit(4))
	take(4)
	p.untold() // as many as the limit
	take(1)
	p.told()
	take(2)
	p.untold()
	// Armed again, above and below.
	post(9)
	require.NoError(t, p.srq.ArmLimit(3))
	p.untold()
	take(8)
	p.told()
	post(4)
	take(2)
	p.untold()
	require.NoError(t, p.srq.ArmLimit(16))
	take(1) // fewer by then at the latest
	p.told()
	p.untold()
	// 0 disarms.
	post(10)
	require.NoError(t, p.srq.ArmLimit(8))
	require.NoError(t, p.srq.ArmLimit(0))
	take(6)
	p.untold()
}

// testSRQErrorState: what is in the shared queue stays there when a queue pair fails, and when it is closed.
func testSRQErrorState(s *suite, t *testing.T) {
	p := s.pool(t, 16)
	a, b := p.join()
	c, d := p.join()
	for id := range uint64(6) {
		p.post(verbs.RecvWR{ID: id})
	}
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(1, verbs.Success)
	b.waitID(0, verbs.Success)
	require.NoError(t, b.qp.ToError())
	p.quiet()
	b.send(verbs.SendWR{ID: 9, Op: verbs.OpSend})
	b.requireFlushed(9)
	c.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled})
	c.waitID(2, verbs.Success)
	d.waitID(1, verbs.Success)
	require.NoError(t, b.qp.Close())
	require.NoError(t, b.id.Close())
	p.quiet()
	for id := uint64(2); id < 6; id++ {
		c.send(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled})
		c.waitID(id, verbs.Success)
		d.waitID(id, verbs.Success)
	}
}

// testSRQLocalKey posts a receive that the consumer has no right to: it fails the queue pair whose message it meets.
func testSRQLocalKey(s *suite, t *testing.T) {
	for _, name := range []string{"Key", "Beyond", "Wrap", "OtherDomain"} {
		t.Run(name, func(t *testing.T) {
			p := s.pool(t, 8)
			a, _ := p.join()
			c, d := p.join()
			src, dst := a.span(100).fill(1), p.span(100)
			bad := badSGEs(s, p.end, dst)[name]
			n, err := p.srq.PostRecv([]verbs.RecvWR{{ID: 10, SGL: []verbs.SGE{bad}}, {ID: 11}})
			if err != nil {
				require.Zero(t, n)
				return
			}
			require.Equal(t, 2, n)
			a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: src.sgl()})
			a.waitID(1, verbs.RemOpErr)
			wc := p.wait(1)[0]
			require.Equal(t, uint64(10), wc.ID)
			require.Contains(t, []verbs.Status{verbs.LocProtErr, verbs.LocQPOpErr, verbs.LocLenErr}, wc.Status)
			p.quiet()
			dst.requireUntouched(t)
			c.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled})
			c.waitID(2, verbs.Success)
			d.waitID(11, verbs.Success)
		})
	}
}

// testSRQConcurrentPosts posts receives from several goroutines while several connections use them up.
func testSRQConcurrentPosts(s *suite, t *testing.T) {
	const posters, senders, each = 4, 3, 160
	p := s.pool(t, 32)
	var g group
	var from [senders]*end
	for i := range from {
		from[i], _ = p.join(func(o *options) { o.init.MaxSendWR = 16 })
	}
	deadline := time.Now().Add(s.Timeout)
	for i := range posters {
		g.run(func() error {
			for k := 0; k < each*senders/posters; {
				n, err := p.srq.PostRecv([]verbs.RecvWR{{ID: uint64(i<<16 | k)}})
				if err != nil {
					return err
				}
				if k += n; n == 0 {
					if time.Now().After(deadline) {
						return os.ErrDeadlineExceeded
					}
					time.Sleep(100 * time.Microsecond)
				}
			}
			return nil
		})
	}
	for i, a := range from {
		g.run(func() error {
			for k := range each {
				if _, err := a.qp.PostSend([]verbs.SendWR{{ID: uint64(k), Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: uint32(i<<16 | k)}}); err != nil {
					return err
				}
				wcs, err := a.next(1)
				if err != nil {
					return err
				}
				if wcs[0].Status != verbs.Success || wcs[0].ID != uint64(k) {
					return fmt.Errorf("completion %+v", wcs[0])
				}
			}
			return nil
		})
	}
	ids, last := map[uint64]bool{}, [senders]int{}
	g.run(func() error {
		for range senders * each {
			wcs, err := p.next(1)
			if err != nil {
				return err
			}
			wc := wcs[0]
			i, k := wc.Imm>>16, int(wc.Imm&0xFFFF)
			if wc.Status != verbs.Success || ids[wc.ID] || i >= senders || k != last[i] {
				return fmt.Errorf("completion %+v, after %v", wc, last)
			}
			ids[wc.ID] = true
			last[i]++
		}
		return nil
	})
	g.wait(t)
	require.Len(t, ids, senders*each)
	p.quiet()
}

// testSRQCloseQPUnderTraffic closes queue pairs that are receiving. What is left in the queue is taken by others, once.
func testSRQCloseQPUnderTraffic(s *suite, t *testing.T) {
	const n, last = 16, 1 << 32
	p := s.pool(t, 2*n)
	c, d := p.join()
	seen := map[uint64]bool{}
	for round := range uint64(6) {
		a, b := p.join()
		p.reset()
		src := a.span(3000).fill(1)
		for i := range uint64(n) {
			p.postSpan(round*n+i, 3000)
			a.send(verbs.SendWR{ID: i, Op: verbs.OpSend, SGL: src.sgl()})
		}
		var done []verbs.WC
		if round%2 == 0 {
			done = p.wait(int(1 + round))
		}
		require.NoError(t, b.qp.Close())
		require.NoError(t, b.id.Close())
		require.NoError(t, a.qp.Close())
		p.post(verbs.RecvWR{ID: last + round}) // behind what is left
		for !seen[last+round] {
			c.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
			c.waitID(1, verbs.Success)
			for len(done) == 0 || done[len(done)-1].QPN != d.qp.Num() {
				done = append(done, p.wait(1)[0])
			}
			for _, wc := range done {
				require.False(t, seen[wc.ID], "%+v", wc)
				seen[wc.ID] = true
			}
			require.Equal(t, verbs.Success, done[len(done)-1].Status)
			done = nil
		}
	}
}

// testSRQClose: a queue in use is not closed, and one that is closed is of no use.
func testSRQClose(s *suite, t *testing.T) {
	p := s.pool(t, 8)
	a, b := p.join()
	p.post(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	require.ErrorIs(t, p.srq.Close(), verbs.ErrBusy)
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(1, verbs.Success)
	b.waitID(1, verbs.Success)
	requireClosed(t, b.qp, b.id, b.mr, b.arena, p.qp, p.mr, p.arena)
	require.ErrorIs(t, p.pd.Close(), verbs.ErrBusy, "PD of a shared receive queue")
	require.NoError(t, p.srq.Close())
	require.NoError(t, p.srq.Close(), "again")
	_, err := p.srq.PostRecv([]verbs.RecvWR{{ID: 1}})
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, p.srq.ArmLimit(1), net.ErrClosed)
	id := s.resolve(t, s.listen(t).Addr().Port(), nil)
	attr := s.options(nil).init
	attr.SendCQ, attr.RecvCQ, attr.SRQ = p.cq, p.cq, p.srq
	_, err = id.CreateQP(p.pd, &attr)
	require.Error(t, err, "a queue pair with a closed queue")
	require.NoError(t, p.pd.Close())
}

// testSRQAllocations receives without allocating for a message.
func testSRQAllocations(s *suite, t *testing.T) {
	x := s.steady(t)
	p := s.pool(t, 8)
	a, b := p.join()
	send := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: a.span(3000).fill(1).sgl()}}
	recv := []verbs.RecvWR{{SGL: p.span(3000).sgl()}}
	x.require(t, 2, func() {
		x.posted(p.srq.PostRecv(recv))
		x.posted(a.qp.PostSend(send))
		x.take(b.get().cq, 1)
		x.take(a.cq, 1)
	})
}

// testSRQDatagrams lets datagrams and connections take from one queue.
func testSRQDatagrams(s *suite, t *testing.T) {
	p := s.pool(t, 16)
	a, b := p.join()
	x, y, d := s.udPairOf(t, s.udOptions(nil), s.udOptions([]option{p.member}))
	for i := range uint64(8) {
		in := p.postSpan(i, verbs.GRHLen+64)
		if i%2 == 0 {
			out := x.span(33).fill(i)
			x.send(d.to(verbs.SendWR{ID: i, Op: verbs.OpSendWithImm, Imm: uint32(i), Flags: verbs.Signaled, SGL: out.sgl()}))
			x.waitID(i, verbs.Success)
			wc, g := y.arrived(i, in, out.bytes())
			require.Equal(t, x.qp.Num(), wc.SrcQPN)
			require.EqualValues(t, i, wc.Imm)
			require.Equal(t, s.Dial.WithZone(""), g.Dest)
			continue
		}
		out := a.span(44).fill(i)
		a.send(verbs.SendWR{ID: i, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: out.sgl()})
		a.waitID(i, verbs.Success)
		require.EqualValues(t, 44, b.waitID(i, verbs.Success).ByteLen)
		require.Equal(t, out.bytes(), in.bytes()[:44])
	}
	// An empty queue: dropped, and done from the sender's side.
	for i := range uint64(3) {
		x.send(d.to(verbs.SendWR{ID: i, Op: verbs.OpSend, Inline: []byte("early"), Flags: verbs.Signaled}))
		x.waitID(i, verbs.Success)
	}
	p.quiet()
	if !s.UncountedDrops {
		require.Eventually(t, func() bool { return y.qp.Stats().Dropped == 3 }, s.Timeout, time.Millisecond)
	}
	in := p.postSpan(20, verbs.GRHLen+8)
	x.passes(d, y, 20, in, 8)

	// The limit counts what datagrams take, too.
	p.postSpan(30, verbs.GRHLen+8)
	p.postSpan(31, verbs.GRHLen+8)
	require.NoError(t, p.srq.ArmLimit(2))
	p.untold()
	x.send(d.to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte("one")}))
	y.waitID(30, verbs.Success)
	p.told()

	// The queue pair fails, the receive stays.
	require.NoError(t, y.qp.ToError())
	p.quiet()
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(1, verbs.Success)
	b.waitID(31, verbs.Success)
}

// testSRQShortReceive: a datagram that is too long for the receive is dropped, and the receive waits for the next one.
func testSRQShortReceive(s *suite, t *testing.T) {
	p := s.pool(t, 16)
	x, y, d := s.udPairOf(t, s.udOptions(nil), s.udOptions([]option{p.member}))
	short := p.postSpan(1, verbs.GRHLen+8)
	x.send(d.to(verbs.SendWR{Op: verbs.OpSend, Inline: make([]byte, 9)}))
	if s.ShortReceiveFatal {
		require.NotEqual(t, verbs.Success, p.wait(1)[0].Status)
		return
	}
	p.quiet()
	short.requireUntouched(t)
	if !s.UncountedDrops {
		require.EqualValues(t, 1, y.qp.Stats().Dropped)
	}
	x.passes(d, y, 1, short, 8)
}
