package verbstest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var queueTests = []test{
	{"Order", testOrder},
	{"Unsignaled", testUnsignaled},
	{"SeparateQueues", testSeparateQueues},
	{"SendQueueFull", testSendQueueFull},
	{"RecvQueueFull", testRecvQueueFull},
	{"BadRequests", testBadRequests},
	{"ConcurrentPosts", testConcurrentPosts},
	{"Overrun", testOverrun},
	{"Allocations", testAllocations},
}

// testOrder posts requests of every kind in one batch: they complete in that order.
func testOrder(s *suite, t *testing.T) {
	a, b := s.pair(t)
	src, dst := a.span(2000).fill(1), b.span(2000)
	var wrs []verbs.SendWR
	var rwrs []verbs.RecvWR
	for i := range 60 {
		op := transferOps[i%len(transferOps)]
		sge := src.sge()
		sge.Length = uint32(i * 33)
		wrs = append(wrs, verbs.SendWR{
			ID: uint64(i), Op: op, Flags: verbs.Signaled, Imm: uint32(i), SGL: []verbs.SGE{sge},
			RemoteAddr: dst.addr(), RKey: dst.rkey(),
		})
		if op != verbs.OpWrite {
			rwrs = append(rwrs, verbs.RecvWR{ID: uint64(i), SGL: dst.sgl()})
		}
	}
	b.recv(rwrs...)
	a.send(wrs...)
	for i, wc := range a.wait(len(wrs)) {
		require.Equal(t, uint64(i), wc.ID)
		require.Equal(t, verbs.Success, wc.Status)
	}
	for i, wc := range b.wait(len(rwrs)) {
		require.Equal(t, rwrs[i].ID, wc.ID)
		require.Equal(t, verbs.Success, wc.Status)
		require.Equal(t, uint32(33*rwrs[i].ID), wc.ByteLen)
	}
	a.quiet()
	b.quiet()
	dst.requireGuards(t)
}

// testUnsignaled checks that requests that succeed complete only if they shall.
func testUnsignaled(s *suite, t *testing.T) {
	a, b := s.pair(t)
	src, dst := a.span(100).fill(1), b.span(100)
	for round := range 20 {
		var wrs []verbs.SendWR
		for i := range 16 {
			wr := verbs.SendWR{
				ID: uint64(i), Op: transferOps[i%len(transferOps)], SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey(),
			}
			if i == 7 || i == 15 {
				wr.Flags = verbs.Signaled
			}
			if wr.Op != verbs.OpWrite {
				b.recv(verbs.RecvWR{ID: uint64(i), SGL: dst.sgl()})
			}
			wrs = append(wrs, wr)
		}
		// More than the send queue holds in all: unsignaled requests leave it too.
		a.send(wrs...)
		a.waitID(7, verbs.Success)
		a.waitID(15, verbs.Success)
		b.wait(12)
		if round == 0 {
			a.quiet()
		}
	}
	dst.requireBytes(t, src.bytes())
}

// testSeparateQueues uses a queue for sends and one for receives.
func testSeparateQueues(s *suite, t *testing.T) {
	l := s.listen(t)
	o := s.options(nil)
	id := s.resolve(t, l.Addr().Port(), nil)
	var sq, rq queue
	sq.init(s, t, s.deviceOf(t, id), 16)
	rq.init(s, t, s.deviceOf(t, id), 16)
	o.init.SendCQ, o.init.RecvCQ = sq.cq, rq.cq
	a := s.end(t, id, newEvents(), o)
	done := a.connect(s.ctx(t), &o.param)
	b := s.passive(t, l, s.options(nil))
	require.NoError(t, b.id.Accept(&o.param))
	_, err := done()
	require.NoError(t, err)

	a.recv(verbs.RecvWR{ID: 1})
	b.recv(verbs.RecvWR{ID: 2})
	a.send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled})
	b.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled})
	require.Equal(t, uint64(3), sq.wait(1)[0].ID)
	require.Equal(t, uint64(1), rq.wait(1)[0].ID)
	b.wait(2)
	sq.quiet()
	rq.quiet()
}

// testSendQueueFull posts more than the queue holds, to a peer that is not ready:
// the queue takes what fits, and the rest when there is room again.
func testSendQueueFull(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.init.MaxSendWR = 16; o.init.MaxRecvWR = 512 })
	limit := a.qp.Cap().MaxSendWR
	require.GreaterOrEqual(t, limit, 16)
	total := 3*limit + 5
	wrs := make([]verbs.SendWR, total)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: uint32(i)}
	}
	n, err := a.qp.PostSend(wrs)
	require.NoError(t, err)
	require.Positive(t, n)
	require.LessOrEqual(t, n, limit)
	if n < limit {
		// A provider may take a batch in parts, but must take all there is room for.
		m, err := a.qp.PostSend(wrs[n:])
		require.NoError(t, err)
		n += m
	}
	require.Equal(t, limit, n)
	m, err := a.qp.PostSend(wrs[n:])
	require.NoError(t, err)
	require.Zero(t, m, "a full queue")
	m, err = a.qp.PostSend(nil)
	require.NoError(t, err)
	require.Zero(t, m)

	next, done := n, 0
	for got := 0; got < total || done < total; {
		for got < total {
			k, err := b.qp.PostRecv([]verbs.RecvWR{{ID: uint64(got)}})
			require.NoError(t, err)
			if k == 0 {
				break
			}
			wc := b.wait(1)[0]
			require.Equal(t, uint64(got), wc.ID)
			require.Equal(t, uint32(got), wc.Imm)
			got++
			if got%7 == 0 {
				break
			}
		}
		for done < got {
			require.Equal(t, uint64(done), a.wait(1)[0].ID)
			done++
		}
		if next < total {
			k, err := a.qp.PostSend(wrs[next:])
			require.NoError(t, err)
			require.Equal(t, min(total-next, limit-(next-done)), k, "room for what has completed")
			next += k
		}
	}
	a.quiet()
}

func testRecvQueueFull(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.init.MaxRecvWR = 16 })
	limit := b.qp.Cap().MaxRecvWR
	require.GreaterOrEqual(t, limit, 16)
	wrs := make([]verbs.RecvWR, limit+9)
	for i := range wrs {
		wrs[i].ID = uint64(i)
	}
	n, err := b.qp.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, limit, n)
	n, err = b.qp.PostRecv(wrs[limit:])
	require.NoError(t, err)
	require.Zero(t, n, "a full queue")

	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(1, verbs.Success)
	b.waitID(0, verbs.Success)
	n, err = b.qp.PostRecv(wrs[limit:])
	require.NoError(t, err)
	require.Equal(t, 1, n, "room for the one that completed")
}

// testBadRequests posts requests that are wrong on their face: the error is about
// the first of them, those before it are taken, and the queue pair lives on.
func testBadRequests(s *suite, t *testing.T) {
	a, b := s.pair(t)
	c := a.qp.Cap()
	sge := a.span(8).sge()
	sges := make([]verbs.SGE, c.MaxSendSGE+1)
	for i := range sges {
		sges[i] = sge
	}
	for what, bad := range map[string]verbs.SendWR{
		"opcode 0":    {},
		"opcode 200":  {Op: 200},
		"inline size": {Op: verbs.OpSend, Inline: make([]byte, c.MaxInline+1)},
		"SGEs":        {Op: verbs.OpSend, SGL: sges},
	} {
		bad.ID, bad.Flags = 2, verbs.Signaled
		b.recv(verbs.RecvWR{ID: 9})
		n, err := a.qp.PostSend([]verbs.SendWR{
			{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled}, bad, {ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled},
		})
		require.Error(t, err, what)
		require.Equal(t, 1, n, what)
		a.waitID(1, verbs.Success)
		b.waitID(9, verbs.Success)
		a.quiet()
	}
	rsges := make([]verbs.SGE, b.qp.Cap().MaxRecvSGE+1)
	n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 1}, {ID: 2, SGL: rsges}, {ID: 3}})
	require.Error(t, err)
	require.Equal(t, 1, n)
	a.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(4, verbs.Success)
	b.waitID(1, verbs.Success)
	a.ping(b)
	b.ping(a)

	// More bytes than a message may have are refused, not cut.
	info := a.id.Device().Info()
	seg := info.MaxMsgSize/int64(c.MaxSendSGE) + 1
	if seg > 1<<30 {
		return
	}
	big := newMemory(t, a.pd, int(seg), verbs.LocalWrite)
	for i := range sges {
		sges[i] = verbs.SGE{Addr: big.mr.Addr(), Length: uint32(seg), LKey: big.mr.LKey()}
	}
	n, err = a.qp.PostSend([]verbs.SendWR{{ID: 5, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: sges[:c.MaxSendSGE]}})
	if err != nil {
		require.Zero(t, n)
		a.ping(b)
		return
	}
	a.waitID(5, verbs.LocLenErr)
}

// testConcurrentPosts posts from several goroutines to both ends at once.
func testConcurrentPosts(s *suite, t *testing.T) {
	const posters, each = 8, 150
	a, b := s.pair(t, func(o *options) { o.init.MaxSendWR, o.init.MaxRecvWR = 32, 64 })
	src := a.span(64).fill(1)
	buf := b.span(64)

	var group group
	// post tries until a queue has room.
	post := func(try func() (int, error)) error {
		for deadline := time.Now().Add(s.Timeout); ; time.Sleep(100 * time.Microsecond) {
			if n, err := try(); n == 1 || err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return errors.New("a queue has no room")
			}
		}
	}
	for p := range posters {
		group.run(func() error {
			for i := range each {
				wr := verbs.SendWR{
					ID: uint64(p<<16 | i), Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: uint32(p<<16 | i),
					SGL: src.sgl(), RemoteAddr: buf.addr(), RKey: buf.rkey(),
				}
				if i%3 == 0 {
					wr.Op = verbs.OpWriteWithImm
				}
				if err := post(func() (int, error) { return a.qp.PostSend([]verbs.SendWR{wr}) }); err != nil {
					return err
				}
			}
			return nil
		})
		group.run(func() error {
			for i := range each {
				wr := verbs.RecvWR{ID: uint64(p<<16 | i), SGL: buf.sgl()}
				if err := post(func() (int, error) { return b.qp.PostRecv([]verbs.RecvWR{wr}) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	// drain takes all completions: none twice, and what one goroutine posted to the
	// send queue in order.
	drain := func(e *end) error {
		seen, last := map[uint64]bool{}, [posters]int{}
		for range posters * each {
			wcs, err := e.next(1)
			if err != nil {
				return err
			}
			wc := wcs[0]
			key := uint32(wc.ID)
			if e == b {
				key = wc.Imm
			}
			p, i := key>>16, int(key&0xFFFF)
			if wc.Status != verbs.Success || seen[wc.ID] || p >= posters || i != last[p] {
				return fmt.Errorf("completion %+v, after %v", wc, last)
			}
			seen[wc.ID] = true
			last[p]++
		}
		return nil
	}
	group.run(func() error { return drain(a) })
	group.run(func() error { return drain(b) })
	group.wait(t)
	buf.requireBytes(t, src.bytes())
}

// testOverrun lets more complete than the queue holds.
func testOverrun(s *suite, t *testing.T) {
	if s.NoOverrun {
		t.Skip("the provider does not tell of an overrun")
	}
	oa, ob := s.options(nil), s.options(nil)
	ob.depth = 4
	a, b := s.pairOf(t, oa, ob)
	for i := range 5 {
		b.recv(verbs.RecvWR{ID: uint64(i)})
	}
	for i := range 4 {
		a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled})
		a.waitID(uint64(i), verbs.Success)
	}
	a.send(verbs.SendWR{ID: 4, Op: verbs.OpSend})
	time.Sleep(200 * time.Millisecond) // to poll earlier would make room
	var wcs [8]verbs.WC
	n, err := b.cq.Poll(wcs[:])
	require.LessOrEqual(t, n, 4)
	if err == nil {
		_, err = b.cq.Poll(wcs[:])
	}
	require.Error(t, err)
	// What was complete before is not lost.
	for i := range n {
		require.Equal(t, uint64(i), wcs[i].ID)
	}
}
