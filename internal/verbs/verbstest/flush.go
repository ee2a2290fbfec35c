package verbstest

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var flushTests = []test{
	{"Declared", testFlushDeclared},
	{"Kinds", testFlushKinds},
	{"Order", testFlushOrder},
	{"Depth", testFlushDepth},
	{"RemoteAccess", testFlushRemoteAccess},
	{"PostErrors", testFlushPostErrors},
	{"Persistent", testFlushPersistent},
	{"PersistentAccess", testFlushPersistentAccess},
	{"Volatile", testFlushVolatile},
	{"OwnWay", testFlushOwnWay},
	{"OwnWayFails", testFlushOwnWayFails},
	{"SlowDisk", testFlushSlowDisk},
	{"Closed", testFlushClosed},
	{"Allocations", testFlushAllocations},
}

// flush is a signaled FLUSH of a span.
func (s span) flush(id uint64, kind verbs.Access) verbs.SendWR {
	return flush(id, kind, s.addr(), s.rkey(), s.n)
}

func flush(id uint64, kind verbs.Access, addr uint64, rkey uint32, n int) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Op: verbs.OpFlush, Flags: verbs.Signaled, RemoteAddr: addr, RKey: rkey, FlushLength: uint32(n), FlushType: kind,
	}
}

func (e *end) write(id uint64, src, dst span) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: dst.addr(), RKey: dst.rkey()}
}

const persistentAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.FlushGlobal | verbs.FlushPersistent

// testFlushDeclared: what a device says about itself is what it does, and what it does not do it says.
func testFlushDeclared(s *suite, t *testing.T) {
	a, _ := s.pair(t)
	info := a.id.Device().Info()
	require.Equal(t, s.supports(verbs.OpFlush), info.NativeFlush)
	require.Equal(t, s.supports(verbs.OpAtomicWrite), info.NativeAtomicWrite)
	if s.supports(verbs.OpFlush) {
		return
	}
	for _, access := range []verbs.Access{verbs.FlushGlobal, verbs.FlushPersistent} {
		_, err := a.pd.RegMR(a.arena.Bytes(), access)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	_, err := a.qp.PostSend([]verbs.SendWR{flush(1, verbs.FlushGlobal, 0, 0, 0)})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func testFlushKinds(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	for i, n := range []int{0, 1, 8, 3000, 20000} {
		for _, level := range []verbs.FlushLevel{verbs.FlushRange, verbs.FlushMR} {
			a.reset()
			b.reset()
			src, dst := a.span(n).fill(uint64(i)), b.span(n)
			wr := dst.flush(2, verbs.FlushGlobal)
			if wr.FlushLevel = level; level == verbs.FlushMR {
				wr.RemoteAddr, wr.FlushLength = 0, ^uint32(0) // they say nothing
			}
			write := a.write(1, src, dst)
			write.Flags = 0
			a.send(write, wr)
			require.Equal(t, verbs.WCFlush, a.waitID(2, verbs.Success).Op)
			dst.requireBytes(t, src.bytes())
		}
	}
	// Up to the last byte of the region, and of nothing behind it.
	end := b.mr.Addr() + uint64(len(b.arena.Bytes()))
	a.send(flush(3, verbs.FlushGlobal, end-1, b.mr.RKey(), 1), flush(4, verbs.FlushGlobal, end, b.mr.RKey(), 0))
	a.waitID(3, verbs.Success)
	a.waitID(4, verbs.Success)
	b.quiet()
}

// testFlushOrder: completions come in the order of requests, and only where they were asked for.
func testFlushOrder(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush, verbs.OpRead)
	a, b := s.pair(t, func(o *options) { o.mem = 1 << 19 })
	const n, rounds = 5000, 12
	var src, at, back []span
	for i := range uint64(rounds) {
		src, at, back = append(src, a.span(n).fill(i)), append(at, b.span(n)), append(back, a.span(n))
		b.recv(verbs.RecvWR{ID: i})
		unsignaled := at[i].flush(99, verbs.FlushGlobal)
		unsignaled.Flags = 0
		fenced := verbs.SendWR{ID: 5*i + 4, Op: verbs.OpSend, Flags: verbs.Signaled | verbs.Fence}
		a.send(a.write(5*i, src[i], at[i]), at[i].flush(5*i+1, verbs.FlushGlobal), a.read(5*i+2, back[i], at[i]), unsignaled,
			at[i].flush(5*i+3, verbs.FlushGlobal), fenced)
		if i%4 == 3 { // the queue has room for so many
			for k := 5 * (i - 3); k < 5*i+5; k++ {
				a.waitID(k, verbs.Success)
			}
		}
	}
	a.quiet()
	for i := range rounds {
		b.waitID(uint64(i), verbs.Success)
		back[i].requireBytes(t, src[i].bytes())
	}
}

// testFlushDepth posts more FLUSHes than may be outstanding.
func testFlushDepth(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	for _, depth := range []uint8{1, 2} {
		a, b := s.pair(t, func(o *options) { o.param.InitiatorDepth, o.param.ResponderResources = depth, depth })
		dst := b.span(100)
		for i := range uint64(50) {
			a.send(dst.flush(i, verbs.FlushGlobal))
		}
		for i := range uint64(50) {
			a.waitID(i, verbs.Success)
		}
	}
}

// placementErrors are the ways to FLUSH or ATOMIC_WRITE 8 bytes of what a requester has no right to.
var placementErrors = []struct {
	name string
	at   func(b, other *end, dst span, op verbs.Opcode) (addr uint64, rkey uint32)
}{
	{"Key", func(_, _ *end, dst span, _ verbs.Opcode) (uint64, uint32) { return dst.addr(), dst.rkey() ^ 0x5A5A5A5A }},
	{"KeyZero", func(_, _ *end, dst span, _ verbs.Opcode) (uint64, uint32) { return dst.addr(), 0 }},
	{"Before", func(b, _ *end, _ span, op verbs.Opcode) (uint64, uint32) {
		return b.mr.Addr() - leastStep(op), b.mr.RKey()
	}},
	{"Beyond", func(b, _ *end, _ span, op verbs.Opcode) (uint64, uint32) {
		return b.mr.Addr() + uint64(len(b.mr.Bytes())) - 8 + leastStep(op), b.mr.RKey()
	}},
	{"AddressZero", func(_, _ *end, dst span, _ verbs.Opcode) (uint64, uint32) { return 0, dst.rkey() }},
	{"Wrap", func(_, _ *end, dst span, _ verbs.Opcode) (uint64, uint32) { return ^uint64(0) - 7, dst.rkey() }},
	{"NoRight", func(b, _ *end, dst span, op verbs.Opcode) (uint64, uint32) {
		access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
		if op == verbs.OpAtomicWrite {
			access = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteAtomic
		}
		mr := register(b.t, b.pd, b.arena.Bytes(), access)
		return mr.Addr() + uint64(dst.off), mr.RKey()
	}},
	{"OtherDomain", func(_, other *end, _ span, _ verbs.Opcode) (uint64, uint32) { return other.mr.Addr(), other.mr.RKey() }},
	{"Closed", func(b, _ *end, dst span, _ verbs.Opcode) (uint64, uint32) {
		mr := register(b.t, b.pd, b.arena.Bytes(), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
		addr, key := mr.Addr()+uint64(dst.off), mr.RKey()
		require.NoError(b.t, mr.Close())
		return addr, key
	}},
}

// leastStep is how far a word moves at least: alignment is looked at first.
func leastStep(op verbs.Opcode) uint64 {
	if op == verbs.OpAtomicWrite {
		return 8
	}
	return 1
}

func testFlushRemoteAccess(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	s.placementRemoteAccess(t, func(addr uint64, rkey uint32) verbs.SendWR { return flush(2, verbs.FlushGlobal, addr, rkey, 8) })
}

// placementRemoteAccess: the requester learns what is wrong, the peer's connection fails, what follows is not done, and
// nobody else notices.
func (s *suite) placementRemoteAccess(t *testing.T, request func(addr uint64, rkey uint32) verbs.SendWR) {
	for _, c := range placementErrors {
		t.Run(c.name, func(t *testing.T) {
			a, b := s.pair(t)
			other, peer := s.pair(t)
			src, good, dst := a.span(64).fill(1), b.span(64), b.span(64)
			b.recv(verbs.RecvWR{ID: 50}, verbs.RecvWR{ID: 51})
			a.recv(verbs.RecvWR{ID: 60})
			addr, rkey := c.at(b, peer, dst, request(0, 0).Op)
			a.send(
				a.write(1, src, good),
				request(addr, rkey),
				verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: src.sgl()},
				a.write(4, src, dst),
			)
			a.waitID(1, verbs.Success)
			a.waitID(2, verbs.RemAccessErr)
			a.requireFlushedQueues([]uint64{3, 4}, []uint64{60})
			b.requireFlushed(50, 51)
			good.requireBytes(t, src.bytes())
			dst.requireUntouched(t)
			other.ping(peer)
			peer.ping(other)
		})
	}
}

// testFlushPostErrors posts what no request can be. The queue pair stays as it was.
func testFlushPostErrors(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	dst := b.span(16)
	for what, change := range map[string]func(wr *verbs.SendWR){
		"no type":       func(wr *verbs.SendWR) { wr.FlushType = 0 },
		"another type":  func(wr *verbs.SendWR) { wr.FlushType = verbs.FlushGlobal | verbs.RemoteWrite },
		"unknown level": func(wr *verbs.SendWR) { wr.FlushLevel = 2 },
	} {
		wr := dst.flush(1, verbs.FlushGlobal)
		change(&wr)
		_, err := a.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(t, err, syscall.EINVAL, what)
	}
	a.ping(b)
	// A connection that was made without is no good for it.
	oa, ob := s.options(nil), s.options(nil)
	ob.param.ResponderResources = 0
	a, b = s.pairOf(t, oa, ob)
	_, err := a.qp.PostSend([]verbs.SendWR{b.span(8).flush(1, verbs.FlushGlobal)})
	require.ErrorIs(t, err, syscall.EINVAL)
	a.ping(b)
}

// testFlushPersistent makes parts of persistent memory persistent.
func testFlushPersistent(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	if s.PersistentMemory == nil {
		t.Skip("there is no persistent memory here")
	}
	a, b := s.pair(t)
	const n = 20000
	mem := s.PersistentMemory(t, n)
	mr := register(t, b.pd, mem[3:], persistentAccess) // not from the start of a page
	src := a.span(n - 3).fill(5)
	id := uint64(0)
	for _, kind := range []verbs.Access{verbs.FlushPersistent, verbs.FlushPersistent | verbs.FlushGlobal} {
		for _, r := range [][2]int{{0, n - 3}, {0, 1}, {4094, 4}, {n - 4, 1}, {8189, 4096}, {5000, 0}} {
			wr := flush(id+1, kind, mr.Addr()+uint64(r[0]), mr.RKey(), r[1])
			whole := flush(id+2, kind, 0, mr.RKey(), 0)
			whole.FlushLevel = verbs.FlushMR
			a.send(verbs.SendWR{
				ID: id, Op: verbs.OpWrite, SGL: []verbs.SGE{{Addr: src.addr() + uint64(r[0]), Length: uint32(r[1]), LKey: a.mr.LKey()}},
				RemoteAddr: mr.Addr() + uint64(r[0]), RKey: mr.RKey(),
			}, wr, whole)
			require.Equal(t, verbs.WCFlush, a.waitID(id+1, verbs.Success).Op)
			a.waitID(id+2, verbs.Success)
			id += 3
		}
	}
	require.Equal(t, src.bytes(), mem[3:n])
}

// testFlushPersistentAccess: each type has a right of its own.
func testFlushPersistentAccess(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	if s.PersistentMemory == nil {
		t.Skip("there is no persistent memory here")
	}
	for _, right := range []verbs.Access{verbs.FlushGlobal, verbs.FlushPersistent} {
		for _, kind := range []verbs.Access{verbs.FlushGlobal, verbs.FlushPersistent, verbs.FlushGlobal | verbs.FlushPersistent} {
			a, b := s.pair(t)
			mr := register(t, b.pd, s.PersistentMemory(t, 4096), verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|right)
			a.send(flush(1, kind, mr.Addr(), mr.RKey(), 8))
			if right == kind {
				a.waitID(1, verbs.Success)
			} else {
				a.waitID(1, verbs.RemAccessErr)
			}
		}
	}
}

// testFlushVolatile: nobody is told that an arena is persistent.
func testFlushVolatile(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	_, err := b.pd.RegMR(b.arena.Bytes(), persistentAccess)
	require.ErrorIs(t, err, syscall.EINVAL)
	b.span(8)
	a.ping(b)
}

// ownWay registers all memory of an end with a way of its own, where the provider can do so.
func (s *suite) ownWay(t *testing.T, b *end, persist func(mem []byte) error) verbs.MR {
	p, ok := b.pd.(verbs.Persister)
	if !ok {
		t.Skip("the device makes memory persistent by itself")
	}
	mr, err := p.RegPersistentMR(b.arena.Bytes(), persistentAccess, persist)
	require.NoError(t, err)
	t.Cleanup(func() { closeIt(t, "MR", mr) })
	return mr
}

// testFlushOwnWay: a consumer's function gets what was written, all of it and no more, before the peer is told.
func testFlushOwnWay(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	var mu sync.Mutex
	var got [][]byte
	mr := s.ownWay(t, b, func(mem []byte) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, append([]byte(nil), mem...))
		return nil
	})
	dst := b.span(9000)
	for i := range uint64(10) {
		a.reset()
		n := 1 + 999*int(i)
		src := a.span(n).fill(i)
		off := mr.Addr() + uint64(dst.off)
		a.send(
			verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: src.sgl(), RemoteAddr: off, RKey: mr.RKey()},
			flush(2, verbs.FlushGlobal, off, mr.RKey(), n),
			flush(3, verbs.FlushPersistent, off, mr.RKey(), 0),
			flush(4, verbs.FlushPersistent, off, mr.RKey(), n),
		)
		for id := range uint64(3) {
			a.waitID(2+id, verbs.Success)
		}
		mu.Lock()
		require.Len(t, got, int(i)+1)
		require.Equal(t, src.bytes(), got[i])
		mu.Unlock()
	}
	dst.requireGuards(t)
}

// testFlushOwnWayFails: an error of the consumer's ends the connection, as remote operation error.
func testFlushOwnWayFails(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	mr := s.ownWay(t, b, func(mem []byte) error {
		if len(mem) == 9 {
			return errors.New("the disk is full")
		}
		return nil
	})
	b.recv(verbs.RecvWR{ID: 50})
	a.send(
		flush(1, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 8),
		flush(2, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 9),
		flush(3, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 8),
	)
	a.waitID(1, verbs.Success)
	a.waitID(2, verbs.RemOpErr)
	a.requireFlushed(3)
	b.requireFlushed(50)
}

// testFlushSlowDisk: while one connection waits for a disk, neither it nor others wait with anything else.
func testFlushSlowDisk(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	a, b := s.pair(t)
	other, peer := s.pair(t)
	disk := make(chan struct{})
	defer sync.OnceFunc(func() { close(disk) })()
	begun := make(chan struct{}, 8)
	mr := s.ownWay(t, b, func([]byte) error {
		begun <- struct{}{}
		<-disk
		return nil
	})
	src, dst := a.span(100).fill(1), b.span(100)
	b.recv(verbs.RecvWR{ID: 50})
	a.send(
		a.write(1, src, dst),
		flush(2, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 8),
		verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled},
	)
	a.waitID(1, verbs.Success)
	select {
	case <-begun:
	case <-time.After(s.Timeout):
		require.Fail(t, "the disk is not asked")
	}
	b.waitID(50, verbs.Success)
	other.ping(peer)
	peer.ping(other)
	b.ping(a)
	a.quiet()
	time.Sleep(150 * time.Millisecond) // the request is repeated meanwhile
	a.quiet()
	disk <- struct{}{}
	require.Equal(t, verbs.WCFlush, a.waitID(2, verbs.Success).Op)
	a.waitID(3, verbs.Success)
	require.Empty(t, begun, "it is done once")
}

// testFlushClosed closes regions while they are made persistent.
func testFlushClosed(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	for i := range 4 {
		a, b := s.pair(t)
		inUse := make(chan struct{}, 1)
		mr := s.ownWay(t, b, func([]byte) error {
			inUse <- struct{}{}
			time.Sleep(time.Millisecond)
			<-inUse
			return nil
		})
		var wrs []verbs.SendWR
		for id := range uint64(20) {
			wrs = append(wrs, flush(id, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 8))
		}
		a.send(wrs...)
		time.Sleep(time.Duration(i) * time.Millisecond)
		require.NoError(t, mr.Close())
		require.Empty(t, inUse, "the memory is in use after Close")
		wcs := a.wait(20)
		failed := 0
		for failed < 20 && wcs[failed].Status == verbs.Success {
			failed++
		}
		for k, wc := range wcs[failed:] {
			want := verbs.WRFlushErr
			if k == 0 {
				want = verbs.RemAccessErr
			}
			require.Equal(t, want, wc.Status)
		}
	}
}

func testFlushAllocations(s *suite, t *testing.T) {
	s.needs(t, verbs.OpFlush)
	x := s.steady(t)
	a, b := s.pair(t)
	mr := s.ownWay(t, b, func([]byte) error { return nil })
	x.requireRequests(t, a, b, []verbs.SendWR{
		flush(1, verbs.FlushGlobal, mr.Addr(), mr.RKey(), 4096),
		flush(2, verbs.FlushPersistent, mr.Addr(), mr.RKey(), 4096),
	})
}
