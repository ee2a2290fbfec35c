package verbstest

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Regions of a mapping of the caller's own, of no arena.

var mappingTests = []test{
	{"Operations", testMappingOperations},
	{"Atomics", testMappingAtomics},
	{"Order", testMappingOrder},
	{"RemoteAccess", testMappingRemoteAccess},
	{"Closed", testMappingClosed},
	{"Receives", testMappingReceives},
	{"SharedReceives", testMappingSharedReceives},
	{"ReceiveAccess", testMappingReceiveAccess},
}

// mapping registers memory of the test's own for an end.
func (s *suite) mapping(t *testing.T, e *end, n int, access verbs.Access) (verbs.MR, []byte) {
	if s.PersistentMemory == nil {
		t.Skip("there is no memory but arenas")
	}
	mem := s.PersistentMemory(t, n)
	return register(t, e.pd, mem, access), mem
}

const mappingAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// testMappingOperations writes and reads pieces of all lengths, at both ends of them.
func testMappingOperations(s *suite, t *testing.T) {
	s.needs(t, verbs.OpRead)
	const n = 300 << 10
	a, b := s.pair(t, func(o *options) { o.mem = 3 * n })
	far, mem := s.mapping(t, b, n, mappingAccess)
	near, own := s.mapping(t, a, 2*n, mappingAccess)
	for i, r := range [][2]int{{0, 1}, {0, n}, {n - 1, 1}, {4095, 2}, {7, 256<<10 + 1}, {500, 0}} {
		a.reset()
		off, size := r[0], r[1]
		src, dst := a.span(size).fill(uint64(i)), a.span(size)
		at := far.Addr() + uint64(off)
		b.recv(verbs.RecvWR{ID: 50})
		a.send(
			verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: src.sgl(), RemoteAddr: at, RKey: far.RKey()},
			verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: dst.sgl(), RemoteAddr: at, RKey: far.RKey()},
			verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: []verbs.SGE{
				{Addr: near.Addr(), Length: uint32(size / 3), LKey: near.LKey()},
				{Addr: near.Addr() + n, Length: uint32(size - size/3), LKey: near.LKey()},
			}, RemoteAddr: at, RKey: far.RKey()},
		)
		a.waitID(2, verbs.Success)
		a.waitID(3, verbs.Success)
		require.Equal(t, src.bytes()[:size/3], own[:size/3])
		require.Equal(t, src.bytes()[size/3:], own[n:][:size-size/3])
		require.Equal(t, src.bytes(), mem[off:][:size])
		dst.requireBytes(t, src.bytes())
		a.send(verbs.SendWR{
			ID: 4, Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: 77, Inline: []byte("inline bytes")[:min(12, n-off)], RemoteAddr: at, RKey: far.RKey(),
		})
		a.waitID(4, verbs.Success)
		require.Equal(t, uint32(77), b.waitID(50, verbs.Success).Imm)
		require.Equal(t, []byte("inline bytes")[:min(12, n-off)], mem[off:][:min(12, n-off)])
	}
}

// testMappingAtomics: words of a mapping are changed as a whole, by several connections.
func testMappingAtomics(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFetchAdd, verbs.OpCompareSwap)
	a, b := s.pair(t)
	far, mem := s.mapping(t, b, 4096, mappingAccess)
	got := a.span(8)
	word := func() uint64 { return binary.NativeEndian.Uint64(mem[16:]) }
	wr := verbs.SendWR{Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: got.sgl(), RemoteAddr: far.Addr() + 16, RKey: far.RKey(), SwapAdd: 5}
	for i := range uint64(10) {
		wr.ID = i
		a.send(wr)
		a.waitID(i, verbs.Success)
		require.Equal(t, 5*i, binary.NativeEndian.Uint64(got.bytes()))
		require.Equal(t, 5*i+5, word())
	}
	wr.Op, wr.Compare, wr.SwapAdd = verbs.OpCompareSwap, 50, 7
	for i, want := range []uint64{50, 7} {
		wr.ID = uint64(i)
		a.send(wr)
		a.waitID(wr.ID, verbs.Success)
		require.Equal(t, want, binary.NativeEndian.Uint64(got.bytes()))
		require.Equal(t, uint64(7), word())
	}
	if s.supports(verbs.OpAtomicWrite) {
		a.send(verbs.SendWR{ID: 9, Op: verbs.OpAtomicWrite, Flags: verbs.Signaled, Inline: []byte("12345678"), RemoteAddr: far.Addr() + 16, RKey: far.RKey()})
		a.waitID(9, verbs.Success)
		require.Equal(t, "12345678", string(mem[16:24]))
	}
}

// testMappingOrder: a message that was posted behind a WRITE finds what that wrote, whatever memory each goes to.
func testMappingOrder(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 20 })
	far, mem := s.mapping(t, b, 1<<19, mappingAccess)
	src, dst := a.span(300<<10), b.span(8)
	for i := range uint64(3) {
		src.fill(i)
		b.recv(verbs.RecvWR{ID: i, SGL: dst.sgl()})
		a.send(
			verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: far.Addr() + i, RKey: far.RKey()},
			verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("written.")},
		)
		b.waitID(i, verbs.Success)
		require.Equal(t, src.bytes(), mem[i:][:src.n])
		a.waitID(1, verbs.Success)
		a.waitID(2, verbs.Success)
	}
}

func testMappingRemoteAccess(s *suite, t *testing.T) {
	for _, c := range []struct {
		name   string
		access verbs.Access
		off    uint64
	}{
		{"NoRight", verbs.LocalWrite | verbs.RemoteRead, 0},
		{"Beyond", mappingAccess, 4089},
		{"Before", mappingAccess, ^uint64(0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t)
			far, mem := s.mapping(t, b, 4096, c.access)
			a.send(
				verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, Inline: []byte("8 bytes."), RemoteAddr: far.Addr() + c.off, RKey: far.RKey()},
				verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled},
			)
			a.waitID(1, verbs.RemAccessErr)
			a.waitID(2, verbs.WRFlushErr)
			require.Equal(t, make([]byte, 4096), mem)
		})
	}
}

// testMappingClosed closes a region while it is written to: afterwards nothing is.
func testMappingClosed(s *suite, t *testing.T) {
	for range 2 {
		a, b := s.pair(t, func(o *options) { o.mem = 1 << 19 })
		far, mem := s.mapping(t, b, 1<<19, mappingAccess)
		src := a.span(64 << 10).fill(3)
		var wrs []verbs.SendWR
		for id := range uint64(12) {
			wrs = append(wrs, verbs.SendWR{ID: id, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: far.Addr() + id, RKey: far.RKey()})
		}
		a.send(wrs...)
		require.NoError(t, far.Close())
		clear(mem)
		failed := false
		for _, wc := range a.wait(12) {
			failed = failed || wc.Status != verbs.Success
		}
		if failed {
			require.Equal(t, make([]byte, len(mem)), mem)
		}
	}
}

// testMappingReceives receives into a mapping.
func testMappingReceives(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 19 })
	near, mem := s.mapping(t, b, 1<<18, verbs.LocalWrite)
	for i, n := range []int{0, 1, 1000, 200000} {
		a.reset()
		b.reset()
		src, head := a.span(n).fill(uint64(i)), b.span(min(n, 10))
		rest := uint32(n - head.n)
		b.recv(verbs.RecvWR{ID: 1, SGL: append(head.sgl(), verbs.SGE{Addr: near.Addr() + 5, Length: rest + 100, LKey: near.LKey()})})
		mem[5+rest] = 0xEE
		a.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: src.sgl()})
		require.Equal(t, uint32(n), b.waitID(1, verbs.Success).ByteLen)
		a.waitID(2, verbs.Success)
		head.requireBytes(t, src.bytes()[:head.n])
		require.Equal(t, src.bytes()[head.n:], mem[5:][:rest])
		require.Equal(t, byte(0xEE), mem[5+rest], "beyond the message nothing is written")
	}
}

// testMappingSharedReceives receives into a mapping and an arena in turn, from a shared queue that several connections take from at once.
func testMappingSharedReceives(s *suite, t *testing.T) {
	const members, rounds, size = 3, 20, 30000
	p := s.pool(t, members, func(o *options) { o.mem = 1 << 18 })
	near, mem := s.mapping(t, p.end, members*32768, verbs.LocalWrite)
	var from [members]*end
	for i := range from {
		from[i], _ = p.join(func(o *options) { o.mem = 1 << 17 })
	}
	for round := range uint64(rounds) {
		p.reset()
		want := map[string]bool{}
		at := map[uint64]func(n uint32) []byte{}
		for id := range uint64(members) {
			if (id+round)%3 == 0 {
				dst := p.postSpan(id, size)
				at[id] = func(n uint32) []byte { return dst.bytes()[:n] }
				continue
			}
			off := id * 32768
			p.post(verbs.RecvWR{ID: id, SGL: []verbs.SGE{{Addr: near.Addr() + off, Length: size, LKey: near.LKey()}}})
			at[id] = func(n uint32) []byte { return mem[off:][:n] }
		}
		for i, a := range from {
			a.reset()
			src := a.span(size - 100*i).fill(round*members + uint64(i))
			want[string(src.bytes())] = true
			a.send(verbs.SendWR{ID: round, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: src.sgl()})
		}
		for _, wc := range p.wait(members) {
			require.Equal(t, verbs.Success, wc.Status)
			got := string(at[wc.ID](wc.ByteLen))
			require.True(t, want[got], "receive %d has no message, or one that is elsewhere too", wc.ID)
			delete(want, got)
		}
		for _, a := range from {
			a.waitID(round, verbs.Success)
		}
	}
}

// testMappingReceiveAccess posts receives into a mapping that they may not write to, or not so far.
func testMappingReceiveAccess(s *suite, t *testing.T) {
	for _, c := range []struct {
		name   string
		access verbs.Access
		off    uint64
	}{
		{"NoRight", verbs.RemoteRead, 0},
		{"Beyond", mappingAccess, 4089},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t)
			near, mem := s.mapping(t, b, 4096, c.access)
			b.recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{{Addr: near.Addr() + c.off, Length: 8, LKey: near.LKey()}}})
			a.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("8 bytes.")})
			wc := b.wait(1)[0]
			require.Equal(t, uint64(1), wc.ID)
			require.Contains(t, s.LocalErrors, wc.Status)
			a.waitID(2, verbs.RemOpErr)
			require.Equal(t, make([]byte, 4096), mem)
		})
	}
}
