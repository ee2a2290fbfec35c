package verbstest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var invalidateTests = []test{
	{"Sizes", testInvalidateSizes},
	{"EndsKeys", testInvalidateEndsKeys},
	{"Fence", testInvalidateFence},
	{"Concurrent", testInvalidateConcurrent},
	{"Refused", testInvalidateRefused},
	{"SRQ", testInvalidateSRQ},
	{"RNR", testInvalidateRNR},
	{"Datagram", testInvalidateDatagram},
}

const invalidatable = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteInvalidate

// needsInvalidate skips where no region can be invalidated, if the provider says so.
func (s *suite) needsInvalidate(t *testing.T, pd verbs.PD, mem []byte) {
	s.needs(t, verbs.OpSendWithInv)
	if !s.NoInvalidate {
		return
	}
	_, err := pd.RegMR(mem, invalidatable)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	t.Skip("programs have no regions that a peer can invalidate")
}

// testInvalidateSizes sends messages of every size, and looks at all that is told of them.
func testInvalidateSizes(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 17 })
	s.needsInvalidate(t, b.pd, b.arena.Bytes())
	mtu := int(a.qp.Cap().PathMTU)
	for i, n := range []int{0, 1, 3, 4, 60, mtu - 1, mtu, mtu + 1, 2*mtu + 1} {
		for _, inline := range []bool{false, true} {
			if inline && n > a.qp.Cap().MaxInline {
				continue
			}
			a.reset()
			b.reset()
			src, dst := a.span(n).fill(uint64(i)), b.span(n)
			victim := register(t, b.pd, b.arena.Bytes()[:4096], invalidatable)
			b.recv(verbs.RecvWR{ID: 1, SGL: dst.sgl()}, verbs.RecvWR{ID: 2})
			wr := verbs.SendWR{ID: 3, Op: verbs.OpSendWithInv, Flags: verbs.Signaled | verbs.Solicited, InvalidateKey: victim.RKey(), SGL: src.sgl()}
			if inline {
				wr.SGL, wr.Inline = nil, src.bytes()
			}
			a.send(wr, verbs.SendWR{ID: 4, Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: 5})
			require.Equal(t, verbs.WCSend, a.waitID(3, verbs.Success).Op)
			a.waitID(4, verbs.Success)
			wc := b.waitID(1, verbs.Success)
			require.Equal(t, verbs.WCRecv, wc.Op)
			require.Equal(t, verbs.WCWithInv, wc.Flags)
			require.Equal(t, victim.RKey(), wc.Imm)
			require.EqualValues(t, n, wc.ByteLen)
			dst.requireBytes(t, src.bytes())
			require.Equal(t, verbs.WCWithImm, b.waitID(2, verbs.Success).Flags)
			require.NoError(t, victim.Close())
		}
	}
}

// testInvalidateEndsKeys: with the keys of a region, neither a peer nor its owner reaches the memory any more. Other regions of
// the same memory are as before.
func testInvalidateEndsKeys(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	a, b := s.pair(t)
	s.needsInvalidate(t, b.pd, b.arena.Bytes())
	ob := s.options(nil)
	ob.pd = b.pd
	for _, use := range []string{"WRITE", "SEND of the owner's", "posted SEND of the owner's", "receive", "posted receive", "invalidation"} {
		t.Run(use, func(t *testing.T) {
			a.reset()
			b.reset()
			c, d := s.pairOf(t, s.options(nil), ob) // may fail
			src, dst := a.span(100).fill(1), b.span(100)
			victim := register(t, b.pd, b.arena.Bytes(), invalidatable)
			sge := verbs.SGE{Addr: victim.Addr() + uint64(dst.off), Length: 100, LKey: victim.LKey()}
			write := verbs.SendWR{
				ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: sge.Addr, RKey: victim.RKey(),
			}
			a.send(write)
			a.waitID(1, verbs.Success)
			dst.requireBytes(t, src.bytes())
			dst.fill(2)
			switch use {
			case "posted receive":
				d.recv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{sge}})
			case "posted SEND of the owner's":
				d.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{sge}}) // meets no receive
			}
			b.recv(verbs.RecvWR{ID: 2})
			a.send(verbs.SendWR{ID: 3, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: victim.RKey()})
			a.waitID(3, verbs.Success)
			require.Equal(t, victim.RKey(), b.waitID(2, verbs.Success).Imm)

			csrc := c.span(100).fill(3)
			switch use {
			case "WRITE":
				write.SGL = csrc.sgl()
				c.send(write)
				c.waitID(1, verbs.RemAccessErr)
			case "SEND of the owner's":
				c.recv(verbs.RecvWR{ID: 6, SGL: csrc.sgl()})
				d.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, SGL: []verbs.SGE{sge}})
				require.Contains(t, s.LocalErrors, d.wait(1)[0].Status)
				csrc.requireBytes(t, pattern(100, 3))
			case "posted SEND of the owner's":
				c.recv(verbs.RecvWR{ID: 6, SGL: csrc.sgl()})
				wc := d.wait(1)[0] // its first packet may have left before
				require.Contains(t, append([]verbs.Status{verbs.Success}, s.LocalErrors...), wc.Status)
			case "receive", "posted receive":
				if use == "receive" {
					d.recv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{sge}})
				}
				c.send(verbs.SendWR{ID: 4, Op: verbs.OpSend, SGL: csrc.sgl()})
				c.waitID(4, verbs.RemOpErr)
				d.waitID(5, verbs.LocProtErr)
			case "invalidation":
				d.recv(verbs.RecvWR{ID: 5})
				c.send(verbs.SendWR{ID: 4, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: victim.RKey()})
				c.waitID(4, verbs.Success)
				d.waitID(5, verbs.RemInvReqErr)
			}
			dst.requireBytes(t, pattern(100, 2))
			require.Len(t, victim.Bytes(), len(b.arena.Bytes()), "it is the owner's to close")
			a.ping(b)
			b.ping(a)
			require.NoError(t, victim.Close())
		})
	}
}

// testInvalidateFence invalidates, behind a fence, the region that is still being read (without one, a SEND may overtake
// a READ).
func testInvalidateFence(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv, verbs.OpRead)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 20 })
	s.needsInvalidate(t, b.pd, b.arena.Bytes())
	src, dst := b.span(300_000).fill(1), a.span(300_000)
	victim := register(t, b.pd, b.arena.Bytes(), invalidatable|verbs.RemoteRead)
	b.recv(verbs.RecvWR{ID: 1})
	a.send(
		verbs.SendWR{ID: 2, Op: verbs.OpRead, SGL: dst.sgl(), RemoteAddr: victim.Addr() + uint64(src.off), RKey: victim.RKey()},
		verbs.SendWR{ID: 3, Op: verbs.OpSendWithInv, Flags: verbs.Signaled | verbs.Fence, InvalidateKey: victim.RKey()},
	)
	a.waitID(3, verbs.Success)
	b.waitID(1, verbs.Success)
	dst.requireBytes(t, src.bytes())
}

// testInvalidateConcurrent writes to regions through other connections while they are invalidated: each write is done
// or refused, none is done later.
func testInvalidateConcurrent(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	a, b := s.pair(t)
	s.needsInvalidate(t, b.pd, b.arena.Bytes())
	ob := s.options(nil)
	ob.pd = b.pd
	for range 5 {
		a.reset()
		b.reset()
		c, d := s.pairOf(t, s.options(nil), ob)
		dst := b.span(20000)
		victim := register(t, b.pd, b.arena.Bytes(), invalidatable)
		src := c.span(20000).fill(1)
		for i := range 20 {
			c.send(verbs.SendWR{
				ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(),
				RemoteAddr: victim.Addr() + uint64(dst.off), RKey: victim.RKey(),
			})
		}
		b.recv(verbs.RecvWR{ID: 1})
		a.send(verbs.SendWR{ID: 2, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: victim.RKey()})
		a.waitID(2, verbs.Success)
		b.waitID(1, verbs.Success)
		require.NoError(t, victim.Close()) // an access under way is over
		dst.fill(9)
		failed := false
		for _, wc := range c.wait(20) {
			switch {
			case failed:
				require.Equal(t, verbs.WRFlushErr, wc.Status)
			case wc.Status != verbs.Success:
				require.Equal(t, verbs.RemAccessErr, wc.Status)
				failed = true
			}
		}
		dst.requireBytes(t, pattern(20000, 9))
		require.NoError(t, d.qp.Close())
	}
}

// testInvalidateRefused names keys that cannot be invalidated: those of regions that were registered without, of other domains, of none.
// The message arrives and is acknowledged, the receiver's connection ends (fault class J of IBTA 9.9.3), and the region is as before.
func testInvalidateRefused(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	for _, c := range []struct {
		name string
		key  func(b, other *end) uint32
	}{
		{"Region", func(b, _ *end) uint32 { return b.mr.RKey() }},
		{"LocalRegion", func(b, _ *end) uint32 { return register(b.t, b.pd, b.arena.Bytes()[:100], verbs.LocalWrite).RKey() }},
		{"None", func(b, _ *end) uint32 { return b.mr.RKey() ^ 0x5A5A5A5A }},
		{"Zero", func(_, _ *end) uint32 { return 0 }},
		{"OtherDomain", func(_, other *end) uint32 {
			if s.NoInvalidate {
				return other.mr.RKey()
			}
			return register(other.t, other.pd, other.arena.Bytes()[:100], invalidatable).RKey()
		}},
		{"Closed", func(b, _ *end) uint32 {
			access := invalidatable
			if s.NoInvalidate {
				access &^= verbs.RemoteInvalidate
			}
			mr := register(b.t, b.pd, b.arena.Bytes()[:100], access)
			require.NoError(b.t, mr.Close())
			return mr.RKey()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t)
			other, peer := s.pair(t)
			ob := s.options(nil)
			ob.pd = b.pd
			x, y := s.pairOf(t, s.options(nil), ob) // of the same domain
			src, dst := a.span(3000).fill(1), b.span(3000)
			b.recv(verbs.RecvWR{ID: 10, SGL: dst.sgl()}, verbs.RecvWR{ID: 11})
			b.recv(verbs.RecvWR{ID: 12})
			a.send(verbs.SendWR{ID: 1, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: c.key(b, peer), SGL: src.sgl()})
			a.waitID(1, verbs.Success)
			wc := b.wait(1)[0]
			require.Equal(t, uint64(10), wc.ID)
			require.Equal(t, verbs.RemInvReqErr, wc.Status)
			b.requireFlushed(11, 12)
			b.send(verbs.SendWR{ID: 13, Op: verbs.OpSend})
			b.requireFlushed(13)
			a.quiet()
			dst.requireGuards(t)

			w := b.span(8)
			x.send(verbs.SendWR{
				ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: x.span(8).fill(7).sgl(), RemoteAddr: w.addr(), RKey: w.rkey(),
			})
			x.waitID(2, verbs.Success)
			x.ping(y)
			w.requireBytes(t, pattern(8, 7))
			other.ping(peer)
			peer.ping(other)
		})
	}
}

// testInvalidateSRQ takes the receives from a shared queue.
func testInvalidateSRQ(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	p := s.pool(t, 8)
	a, b := p.join()
	c, d := p.join()
	p.post(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2}, verbs.RecvWR{ID: 3})
	a.send(verbs.SendWR{ID: 4, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: p.mr.RKey()})
	a.waitID(4, verbs.Success)
	b.waitID(1, verbs.RemInvReqErr)
	c.send(verbs.SendWR{ID: 5, Op: verbs.OpSend, Flags: verbs.Signaled})
	c.waitID(5, verbs.Success)
	d.waitID(2, verbs.Success)
	if s.NoInvalidate {
		return
	}
	victim := register(t, p.pd, p.arena.Bytes(), invalidatable)
	c.send(verbs.SendWR{ID: 6, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: victim.RKey()})
	c.waitID(6, verbs.Success)
	require.Equal(t, victim.RKey(), d.waitID(3, verbs.Success).Imm)
}

// testInvalidateRNR: a message that meets no receive invalidates nothing, until there is one.
func testInvalidateRNR(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	a, b := s.pair(t)
	s.needsInvalidate(t, b.pd, b.arena.Bytes())
	ob := s.options(nil)
	ob.pd = b.pd
	c, _ := s.pairOf(t, s.options(nil), ob)
	dst := b.span(8)
	victim := register(t, b.pd, b.arena.Bytes(), invalidatable)
	a.send(verbs.SendWR{ID: 1, Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: victim.RKey()})
	write := verbs.SendWR{
		ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: c.span(8).fill(1).sgl(),
		RemoteAddr: victim.Addr() + uint64(dst.off), RKey: victim.RKey(),
	}
	for range 5 {
		a.quiet()
		c.send(write)
		c.waitID(2, verbs.Success)
	}
	b.recv(verbs.RecvWR{ID: 3})
	a.waitID(1, verbs.Success)
	b.waitID(3, verbs.Success)
	c.send(write)
	c.waitID(2, verbs.RemAccessErr)
}

// testInvalidateDatagram: datagrams have no such operation.
func testInvalidateDatagram(s *suite, t *testing.T) {
	s.needs(t, verbs.OpSendWithInv)
	if s.NoDatagrams {
		t.Skip("the provider has no datagrams, or loses them")
	}
	x, y, d := s.udPair(t)
	n, err := x.qp.PostSend([]verbs.SendWR{d.to(verbs.SendWR{Op: verbs.OpSendWithInv, InvalidateKey: y.mr.RKey()})})
	require.Zero(t, n)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	x.goes(d, y)
}
