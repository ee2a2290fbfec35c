package verbstest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var oneSidedTests = []test{
	{"ReadLarge", testReadLarge},
	{"ReadBothWays", testReadBothWays},
	{"ReadOrder", testReadOrder},
	{"ReadUnsignaled", testReadUnsignaled},
	{"ReadDepthOne", testReadDepthOne},
	{"Depths", testDepths},
	{"ReadZeroLength", testReadZeroLength},
	{"ReadWhileWritten", testReadWhileWritten},
	{"RemoteAccess", testFetchRemoteAccess},
	{"LocalKey", testFetchLocalKey},
	{"PostErrors", testFetchPostErrors},
	{"ClosedRegion", testReadClosedRegion},
	{"AtomicsMisaligned", testAtomicsMisaligned},
	{"AtomicsContended", testAtomicsContended},
	{"AtomicsLock", testAtomicsLock},
	{"Allocations", testFetchAllocations},
}

// fetches are the operations that bring data back.
var fetches = []verbs.Opcode{verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd}

func (s *suite) needs(t *testing.T, ops ...verbs.Opcode) {
	for _, op := range ops {
		if !s.supports(op) {
			t.Skipf("%v is declared unsupported", op)
		}
	}
}

func (e *end) read(id uint64, dst, src span) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: dst.sgl(), RemoteAddr: src.addr(), RKey: src.rkey(),
	}
}

// maxMsgSize is the longest message that both devices take.
func (s *suite) maxMsgSize(t testing.TB) int64 {
	l := s.listen(t)
	id := s.resolve(t, l.Addr().Port(), nil)
	return id.Device().Info().MaxMsgSize
}

// testReadLarge reads more than any buffer on the way holds.
func testReadLarge(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	n := 24<<20 + 1234567
	if most := s.maxMsgSize(t); int64(n) > most {
		n = int(most)
	}
	a, b := s.pair(t, func(o *options) { o.mem = n + 1<<16 })
	src := b.span(n).fill(1)
	d := []span{a.span(n / 3), a.span(5), a.span(n - n/3 - 5)}
	start := time.Now()
	wr := a.read(1, d[0], src)
	wr.SGL = []verbs.SGE{d[0].sge(), d[1].sge(), d[2].sge()}
	a.send(wr)
	require.Equal(t, uint32(n), a.waitID(1, verbs.Success).ByteLen)
	took := time.Since(start)
	want := pattern(n, 1)
	d[0].requireBytes(t, want[:n/3])
	d[1].requireBytes(t, want[n/3:n/3+5])
	d[2].requireBytes(t, want[n/3+5:])
	t.Logf("%d bytes in %v: %.0f MB/s, sent again %d", n, took, float64(n)/1e6/took.Seconds(), a.qp.Stats().Retransmits)
}

// testReadBothWays keeps both directions busy with READs and messages.
func testReadBothWays(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	const n, rounds = 40000, 60
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 19 })
	type side struct {
		*end
		src, out, dst, in span
		peer              *side
	}
	x, y := &side{end: a}, &side{end: b}
	x.peer, y.peer = y, x
	for i, z := range []*side{x, y} {
		z.src, z.out = z.span(n).fill(uint64(10+i)), z.span(n).fill(uint64(20+i))
		z.dst, z.in = z.span(n), z.span(n)
	}
	post := func(z *side, i uint64) {
		z.send(
			verbs.SendWR{ID: 2 * i, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: z.out.sgl(), RemoteAddr: z.peer.in.addr(), RKey: z.peer.in.rkey()},
			z.read(2*i+1, z.dst, z.peer.src),
		)
	}
	for i := range uint64(8) {
		post(x, i)
		post(y, i)
	}
	for i := range uint64(rounds) {
		for _, z := range []*side{x, y} {
			z.waitID(2*i, verbs.Success)
			z.waitID(2*i+1, verbs.Success)
			if i+8 < rounds {
				post(z, i+8)
			}
		}
	}
	for _, z := range []*side{x, y} {
		z.dst.requireBytes(t, z.peer.src.bytes())
		z.in.requireBytes(t, z.peer.out.bytes())
	}
}

// testReadOrder: a READ sees what WRITEs before it wrote, a fenced request waits for
// READs before it, and all complete in the order in which they were posted.
func testReadOrder(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	const n, rounds = 9000, 12
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 19 })
	at, buf := b.span(n), b.span(8)
	var got []span
	var dst []span
	for i := range uint64(rounds) {
		src, d := a.span(n).fill(i), a.span(n)
		got, dst = append(got, src), append(dst, d)
		a.send(
			verbs.SendWR{ID: 3 * i, Op: verbs.OpWrite, Flags: verbs.Signaled | verbs.Fence, SGL: src.sgl(), RemoteAddr: at.addr(), RKey: at.rkey()},
			a.read(3*i+1, d, at),
		)
		if s.supports(verbs.OpFetchAdd) {
			a.send(verbs.SendWR{
				ID: 3*i + 2, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: a.span(8).sgl(),
				RemoteAddr: buf.addr() &^ 7, RKey: buf.rkey(),
			})
		} else {
			a.send(verbs.SendWR{ID: 3*i + 2, Op: verbs.OpWrite, Flags: verbs.Signaled})
		}
	}
	for i := range uint64(3 * rounds) {
		a.waitID(i, verbs.Success)
	}
	for i := range dst {
		dst[i].requireBytes(t, got[i].bytes())
	}
}

// testReadUnsignaled: only what was asked for completes, in its turn.
func testReadUnsignaled(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 18 })
	src := b.span(3000).fill(3)
	var dst []span
	for i := range uint64(40) {
		d := a.span(3000)
		dst = append(dst, d)
		wr := a.read(i, d, src)
		if i%10 != 9 {
			wr.Flags = 0
		}
		a.send(wr)
	}
	for _, id := range []uint64{9, 19, 29, 39} {
		a.waitID(id, verbs.Success)
	}
	for _, d := range dst {
		d.requireBytes(t, src.bytes())
	}
	a.quiet()
}

// testReadDepthOne: more READs than may be outstanding wait their turn.
func testReadDepthOne(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	oa, ob := s.options(nil), s.options(nil)
	oa.param.ResponderResources, oa.param.InitiatorDepth = 1, 1
	ob.param.ResponderResources, ob.param.InitiatorDepth = 1, 1
	oa.mem, ob.mem = 1<<20, 1<<20
	a, b := s.pairOf(t, oa, ob)
	src := b.span(300000).fill(1)
	var dst []span
	for i := range uint64(3) {
		dst = append(dst, a.span(300000))
		a.send(a.read(i, dst[i], src))
	}
	for i := range uint64(20) {
		a.send(a.read(3+i, span{dst[0].m, dst[0].off, 10}, span{src.m, src.off, 10}))
	}
	for i := range uint64(23) {
		a.waitID(i, verbs.Success)
	}
	for _, d := range dst {
		d.requireBytes(t, src.bytes())
	}
	b.ping(a)
}

// testDepths: what the two sides may have outstanding is the least of what they offer. More than the device
// can is refused, and 255 takes that.
func testDepths(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	l := s.listen(t)
	oa, ob := s.options(nil), s.options(nil)
	a := s.active(t, l.Addr().Port(), oa)
	most := uint8(a.id.Device().Info().MaxRDAtomic)
	require.Positive(t, most)
	if most < 254 {
		for _, p := range []verbs.ConnParam{{InitiatorDepth: most + 1}, {ResponderResources: most + 1}} {
			_, err := s.active(t, l.Addr().Port(), oa).id.Connect(s.ctx(t), &p)
			require.ErrorIs(t, err, syscall.EINVAL)
		}
	}
	oa.param.ResponderResources, oa.param.InitiatorDepth = 255, 3
	ob.param.ResponderResources, ob.param.InitiatorDepth = 255, 255
	done := a.connect(s.ctx(t), &oa.param)
	b := s.passive(t, l, ob)
	require.Equal(t, uint8(3), b.id.Request().ResponderResources)
	require.Equal(t, most, b.id.Request().InitiatorDepth)
	require.NoError(t, b.id.Accept(&ob.param))
	rep, err := done()
	require.NoError(t, err)
	require.Equal(t, uint8(3), rep.InitiatorDepth)
	require.Equal(t, most, rep.ResponderResources)
	b.waitEvents(verbs.EventEstablished)
	src, dst := b.span(100).fill(1), a.span(100)
	a.send(a.read(1, dst, src))
	a.waitID(1, verbs.Success)
	dst.requireBytes(t, src.bytes())
}

// testReadZeroLength reads nothing from nowhere, which is allowed (IBTA 9.7.4.1.5).
func testReadZeroLength(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	a, b := s.pair(t)
	buf := a.span(8)
	a.send(
		verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, RemoteAddr: 12345, RKey: 678},
		verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{{}, buf.sge()}[:1], RKey: 678},
	)
	for id := range uint64(2) {
		wc := a.waitID(1+id, verbs.Success)
		require.Equal(t, verbs.WCRead, wc.Op)
		require.Zero(t, wc.ByteLen)
	}
	buf.requireUntouched(t)
	a.ping(b)
}

// testReadWhileWritten reads memory that its owner changes all the while: what is read may be mixed, but
// it is read, and no packet is damaged by it.
func testReadWhileWritten(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	a, b := s.pair(t)
	src, dst := b.span(20000), a.span(20000)
	bad := func() uint64 {
		if c, ok := s.Active.(verbs.Counter); ok {
			return c.Counters(a.id.Device().Name()).BadICRC
		}
		return 0
	}
	before := bad()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				fill(src.bytes(), i)
			}
		}
	}()
	for i := range uint64(100) {
		a.send(a.read(i, dst, src))
		a.waitID(i, verbs.Success)
	}
	close(stop)
	<-stopped
	require.Equal(t, before, bad(), "packets whose ICRC is wrong")
	a.send(a.read(1, dst, src))
	a.waitID(1, verbs.Success)
	dst.requireBytes(t, src.bytes())
}

// fetchErrors are the ways to ask for what a requester has no right to.
var fetchErrors = []struct {
	name string
	at   func(b, other *end, src span, op verbs.Opcode) (addr uint64, rkey uint32)
}{
	{"Key", func(_, _ *end, src span, _ verbs.Opcode) (uint64, uint32) { return src.addr(), src.rkey() ^ 0x5A5A5A5A }},
	{"KeyZero", func(_, _ *end, src span, _ verbs.Opcode) (uint64, uint32) { return src.addr(), 0 }},
	{"Before", func(b, _ *end, _ span, _ verbs.Opcode) (uint64, uint32) { return b.mr.Addr() - 8, b.mr.RKey() }},
	{"Beyond", func(b, _ *end, _ span, op verbs.Opcode) (uint64, uint32) {
		// By one byte, and as little as alignment allows.
		n := uint64(3000) - 1
		if op != verbs.OpRead {
			n = 0
		}
		return b.mr.Addr() + uint64(len(b.mr.Bytes())) - n, b.mr.RKey()
	}},
	{"AddressZero", func(_, _ *end, src span, _ verbs.Opcode) (uint64, uint32) { return 0, src.rkey() }},
	{"Wrap", func(_, _ *end, src span, _ verbs.Opcode) (uint64, uint32) { return ^uint64(0) - 7, src.rkey() }},
	{"NoRight", func(b, _ *end, src span, op verbs.Opcode) (uint64, uint32) {
		access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteAtomic | verbs.RemoteRead
		if op == verbs.OpRead {
			access &^= verbs.RemoteRead
		} else {
			access &^= verbs.RemoteAtomic
		}
		mr := register(b.t, b.pd, b.arena.Bytes(), access)
		return mr.Addr() + uint64(src.off), mr.RKey()
	}},
	{"OtherDomain", func(_, other *end, _ span, _ verbs.Opcode) (uint64, uint32) { return other.mr.Addr(), other.mr.RKey() }},
	{"Closed", func(b, _ *end, src span, _ verbs.Opcode) (uint64, uint32) {
		mr := register(b.t, b.pd, b.arena.Bytes(), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteAtomic)
		addr, key := mr.Addr()+uint64(src.off), mr.RKey()
		require.NoError(b.t, mr.Close())
		return addr, key
	}},
}

// testFetchRemoteAccess fetches from where it must not: the requester learns it, the peer's connection
// fails, neither side's memory changes, and nobody else notices.
func testFetchRemoteAccess(s *suite, t *testing.T) {
	for _, op := range fetches {
		if !s.supports(op) {
			continue
		}
		for _, c := range fetchErrors {
			t.Run(c.name+"/"+op.String(), func(t *testing.T) {
				a, b := s.pair(t)
				other, peer := s.pair(t)
				src, good, dst := b.span(3000), a.span(3000), a.span(3000)
				b.recv(verbs.RecvWR{ID: 50}, verbs.RecvWR{ID: 51})
				a.recv(verbs.RecvWR{ID: 60})
				addr, rkey := c.at(b, peer, src, op)
				a.send(
					a.read(1, good, src),
					verbs.SendWR{ID: 2, Op: op, SGL: dst.sgl(), RemoteAddr: addr, RKey: rkey, Compare: guardWord, SwapAdd: 1},
					verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: good.sgl()},
					a.read(4, dst, src),
				)
				a.waitID(1, verbs.Success)
				a.waitID(2, verbs.RemAccessErr)
				a.requireFlushedQueues([]uint64{3, 4}, []uint64{60})
				b.requireFlushed(50, 51)
				good.requireBytes(t, src.bytes())
				dst.requireUntouched(t)
				src.requireUntouched(t)
				other.ping(peer)
				peer.ping(other)
			})
		}
	}
}

// guardWord is what 8 bytes of a fresh span hold.
var guardWord = binary.NativeEndian.Uint64(bytes.Repeat([]byte{guardByte}, 8))

// testFetchLocalKey lets data come back to where it must not be written. A provider may refuse the request or complete it
// with an error.
func testFetchLocalKey(s *suite, t *testing.T) {
	for _, op := range fetches {
		if !s.supports(op) {
			continue
		}
		for _, name := range []string{"Key", "Before", "Beyond", "Length", "Wrap", "OtherDomain", "ReadOnly"} {
			t.Run(name+"/"+op.String(), func(t *testing.T) {
				a, b := s.pair(t)
				src, dst := b.span(100).fill(1), a.span(100)
				bad := badSGEs(s, a, dst)[name]
				if name == "ReadOnly" {
					mr := register(t, a.pd, a.arena.Bytes(), 0)
					bad = verbs.SGE{Addr: mr.Addr() + uint64(dst.off), Length: 100, LKey: mr.LKey()}
				}
				n, err := a.qp.PostSend([]verbs.SendWR{
					{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled},
					{ID: 2, Op: op, SGL: []verbs.SGE{bad}, RemoteAddr: (src.addr() + 7) &^ 7, RKey: src.rkey()},
				})
				if err != nil {
					require.Equal(t, 1, n)
					a.waitID(1, verbs.Success)
					a.ping(b)
					return
				}
				require.Equal(t, 2, n)
				a.waitID(1, verbs.Success)
				a.waitID(2, verbs.LocProtErr)
				a.send(verbs.SendWR{ID: 3, Op: verbs.OpSend})
				a.requireFlushed(3)
				dst.requireUntouched(t)
			})
		}
	}
}

// testFetchPostErrors posts what no request can be. The queue pair stays as it was.
func testFetchPostErrors(s *suite, t *testing.T) {
	s.needs(t, fetches...)
	a, b := s.pair(t)
	dst := a.span(16)
	short := dst.sge()
	short.Length = 7
	for what, wr := range map[string]verbs.SendWR{
		"inline READ":               {Op: verbs.OpRead, Inline: make([]byte, 4)},
		"inline FETCH_ADD":          {Op: verbs.OpFetchAdd, Inline: make([]byte, 8)},
		"FETCH_ADD into 7 bytes":    {Op: verbs.OpFetchAdd, SGL: []verbs.SGE{short}},
		"CMP_SWAP into nothing":     {Op: verbs.OpCompareSwap},
		"READ into too many pieces": {Op: verbs.OpRead, SGL: make([]verbs.SGE, a.qp.Cap().MaxSendSGE+1)},
	} {
		_, err := a.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(t, err, syscall.EINVAL, what)
	}
	a.ping(b)

	// A connection that was made without is no good for them.
	oa, ob := s.options(nil), s.options(nil)
	ob.param.ResponderResources = 0
	a, b = s.pairOf(t, oa, ob)
	for _, op := range fetches {
		_, err := a.qp.PostSend([]verbs.SendWR{{Op: op, SGL: a.span(8).sgl(), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}})
		require.ErrorIs(t, err, syscall.EINVAL, "%v", op)
	}
	// The other direction has its own limit.
	src, d := a.span(100).fill(1), b.span(100)
	b.send(b.read(1, d, src))
	b.waitID(1, verbs.Success)
	d.requireBytes(t, src.bytes())
}

// patience is a retry count with which a peer's silence is noticed within the test.
func (s *suite) patience() uint8 {
	if s.SilentRefusals {
		return 1
	}
	return 7
}

// testReadClosedRegion closes a region while it is read. The READ ends, well or with an access error, and what was read
// before the region was closed is right.
func testReadClosedRegion(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	const n = 4 << 20
	for i := range uint64(4) {
		a, b := s.pair(t, func(o *options) { o.mem = n + 1<<16; o.param.RetryCount = s.patience() })
		src, dst := b.span(n).fill(i), a.span(n)
		mr := register(t, b.pd, b.arena.Bytes(), verbs.LocalWrite|verbs.RemoteRead)
		a.recv(verbs.RecvWR{ID: 60})
		wr := a.read(1, dst, src)
		wr.RemoteAddr, wr.RKey = mr.Addr()+uint64(src.off), mr.RKey()
		a.send(wr, verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled})
		time.Sleep(time.Duration(i) * 500 * time.Microsecond)
		require.NoError(t, mr.Close())
		want := pattern(n, i)
		clear(src.bytes())
		wc := a.wait(1)[0]
		require.Equal(t, uint64(1), wc.ID)
		if wc.Status == verbs.Success {
			dst.requireBytes(t, want)
			a.waitID(2, verbs.Success)
			continue
		}
		if !s.SilentRefusals || wc.Status != verbs.RetryExcErr {
			require.Equal(t, verbs.RemAccessErr, wc.Status)
		}
		a.requireFlushedQueues([]uint64{2}, []uint64{60})
		for k, v := range dst.bytes() {
			if v != want[k] && v != guardByte {
				require.Failf(t, "wrong data", "byte %d is %#x: read after Close", k, v)
			}
		}
	}
}

// testAtomicsMisaligned: a word that is none is an invalid request.
func testAtomicsMisaligned(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFetchAdd, verbs.OpCompareSwap)
	for _, op := range fetches[1:] {
		for off := uint64(1); off < 8; off += 3 {
			a, b := s.pair(t)
			word, dst := b.span(64), a.span(8)
			b.recv(verbs.RecvWR{ID: 50})
			n, err := a.qp.PostSend([]verbs.SendWR{
				{
					ID: 1, Op: op, Flags: verbs.Signaled, SGL: dst.sgl(), RemoteAddr: (word.addr()+7)&^7 + off, RKey: word.rkey(),
					Compare: guardWord, SwapAdd: 1,
				},
				{ID: 2, Op: verbs.OpWrite},
			})
			if err != nil {
				require.Zero(t, n)
				a.ping2to(b, 50)
				continue
			}
			a.waitID(1, verbs.RemInvReqErr)
			a.requireFlushed(2)
			b.requireFlushed(50)
			word.requireUntouched(t)
			dst.requireUntouched(t)
		}
	}
}

// testAtomicsContended adds to one word over several connections: none is lost, and nobody sees a value twice.
func testAtomicsContended(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFetchAdd)
	const conns, each = 4, 120
	_, b := s.pair(t)
	word := b.span(16)
	clear(word.bytes())
	at := (word.addr() + 7) &^ 7
	var seen [conns][]uint64
	var g group
	for c := range conns {
		o := s.options(nil)
		o.pd = b.pd
		a, _ := s.pairOf(t, s.options(nil), o)
		var dst []span
		for range 8 {
			dst = append(dst, a.span(8))
		}
		g.run(func() error {
			posted := 0
			for done := range each {
				for ; posted < each && posted < done+8; posted++ {
					n, err := a.qp.PostSend([]verbs.SendWR{{
						ID: uint64(posted), Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SwapAdd: 3, SGL: dst[posted%8].sgl(),
						RemoteAddr: at, RKey: word.rkey(),
					}})
					if err != nil || n != 1 {
						return fmt.Errorf("posting: %d, %w", n, err)
					}
				}
				wc, err := a.next(1)
				if err != nil {
					return err
				}
				if wc[0].Status != verbs.Success || wc[0].ID != uint64(done) {
					return fmt.Errorf("%+v where %d was due: %w", wc[0], done, wc[0].Status)
				}
				seen[c] = append(seen[c], binary.NativeEndian.Uint64(dst[done%8].bytes()))
			}
			return nil
		})
	}
	g.wait(t)
	var all []uint64
	for _, vs := range seen {
		require.True(t, slices.IsSorted(vs))
		all = append(all, vs...)
	}
	slices.Sort(all)
	for i, v := range all {
		require.Equal(t, uint64(3*i), v)
	}
	require.Equal(t, uint64(3*conns*each), binary.NativeEndian.Uint64(word.bytes()[at-word.addr():]))
}

// testAtomicsLock guards a number by a lock of CMP_SWAP, with READ and WRITE inside it.
func testAtomicsLock(s *suite, t *testing.T) {
	s.needs(t, fetches...)
	const conns, each = 3, 15
	_, b := s.pair(t)
	words := b.span(32)
	clear(words.bytes())
	lock := (words.addr() + 7) &^ 7
	number := lock + 8
	var g group
	for c := range uint64(conns) {
		o := s.options(nil)
		o.pd = b.pd
		a, _ := s.pairOf(t, s.options(nil), o)
		got := a.span(8)
		do := func(wr verbs.SendWR) (uint64, error) {
			wr.Flags, wr.SGL, wr.RKey = verbs.Signaled, got.sgl(), words.rkey()
			if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return 0, err
			}
			wc, err := a.next(1)
			if err == nil && wc[0].Status != verbs.Success {
				err = wc[0].Status
			}
			return binary.NativeEndian.Uint64(got.bytes()), err
		}
		g.run(func() error {
			for range each {
				for {
					old, err := do(verbs.SendWR{Op: verbs.OpCompareSwap, RemoteAddr: lock, Compare: 0, SwapAdd: c + 1})
					if err != nil {
						return err
					}
					if old == 0 {
						break
					}
				}
				n, err := do(verbs.SendWR{Op: verbs.OpRead, RemoteAddr: number})
				if err != nil {
					return err
				}
				binary.NativeEndian.PutUint64(got.bytes(), n+1)
				if _, err := do(verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: number}); err != nil {
					return err
				}
				if old, err := do(verbs.SendWR{Op: verbs.OpCompareSwap, RemoteAddr: lock, Compare: c + 1, SwapAdd: 0}); err != nil || old != c+1 {
					return fmt.Errorf("unlocking found %d: %w", old, err)
				}
			}
			return nil
		})
	}
	g.wait(t)
	require.Equal(t, uint64(conns*each), binary.NativeEndian.Uint64(words.bytes()[number-words.addr():]))
}

// testFetchAllocations counts what is allocated for READs and atomics in a steady state.
func testFetchAllocations(s *suite, t *testing.T) {
	s.needs(t, fetches...)
	x := s.steady(t)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 18 })
	src, dst := b.span(100000).fill(1), a.span(100000)
	x.requireRequests(t, a, b, []verbs.SendWR{
		a.read(1, dst, src),
		{ID: 2, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: a.span(8).sgl(), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{ID: 3, Op: verbs.OpCompareSwap, Flags: verbs.Signaled, SGL: a.span(8).sgl(), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
	})
	dst.requireBytes(t, src.bytes())
}
