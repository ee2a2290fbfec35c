package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var errorTests = []test{
	{"ToError", testToError},
	{"ToErrorBeforeConnect", testToErrorBeforeConnect},
	{"RNR", testRNR},
	{"RNRWrites", testRNRWrites},
	{"RNRExceeded", testRNRExceeded},
	{"RemoteAccess", testRemoteAccess},
	{"ZeroLength", testZeroLength},
	{"TooLong", testTooLong},
	{"LocalKeySend", testLocalKeySend},
	{"LocalKeyRecv", testLocalKeyRecv},
	{"ClosedRegion", testClosedRegion},
}

// requireFlushed checks that these requests complete as flushed, in this order.
func (e *end) requireFlushed(ids ...uint64) {
	e.t.Helper()
	e.requireFlushedOf(e.wait(len(ids)), ids)
}

func (e *end) requireFlushedOf(wcs []verbs.WC, ids []uint64) {
	e.t.Helper()
	var got []uint64
	for _, wc := range wcs {
		require.Equal(e.t, verbs.WRFlushErr, wc.Status, "%+v", wc)
		require.Equal(e.t, e.qp.Num(), wc.QPN)
		got = append(got, wc.ID)
	}
	require.Equal(e.t, ids, got)
}

// requireFlushedQueues waits for the flush of both queues. Between the two there
// is no order.
func (e *end) requireFlushedQueues(sends, recvs []uint64) {
	e.t.Helper()
	isRecv := map[uint64]bool{}
	for _, id := range recvs {
		isRecv[id] = true
	}
	var s, r []verbs.WC
	for _, wc := range e.wait(len(sends) + len(recvs)) {
		if isRecv[wc.ID] {
			r = append(r, wc)
		} else {
			s = append(s, wc)
		}
	}
	e.requireFlushedOf(s, sends)
	e.requireFlushedOf(r, recvs)
}

func ids(from, to uint64) []uint64 {
	var s []uint64
	for ; from < to; from++ {
		s = append(s, from)
	}
	return s
}

// testToError moves a busy queue pair to the error state.
func testToError(s *suite, t *testing.T) {
	a, b := s.pair(t)
	dst := b.span(100)
	for id := uint64(100); id < 110; id++ {
		a.recv(verbs.RecvWR{ID: id})
	}
	// Some requests are done, some meet no receive, some wait behind these. What
	// asked for no completion is flushed too.
	b.recv(verbs.RecvWR{ID: 1})
	a.send(verbs.SendWR{ID: 0, Op: verbs.OpSend, Flags: verbs.Signaled})
	a.waitID(0, verbs.Success)
	b.waitID(1, verbs.Success)
	src := a.span(100)
	for id := uint64(1); id < 20; id++ {
		wr := verbs.SendWR{ID: id, Op: verbs.OpSend}
		if id%3 == 0 {
			wr = verbs.SendWR{ID: id, Op: verbs.OpWrite, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey()}
		}
		if id%2 == 0 {
			wr.Flags = verbs.Signaled
		}
		a.send(wr)
	}
	require.NoError(t, a.qp.ToError())
	a.requireFlushedQueues(ids(1, 20), ids(100, 110))
	a.quiet()

	// Later posts are flushed at once.
	for id := uint64(200); id < 300; id++ {
		a.send(verbs.SendWR{ID: id, Op: verbs.OpSend})
		a.requireFlushed(id)
		a.recv(verbs.RecvWR{ID: id})
		a.requireFlushed(id)
	}
	require.NoError(t, a.qp.ToError(), "again")
	a.quiet()
	dst.requireUntouched(t)

	// The peer has heard nothing.
	b.quiet()
	b.waitEvents(verbs.EventEstablished)
}

// testToErrorBeforeConnect flushes what was posted before there was a connection.
func testToErrorBeforeConnect(s *suite, t *testing.T) {
	a := s.active(t, s.listen(t).Addr().Port(), s.options(nil))
	a.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	require.NoError(t, a.qp.ToError())
	a.requireFlushed(1, 2)
	a.recv(verbs.RecvWR{ID: 3})
	a.requireFlushed(3)
}

// testRNR sends to a peer that has no receive posted, and posts one later.
func testRNR(s *suite, t *testing.T) {
	a, b := s.pair(t)
	for i := range uint64(5) {
		src, dst := a.span(3000).fill(i), b.span(3000)
		a.send(verbs.SendWR{ID: i, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: src.sgl()})
		time.Sleep(10 * time.Millisecond)
		a.quiet()
		b.recv(verbs.RecvWR{ID: 100 + i, SGL: dst.sgl()})
		a.waitID(i, verbs.Success)
		b.waitID(100+i, verbs.Success)
		dst.requireBytes(t, src.bytes())
	}
}

// testRNRWrites has many requests in flight when one meets no receive: none is lost,
// none is done twice, and the order holds.
func testRNRWrites(s *suite, t *testing.T) {
	const n = 40
	a, b := s.pair(t)
	var dsts []span
	for i := range uint64(n) {
		src, dst := a.span(300).fill(i), b.span(300)
		dsts = append(dsts, dst)
		a.send(verbs.SendWR{
			ID: i, Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: uint32(i), SGL: src.sgl(),
			RemoteAddr: dst.addr(), RKey: dst.rkey(),
		})
	}
	for i := range uint64(n) {
		if i%8 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		b.recv(verbs.RecvWR{ID: i})
		wc := b.waitID(i, verbs.Success)
		require.Equal(t, uint32(i), wc.Imm)
		a.waitID(i, verbs.Success)
		dsts[i].requireBytes(t, pattern(300, i))
	}
}

// testRNRExceeded lets a requester run out of patience, as the peer's count says.
func testRNRExceeded(s *suite, t *testing.T) {
	oa, ob := s.options(nil), s.options(nil)
	ob.param.RNRRetryCount = 2 // of the active requester
	a, _ := s.pairOf(t, oa, ob)
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend}, verbs.SendWR{ID: 2, Op: verbs.OpSend})
	a.waitID(1, verbs.RNRRetryExcErr)
	a.requireFlushed(2)
	a.requireRNRs(3)

	// The other direction has the count of the request.
	oa, ob = s.options(nil), s.options(nil)
	oa.param.RNRRetryCount = 0
	_, b := s.pairOf(t, oa, ob)
	b.send(verbs.SendWR{ID: 1, Op: verbs.OpSend}, verbs.SendWR{ID: 2, Op: verbs.OpSend})
	b.waitID(1, verbs.RNRRetryExcErr)
	b.requireFlushed(2)
	b.requireRNRs(1)
}

// requireRNRs checks how often the peer was not ready, where the provider counts it: a
// retry count of n allows n+1 attempts.
func (e *end) requireRNRs(want uint64) {
	e.t.Helper()
	if got := e.qp.Stats().RNRs; got != 0 {
		require.Equal(e.t, want, got, "RNR NAKs")
	}
}

// testRemoteAccess writes where it must not, in every way: the requester learns
// it, the peer's connection fails, nothing is written, and nobody else notices.
func testRemoteAccess(s *suite, t *testing.T) {
	type target struct {
		addr uint64
		rkey uint32
	}
	for _, c := range []struct {
		name string
		at   func(b, other *end, dst span) target
	}{
		{"Key", func(b, _ *end, dst span) target { return target{dst.addr(), dst.rkey() ^ 0x5A5A5A5A} }},
		{"KeyZero", func(b, _ *end, dst span) target { return target{dst.addr(), 0} }},
		{"KeyNext", func(b, _ *end, dst span) target { return target{dst.addr(), dst.rkey() + 1} }},
		{"Before", func(b, _ *end, dst span) target { return target{b.mr.Addr() - 1, dst.rkey()} }},
		{"Beyond", func(b, _ *end, dst span) target {
			return target{b.mr.Addr() + uint64(len(b.mr.Bytes())) - 2999, dst.rkey()}
		}},
		{"Behind", func(b, _ *end, dst span) target {
			return target{b.mr.Addr() + uint64(len(b.mr.Bytes())), dst.rkey()}
		}},
		{"AddressZero", func(b, _ *end, dst span) target { return target{0, dst.rkey()} }},
		{"Wrap", func(b, _ *end, dst span) target { return target{^uint64(0) - 100, dst.rkey()} }},
		{"ReadOnly", func(b, _ *end, dst span) target {
			mr := register(b.t, b.pd, b.arena.Bytes(), verbs.LocalWrite)
			return target{mr.Addr() + uint64(dst.off), mr.RKey()}
		}},
		{"OtherDomain", func(b, other *end, dst span) target { return target{other.mr.Addr(), other.mr.RKey()} }},
		{"Closed", func(b, _ *end, dst span) target {
			mr := register(b.t, b.pd, b.arena.Bytes(), verbs.LocalWrite|verbs.RemoteWrite)
			at := target{mr.Addr() + uint64(dst.off), mr.RKey()}
			require.NoError(b.t, mr.Close())
			return at
		}},
	} {
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpWriteWithImm} {
			t.Run(c.name+"/"+op.String(), func(t *testing.T) {
				a, b := s.pair(t)
				other, peer := s.pair(t) // of the same device, another domain
				ob := s.options(nil)
				ob.pd = b.pd
				third, near := s.pairOf(t, s.options(nil), ob) // the same domain

				src, dst := a.span(3000).fill(1), b.span(3000)
				b.recv(verbs.RecvWR{ID: 50}, verbs.RecvWR{ID: 51})
				a.recv(verbs.RecvWR{ID: 60})
				at := c.at(b, peer, dst)
				a.send(
					verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl()[:0]},
					verbs.SendWR{ID: 2, Op: op, SGL: src.sgl(), RemoteAddr: at.addr, RKey: at.rkey},
					verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: src.sgl()},
					verbs.SendWR{ID: 4, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey()},
				)
				a.waitID(1, verbs.Success)
				a.waitID(2, verbs.RemAccessErr)
				a.requireFlushedQueues([]uint64{3, 4}, []uint64{60})
				b.requireFlushed(50, 51)
				dst.requireUntouched(t)

				for _, p := range [][2]*end{{other, peer}, {peer, other}, {third, near}, {near, third}} {
					p[0].ping(p[1])
				}
			})
		}
	}
}

// testZeroLength writes nothing to nowhere, which is allowed (IBTA 9.7.4.1.5).
func testZeroLength(s *suite, t *testing.T) {
	a, b := s.pair(t)
	b.recv(verbs.RecvWR{ID: 1})
	a.send(
		verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, RemoteAddr: 12345, RKey: 678},
		verbs.SendWR{ID: 2, Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: 9, RKey: 678},
	)
	a.waitID(1, verbs.Success)
	a.waitID(2, verbs.Success)
	wc := b.waitID(1, verbs.Success)
	require.Zero(t, wc.ByteLen)
	require.Equal(t, uint32(9), wc.Imm)
}

// testTooLong sends more than the receive has room for.
func testTooLong(s *suite, t *testing.T) {
	for _, n := range []int{1, 101, 5000} {
		for _, room := range []int{0, 100, 4999} {
			if n <= room {
				continue
			}
			a, b := s.pair(t)
			other, peer := s.pair(t)
			src, dst := a.span(n).fill(1), b.span(room)
			b.recv(verbs.RecvWR{ID: 1, SGL: dst.sgl()}, verbs.RecvWR{ID: 2})
			a.send(verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: src.sgl()}, verbs.SendWR{ID: 4, Op: verbs.OpSend})

			wc := a.wait(1)[0]
			require.Equal(t, uint64(3), wc.ID)
			require.Contains(t, []verbs.Status{verbs.RemInvReqErr, verbs.RemOpErr}, wc.Status)
			a.requireFlushed(4)
			wc = b.wait(1)[0]
			require.Equal(t, uint64(1), wc.ID)
			require.Contains(t, []verbs.Status{verbs.LocLenErr, verbs.LocQPOpErr}, wc.Status)
			b.requireFlushed(2)
			dst.requireGuards(t)
			other.ping(peer)
		}
	}
}

// badSGEs are ranges that a requester must not use.
func badSGEs(s *suite, e *end, src span) map[string]verbs.SGE {
	other := newPD(e.t, e.id.Device())
	m := newMemory(e.t, other, 1<<12, verbs.LocalWrite)
	good := src.sge()
	change := func(f func(*verbs.SGE)) verbs.SGE { g := good; f(&g); return g }
	return map[string]verbs.SGE{
		"Key":         change(func(g *verbs.SGE) { g.LKey ^= 0x5A5A5A5A }),
		"Before":      change(func(g *verbs.SGE) { g.Addr = e.mr.Addr() - 1 }),
		"Beyond":      change(func(g *verbs.SGE) { g.Addr = e.mr.Addr() + uint64(len(e.mr.Bytes())) - 1 }),
		"Length":      change(func(g *verbs.SGE) { g.Length = 1 << 31 }),
		"Wrap":        change(func(g *verbs.SGE) { g.Addr = ^uint64(0) - 1 }),
		"OtherDomain": {Addr: m.mr.Addr(), Length: good.Length, LKey: m.mr.LKey()},
	}
}

// testLocalKeySend sends what it has no right to. A provider may refuse the request
// or complete it with an error; the peer sees nothing of it.
func testLocalKeySend(s *suite, t *testing.T) {
	for _, name := range []string{"Key", "Before", "Beyond", "Length", "Wrap", "OtherDomain"} {
		t.Run(name, func(t *testing.T) {
			a, b := s.pair(t)
			src, dst := a.span(100), b.span(100)
			bad := badSGEs(s, a, src)[name]
			b.recv(verbs.RecvWR{ID: 10, SGL: dst.sgl()}, verbs.RecvWR{ID: 11, SGL: dst.sgl()})
			n, err := a.qp.PostSend([]verbs.SendWR{
				{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled},
				{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{bad}},
			})
			if err != nil {
				require.Equal(t, 1, n)
				a.waitID(1, verbs.Success)
				b.waitID(10, verbs.Success)
				a.ping2to(b, 11)
				return
			}
			require.Equal(t, 2, n)
			a.waitID(1, verbs.Success)
			wc := a.wait(1)[0]
			require.Equal(t, uint64(2), wc.ID)
			require.Contains(t, s.LocalErrors, wc.Status)
			a.send(verbs.SendWR{ID: 3, Op: verbs.OpSend})
			a.requireFlushed(3)
			b.waitID(10, verbs.Success)
			b.quiet()
			dst.requireUntouched(t)
		})
	}
}

// ping2to is ping2 with a receive that is posted already.
func (e *end) ping2to(to *end, id uint64) {
	e.t.Helper()
	e.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled})
	e.waitID(1, verbs.Success)
	to.waitID(id, verbs.Success)
}

// testLocalKeyRecv posts receives that the consumer has no right to.
func testLocalKeyRecv(s *suite, t *testing.T) {
	for _, name := range []string{"Key", "Before", "Beyond", "Length", "Wrap", "OtherDomain", "ReadOnly"} {
		t.Run(name, func(t *testing.T) {
			a, b := s.pair(t)
			src, dst := a.span(100).fill(1), b.span(100)
			bad := badSGEs(s, b, dst)[name]
			if name == "ReadOnly" {
				mr := register(t, b.pd, b.arena.Bytes(), 0)
				bad = verbs.SGE{Addr: mr.Addr() + uint64(dst.off), Length: 100, LKey: mr.LKey()}
			}
			n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 10, SGL: []verbs.SGE{bad}}, {ID: 11}})
			if err != nil {
				require.Zero(t, n)
				a.ping(b)
				return
			}
			require.Equal(t, 2, n)
			a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: src.sgl()})
			a.waitID(1, verbs.RemOpErr)
			wc := b.wait(1)[0]
			require.Equal(t, uint64(10), wc.ID)
			require.Contains(t, []verbs.Status{verbs.LocProtErr, verbs.LocQPOpErr, verbs.LocLenErr}, wc.Status)
			b.requireFlushed(11)
			dst.requireUntouched(t)
		})
	}
}

// testClosedRegion closes the region of requests under way.
func testClosedRegion(s *suite, t *testing.T) {
	a, b := s.pair(t)
	buf := a.span(5000).fill(1)
	mr := register(t, a.pd, a.arena.Bytes(), verbs.LocalWrite)
	sge := verbs.SGE{Addr: mr.Addr() + uint64(buf.off), Length: 5000, LKey: mr.LKey()}
	// The peer is not ready, so the message is still to be sent.
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{sge}})
	time.Sleep(settle)
	err := mr.Close()
	if err != nil {
		require.ErrorIs(t, err, verbs.ErrBusy)
	}
	if err == nil {
		buf.fill(2) // its owner's again
	}
	dst := b.span(5000)
	b.recv(verbs.RecvWR{ID: 2, SGL: dst.sgl()})
	wc := a.wait(1)[0]
	require.Equal(t, uint64(1), wc.ID)
	if err == nil && wc.Status != verbs.Success {
		require.Contains(t, s.LocalErrors, wc.Status)
		return
	}
	// What was sent before Close may arrive after it, but nothing that was written later.
	require.Equal(t, verbs.Success, wc.Status)
	b.waitID(2, verbs.Success)
	dst.requireBytes(t, pattern(5000, 1))
}
