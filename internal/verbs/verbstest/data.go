package verbstest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var dataTests = []test{
	{"Sizes", testSizes},
	{"Inline", testInline},
	{"Gather", testGather},
	{"Read", testRead},
	{"Atomics", testAtomics},
	{"Unsupported", testUnsupported},
	{"Mix", testMix},
}

// ping2 checks that everything e sent before has arrived: a message follows it.
// It does not use up memory.
func (e *end) ping2(to *end) {
	e.t.Helper()
	const id = 0x66656E6365
	to.recv(verbs.RecvWR{ID: id})
	e.send(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled})
	e.waitID(id, verbs.Success)
	require.Zero(e.t, to.waitID(id, verbs.Success).ByteLen)
}

// transfer sends payload from e to to by op, and checks all that is to be seen
// of it. wr has the payload.
func (e *end) transfer(to *end, op verbs.Opcode, wr verbs.SendWR, payload []byte, seed uint64) {
	e.t.Helper()
	imm := uint32(seed)*2654435761 | 1<<31
	dst := to.span(len(payload))
	wr.ID, wr.Op, wr.Flags = seed, op, wr.Flags|verbs.Signaled
	wr.Imm = imm
	wr.RemoteAddr, wr.RKey = dst.addr(), dst.rkey()

	rid := seed ^ 0xFFFF
	wantOp, wantFlags, wantLen := verbs.WCRecv, verbs.WCFlags(0), uint32(len(payload))
	switch op {
	case verbs.OpSend:
		to.recv(verbs.RecvWR{ID: rid, SGL: dst.sgl()})
	case verbs.OpSendWithImm:
		to.recv(verbs.RecvWR{ID: rid, SGL: dst.sgl()})
		wantFlags = verbs.WCWithImm
	case verbs.OpWriteWithImm:
		to.recv(verbs.RecvWR{ID: rid})
		wantOp, wantFlags = verbs.WCRecvWithImm, verbs.WCWithImm
	}
	e.send(wr)

	wc := e.waitID(seed, verbs.Success)
	if op == verbs.OpWrite || op == verbs.OpWriteWithImm {
		require.Equal(e.t, verbs.WCWrite, wc.Op)
	} else {
		require.Equal(e.t, verbs.WCSend, wc.Op)
	}
	if op == verbs.OpWrite {
		e.ping2(to)
	} else {
		wc = to.waitID(rid, verbs.Success)
		require.Equal(e.t, wantOp, wc.Op)
		require.Equal(e.t, wantFlags, wc.Flags)
		require.Equal(e.t, wantLen, wc.ByteLen)
		if wantFlags&verbs.WCWithImm != 0 {
			require.Equal(e.t, imm, wc.Imm)
		}
	}
	dst.requireBytes(e.t, payload)
}

var transferOps = []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpWrite, verbs.OpWriteWithImm}

// sizes are the lengths around which segmentation has its edges.
func sizes(mtu verbs.MTU) []int {
	m := int(mtu)
	return []int{0, 1, 2, 3, 5, m - 1, m, m + 1, 2 * m, 2*m + 1, 64<<10 + 1, 1 << 20}
}

// testSizes moves messages of every size by every operation, both ways.
func testSizes(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 3 << 20 })
	for _, dir := range []struct {
		name     string
		from, to *end
	}{{"ToPassive", a, b}, {"ToActive", b, a}} {
		for _, op := range transferOps {
			if !s.supports(op) {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", dir.name, op), func(t *testing.T) {
				for i, n := range sizes(a.qp.Cap().PathMTU) {
					a.reset()
					b.reset()
					src := dir.from.span(n).fill(uint64(i))
					want := pattern(n, uint64(i))
					dir.from.transfer(dir.to, op, verbs.SendWR{SGL: src.sgl()}, want, uint64(100+i))
					src.requireBytes(t, want)
				}
			})
		}
	}
}

// testInline sends bytes of the Go heap, which change as soon as PostSend returns.
func testInline(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 2 << 20 })
	limit := a.qp.Cap().MaxInline
	require.GreaterOrEqual(t, limit, 64, "the limit that was asked for")
	seed := uint64(200)
	for _, op := range transferOps {
		for _, n := range []int{0, 1, 3, 4, limit - 1, limit} {
			a.reset()
			b.reset()
			seed++
			heap := pattern(n, seed)
			dst := b.span(n)
			b.recv(verbs.RecvWR{ID: 1, SGL: dst.sgl()})
			a.send(verbs.SendWR{ID: 2, Op: op, Flags: verbs.Signaled, Inline: heap, RemoteAddr: dst.addr(), RKey: dst.rkey()})
			clear(heap)
			a.waitID(2, verbs.Success)
			if op == verbs.OpWrite {
				a.send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled})
				a.waitID(3, verbs.Success)
			}
			b.waitID(1, verbs.Success)
			dst.requireBytes(t, pattern(n, seed))
		}
	}
	// What was inline may change at once, even while an earlier message holds it up.
	const n = 8
	heap := make([]byte, 16)
	for i := range n {
		fill(heap, uint64(i))
		a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, Inline: heap})
	}
	fill(heap, 999)
	for i := range n {
		dst := b.span(16)
		b.recv(verbs.RecvWR{ID: uint64(i), SGL: dst.sgl()})
		b.waitID(uint64(i), verbs.Success)
		dst.requireBytes(t, pattern(16, uint64(i)))
	}
	a.wait(n)
}

// testGather sends from several places, and receives into several.
func testGather(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 18 })
	mtu := int(a.qp.Cap().PathMTU)
	for i, parts := range [][]int{
		{1, 1}, {3, 5, 7}, {0, 9, 0, 4}, {mtu, mtu}, {mtu - 1, 2, mtu}, {1, 3 * mtu, 0, 17}, {0, 0}, {5, 0},
	} {
		for _, op := range transferOps {
			a.reset()
			b.reset()
			var sgl []verbs.SGE
			var want []byte
			for j, n := range parts {
				src := a.span(n).fill(uint64(10*i + j))
				sgl = append(sgl, src.sge())
				want = append(want, src.bytes()...)
			}
			a.transfer(b, op, verbs.SendWR{SGL: sgl}, want, uint64(300+i))

			if op != verbs.OpSend {
				continue
			}
			// The same into pieces of other sizes, the last with room to spare.
			var rsgl []verbs.SGE
			var dsts []span
			for left, j := len(want)+10, 0; j < 4; j++ {
				n := left / 3
				if j == 3 {
					n = left
				}
				left -= n
				dsts = append(dsts, b.span(n))
				rsgl = append(rsgl, dsts[j].sge())
			}
			b.recv(verbs.RecvWR{ID: 1, SGL: rsgl})
			a.send(verbs.SendWR{ID: 2, Op: op, Flags: verbs.Signaled, SGL: sgl})
			a.waitID(2, verbs.Success)
			require.Equal(t, uint32(len(want)), b.waitID(1, verbs.Success).ByteLen)
			var got []byte
			for _, d := range dsts {
				got = append(got, d.bytes()...)
				d.requireGuards(t)
			}
			require.True(t, bytes.Equal(want, got[:len(want)]))
			for _, v := range got[len(want):] {
				require.Equal(t, byte(guardByte), v, "bytes behind the message")
			}
		}
	}
}

func testRead(s *suite, t *testing.T) {
	if !s.supports(verbs.OpRead) {
		t.Skip("READ is declared unsupported")
	}
	a, b := s.pair(t, func(o *options) { o.mem = 3 << 20 })
	for _, e := range [][2]*end{{a, b}, {b, a}} {
		from, to := e[0], e[1]
		for i, n := range sizes(a.qp.Cap().PathMTU) {
			a.reset()
			b.reset()
			src := to.span(n).fill(uint64(i))
			d1, d2 := from.span(n/3), from.span(n-n/3)
			from.send(verbs.SendWR{
				ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{d1.sge(), d2.sge()},
				RemoteAddr: src.addr(), RKey: src.rkey(),
			})
			wc := from.waitID(1, verbs.Success)
			require.Equal(t, verbs.WCRead, wc.Op)
			require.Equal(t, uint32(n), wc.ByteLen)
			want := pattern(n, uint64(i))
			d1.requireBytes(t, want[:n/3])
			d2.requireBytes(t, want[n/3:])
			src.requireBytes(t, want)
		}
	}
	// More than may be outstanding, with writes behind them: all in order.
	a.reset()
	b.reset()
	src := b.span(5000).fill(1)
	var dsts []span
	for i := range 32 {
		d := a.span(5000)
		dsts = append(dsts, d)
		a.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpRead, Flags: verbs.Signaled, SGL: d.sgl(), RemoteAddr: src.addr(), RKey: src.rkey()})
	}
	over := a.span(5000).fill(2)
	a.send(verbs.SendWR{ID: 32, Op: verbs.OpWrite, Flags: verbs.Signaled | verbs.Fence, SGL: over.sgl(), RemoteAddr: src.addr(), RKey: src.rkey()})
	for i := range 33 {
		a.waitID(uint64(i), verbs.Success)
	}
	for _, d := range dsts {
		d.requireBytes(t, pattern(5000, 1))
	}
	a.ping2(b)
	src.requireBytes(t, pattern(5000, 2))
}

func testAtomics(s *suite, t *testing.T) {
	if !s.supports(verbs.OpFetchAdd) || !s.supports(verbs.OpCompareSwap) {
		t.Skip("atomics are declared unsupported")
	}
	a, b := s.pair(t)
	word := b.span(8) // the first span is aligned
	require.Zero(t, word.addr()%8)
	clear(word.bytes())
	old := a.span(8)
	do := func(wr verbs.SendWR) uint64 {
		wr.ID, wr.Flags, wr.SGL = 1, verbs.Signaled, old.sgl()
		wr.RemoteAddr, wr.RKey = word.addr(), word.rkey()
		a.send(wr)
		wc := a.waitID(1, verbs.Success)
		require.Equal(t, uint32(8), wc.ByteLen)
		want := verbs.WCFetchAdd
		if wr.Op == verbs.OpCompareSwap {
			want = verbs.WCCompareSwap
		}
		require.Equal(t, want, wc.Op)
		old.requireGuards(t)
		word.requireGuards(t)
		return binary.NativeEndian.Uint64(old.bytes())
	}
	require.Equal(t, uint64(0), do(verbs.SendWR{Op: verbs.OpFetchAdd, SwapAdd: 5}))
	require.Equal(t, uint64(5), do(verbs.SendWR{Op: verbs.OpFetchAdd, SwapAdd: ^uint64(0)}))
	require.Equal(t, uint64(4), do(verbs.SendWR{Op: verbs.OpCompareSwap, Compare: 3, SwapAdd: 77}))
	require.Equal(t, uint64(4), do(verbs.SendWR{Op: verbs.OpCompareSwap, Compare: 4, SwapAdd: 1 << 63}))
	require.Equal(t, uint64(1<<63), do(verbs.SendWR{Op: verbs.OpFetchAdd, SwapAdd: 1 << 63}))
	require.Equal(t, uint64(0), binary.NativeEndian.Uint64(word.bytes()))
}

// testUnsupported checks that what the provider lacks is refused as such, leaves
// the queue pair as it was, and that the requests before it were taken.
func testUnsupported(s *suite, t *testing.T) {
	if len(s.Unsupported) == 0 {
		t.Skip("nothing is declared unsupported")
	}
	a, b := s.pair(t)
	buf := a.span(8)
	for _, op := range s.Unsupported {
		b.recv(verbs.RecvWR{ID: 1})
		n, err := a.qp.PostSend([]verbs.SendWR{
			{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled},
			{ID: 3, Op: op, Flags: verbs.Signaled, SGL: buf.sgl(), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
			{ID: 4, Op: verbs.OpSend, Flags: verbs.Signaled},
		})
		require.True(t, errors.Is(err, errors.ErrUnsupported), "%v: %v", op, err)
		require.Equal(t, 1, n, "%v", op)
		a.waitID(2, verbs.Success)
		b.waitID(1, verbs.Success)
		a.quiet()
	}
	a.ping(b)
}
