package verbstest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

var atomicWriteTests = []test{
	{"Value", testAtomicWriteValue},
	{"Order", testAtomicWriteOrder},
	{"AfterFlush", testAtomicWriteAfterFlush},
	{"Whole", testAtomicWriteWhole},
	{"RemoteAccess", testAtomicWriteRemoteAccess},
	{"Misaligned", testAtomicWriteMisaligned},
	{"LocalKey", testAtomicWriteLocalKey},
	{"PostErrors", testAtomicWritePostErrors},
	{"Allocations", testAtomicWriteAllocations},
}

// word is an aligned span of 8 bytes.
func (m *memory) word() span {
	s := m.span(8)
	if odd := (m.mr.Addr() + uint64(s.off)) & 7; odd != 0 {
		m.used = s.off + int(8-odd) - guardLen
		s = m.span(8)
	}
	return s
}

func atomicWrite(id uint64, value []byte, addr uint64, rkey uint32) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicWrite, Flags: verbs.Signaled, Inline: value, RemoteAddr: addr, RKey: rkey}
}

// store is a signaled ATOMIC_WRITE to a word.
func (s span) store(id uint64, value []byte) verbs.SendWR {
	return atomicWrite(id, value, s.addr(), s.rkey())
}

// testAtomicWriteValue: 8 bytes arrive as they are, from wherever they come, and nothing else does.
func testAtomicWriteValue(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	a, b := s.pair(t, func(o *options) { o.init.MaxInline = 0 })
	for i := range uint64(4) {
		src, dst := a.span(8).fill(i), b.word()
		wr := dst.store(i, src.bytes())
		switch i {
		case 1:
			wr.Inline, wr.SGL = nil, src.sgl()
		case 2:
			x, y := src.sge(), src.sge()
			x.Length, y.Length, y.Addr = 3, 5, y.Addr+3
			wr.Inline, wr.SGL = nil, []verbs.SGE{x, {}, y}
		case 3:
			wr.Inline = bytes.Clone(src.bytes())
		}
		a.send(wr)
		if i == 3 {
			clear(wr.Inline) // taken by then
		}
		require.Equal(t, verbs.WCAtomicWrite, a.waitID(i, verbs.Success).Op)
		dst.requireBytes(t, src.bytes())
	}
	b.quiet()
}

// testAtomicWriteOrder: an ATOMIC_WRITE comes after what was written before it, and before what follows.
func testAtomicWriteOrder(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite, verbs.OpRead)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 18 })
	src, data, word := a.span(3000), b.span(3000), b.word()
	back := a.span(8)
	for i := range uint64(40) {
		src.fill(i)
		value := binary.NativeEndian.AppendUint64(nil, i+1)
		msg := b.span(8)
		b.recv(verbs.RecvWR{ID: 50, SGL: msg.sgl()})
		write := a.write(1, src, data)
		write.Flags = 0
		first := word.store(2, []byte("not this"))
		first.Flags = 0
		a.send(write, first, word.store(3, value), a.read(4, back, word), verbs.SendWR{ID: 5, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: value})
		b.waitID(50, verbs.Success)
		word.requireBytes(t, value) // when the message is here, the word is
		msg.requireBytes(t, value)
		data.requireBytes(t, src.bytes())
		for id := uint64(3); id <= 5; id++ {
			a.waitID(id, verbs.Success)
		}
		back.requireBytes(t, value)
		if i%10 == 9 {
			b.reset()
			data, word = b.span(3000), b.word()
		}
	}
}

// testAtomicWriteAfterFlush: what an ATOMIC_WRITE announces is persistent by then, without a fence.
func testAtomicWriteAfterFlush(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite, verbs.OpFlush)
	a, b := s.pair(t)
	word := b.word()
	early := make(chan []byte, 100)
	mr := s.ownWay(t, b, func(mem []byte) error {
		if mem[0] == 0 { // the data, before the word
			if race.Enabled {
				return nil // the detector cannot know that nobody writes to it
			}
			early <- bytes.Clone(word.bytes())
		}
		return nil
	})
	zero := b.span(64)
	clear(zero.bytes())
	for i := range uint64(30) {
		value := binary.BigEndian.AppendUint64(nil, 1<<63+i)
		a.send(
			flush(1, verbs.FlushPersistent, mr.Addr()+uint64(zero.off), mr.RKey(), 64),
			atomicWrite(2, value, mr.Addr()+uint64(word.off), mr.RKey()),
			flush(3, verbs.FlushPersistent, mr.Addr()+uint64(word.off), mr.RKey(), 8),
		)
		for id := uint64(1); id <= 3; id++ {
			a.waitID(id, verbs.Success)
		}
		word.requireBytes(t, value)
		if !race.Enabled {
			require.NotEqual(t, value, <-early)
		}
	}
}

// testAtomicWriteWhole: whoever looks at a word atomically sees one of the values that were written to it, and none twice in
// turn with another.
func testAtomicWriteWhole(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite, verbs.OpFetchAdd)
	a, b := s.pair(t)
	word := b.word()
	clear(word.bytes())
	o := s.options(nil)
	o.pd = b.pd
	reader, _ := s.pairOf(t, s.options(nil), o)
	const rounds = 200
	var g group
	g.run(func() error {
		for i := range rounds {
			v := byte(i%255 + 1)
			_, err := a.qp.PostSend([]verbs.SendWR{word.store(1, bytes.Repeat([]byte{v}, 8))})
			if err != nil {
				return err
			}
			wc, err := a.next(1)
			if err != nil || wc[0].Status != verbs.Success {
				return fmt.Errorf("%v, %w", wc, err)
			}
		}
		return nil
	})
	got := reader.span(8)
	g.run(func() error {
		for range rounds {
			_, err := reader.qp.PostSend([]verbs.SendWR{{
				Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: got.sgl(), RemoteAddr: word.addr(), RKey: word.rkey(),
			}})
			if err != nil {
				return err
			}
			wc, err := reader.next(1)
			if err != nil || wc[0].Status != verbs.Success {
				return fmt.Errorf("%v, %w", wc, err)
			}
			if v := got.bytes(); !bytes.Equal(v, bytes.Repeat(v[:1], 8)) {
				return fmt.Errorf("a part of a word: %x", v)
			}
		}
		return nil
	})
	g.wait(t)
}

func testAtomicWriteRemoteAccess(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	s.placementRemoteAccess(t, func(addr uint64, rkey uint32) verbs.SendWR {
		return atomicWrite(2, []byte("87654321"), addr, rkey)
	})
}

// testAtomicWriteMisaligned: a word that is none is an invalid request.
func testAtomicWriteMisaligned(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	for _, off := range []uint64{1, 4} {
		a, b := s.pair(t)
		area := b.span(64)
		b.recv(verbs.RecvWR{ID: 50})
		n, err := a.qp.PostSend([]verbs.SendWR{
			atomicWrite(1, []byte("87654321"), (area.addr()+7)&^7+off, area.rkey()), {ID: 2, Op: verbs.OpWrite},
		})
		if err != nil {
			require.Zero(t, n)
			a.ping2to(b, 50)
			continue
		}
		a.waitID(1, verbs.RemInvReqErr)
		a.requireFlushed(2)
		b.requireFlushed(50)
		area.requireUntouched(t)
	}
}

// testAtomicWriteLocalKey writes what must not be read. A provider may refuse the request or complete it with an error.
func testAtomicWriteLocalKey(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	for _, name := range []string{"Key", "Before", "Beyond", "OtherDomain"} {
		t.Run(name, func(t *testing.T) {
			a, b := s.pair(t)
			dst := b.word()
			bad := badSGEs(s, a, a.span(8))[name]
			bad.Length = 8
			wr := dst.store(2, nil)
			wr.SGL = []verbs.SGE{bad}
			n, err := a.qp.PostSend([]verbs.SendWR{{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled}, wr})
			a.waitID(1, verbs.Success)
			if err != nil {
				require.Equal(t, 1, n)
				a.ping(b)
				return
			}
			require.Equal(t, 2, n)
			a.waitID(2, verbs.LocProtErr)
			dst.requireUntouched(t)
		})
	}
}

// testAtomicWritePostErrors posts what is not 8 bytes. The queue pair stays as it was.
func testAtomicWritePostErrors(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	a, b := s.pair(t)
	src, dst := a.span(16), b.word()
	for _, n := range []int{0, 1, 7, 9, 16} {
		inline, sgl := dst.store(1, src.bytes()[:n]), dst.store(2, nil)
		sgl.SGL = src.sgl()
		sgl.SGL[0].Length = uint32(n)
		for _, wr := range []verbs.SendWR{inline, sgl} {
			_, err := a.qp.PostSend([]verbs.SendWR{wr})
			require.ErrorIs(t, err, syscall.EINVAL, "%d bytes", n)
		}
	}
	a.ping(b)
	dst.requireUntouched(t)
	// A connection that was made without is no good for it.
	oa, ob := s.options(nil), s.options(nil)
	ob.param.ResponderResources = 0
	a, b = s.pairOf(t, oa, ob)
	_, err := a.qp.PostSend([]verbs.SendWR{b.word().store(1, make([]byte, 8))})
	require.ErrorIs(t, err, syscall.EINVAL)
	a.ping(b)
}

func testAtomicWriteAllocations(s *suite, t *testing.T) {
	s.needs(t, verbs.OpAtomicWrite)
	x := s.steady(t)
	a, b := s.pair(t)
	dst := b.word()
	src := a.span(8).fill(1)
	sgl := dst.store(2, nil)
	sgl.SGL = src.sgl()
	x.requireRequests(t, a, b, []verbs.SendWR{dst.store(1, make([]byte, 8)), sgl})
}
