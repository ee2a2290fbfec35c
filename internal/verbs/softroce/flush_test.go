package softroce

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// disk is what persistent memory is written to: it notes the ranges, and takes as long as it is told.
type disk struct {
	r    *reader
	hold chan error // nil: no time

	mu     sync.Mutex
	ranges [][2]int
}

func (d *disk) persist(mem []byte) error {
	at := int(verbs.AddressOf(mem) - verbs.AddressOf(d.r.end.mem))
	d.mu.Lock()
	d.ranges = append(d.ranges, [2]int{at, len(mem)})
	hold := d.hold
	d.mu.Unlock()
	if hold != nil {
		return <-hold
	}
	return nil
}

// written returns the ranges since the last call.
func (d *disk) written() [][2]int {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	ranges := d.ranges
	d.ranges = nil
	return ranges
}

// newFlusher is a peer that flushes a region of the end's: a part of its memory, from an odd byte on.
func newFlusher(t *testing.T, l link) (*reader, *disk) {
	if l.rd == 0 {
		l.rd = 4
	}
	l.mtu = 256
	p := newPeer(t, l)
	r := &reader{p, nil}
	d := &disk{r: r}
	r.m = p.end.regPersistent(p.end.mem[flushAt:flushAt+flushLen], d.persist)
	t.Cleanup(func() { require.NoError(t, r.m.Close()) })
	return r, d
}

const flushAt, flushLen = 4096 + 101, 5000

func (r *reader) flush(psn uint32, placement, level uint8, off, n int) wire.Packet {
	h := r.ask(psn, off, n)
	h.Opcode, h.FETH = wire.RCFlush, wire.NewFETH(placement, level)
	return h
}

const (
	visible    = wire.PlacementGlobal
	persistent = wire.PlacementPersistent
)

func (r *reader) word(psn uint32, off int, value string) wire.Packet {
	h := r.ask(psn, off, 8)
	h.Opcode, h.Payload = wire.RCAtomicWrite, []byte(value)
	return h
}

// requirePlaced checks that the packets begin with the answer to a FLUSH or ATOMIC WRITE, and returns the others.
func requirePlaced(t *testing.T, got []wire.Packet, psn, msn uint32) []wire.Packet {
	t.Helper()
	return requireReply(t, got, psn, 256, nil, msn)
}

func requireAnswer(t *testing.T, got []wire.Packet, want answer) {
	t.Helper()
	require.Len(t, got, 1)
	require.Equal(t, wire.RCAck, got[0].Opcode)
	require.Equal(t, want, answer{got[0].PSN, got[0].AETH.Syndrome, got[0].MSN})
}

func TestFlushIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := newFlusher(t, link{})
		var ranges [][2]int
		psn := uint32(peerPSN)
		for _, c := range []struct {
			placement, level uint8
			off              int
			n                uint32
			want             [][2]int
		}{
			{visible, wire.FlushRange, 0, 8, nil},
			{visible, wire.FlushMR, 0, 0, nil},
			{persistent, wire.FlushRange, 0, flushLen, [][2]int{{flushAt, flushLen}}},
			{persistent, wire.FlushRange, 4999, 1, [][2]int{{flushAt + 4999, 1}}},
			{persistent, wire.FlushRange, flushLen, 0, nil}, // nothing, at the very end
			{persistent | visible, wire.FlushRange, 17, 300, [][2]int{{flushAt + 17, 300}}},
			{persistent, wire.FlushMR, -1 << 20, 1 << 31, [][2]int{{flushAt, flushLen}}}, // of all of it the range says nothing
			{persistent | visible, wire.FlushMR, 0, 1<<32 - 1, [][2]int{{flushAt, flushLen}}},
		} {
			h := r.flush(psn, c.placement, c.level, c.off, 0)
			h.RETH.Length = c.n
			h.FETH |= 0xFFFFFFC0 // reserved, ignored
			r.send(h)
			ranges = d.written()
			require.Equal(t, c.want, ranges, c)
			require.Empty(t, requirePlaced(t, r.take(), psn, psn-peerPSN+1))
			psn++
		}
		r.send(ask(r.writeTo(packet(wire.RCWriteOnly, psn, []byte{7}), 0, 1)))
		require.Equal(t, []answer{{psn, wire.SyndromeACK, psn - peerPSN + 1}}, r.answers())
		require.Empty(t, r.end.completions(), "a FLUSH is silent")
	})
}

func TestPlacementThatIsRefused(t *testing.T) {
	const invalid, access = wire.SyndromeInvalidReq, wire.SyndromeRemoteAccess
	type change = func(t *testing.T, r *reader, h *wire.Packet)
	key := func(rights verbs.Access) change {
		return func(t *testing.T, r *reader, h *wire.Packet) {
			m, err := r.end.pd.register(r.end.mem[:flushLen], rights, func([]byte) error { return nil })
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			h.RETH.VA, h.RETH.RKey = m.Addr()&^7+8, m.RKey()
		}
	}
	const all = allAccess
	for _, c := range []struct {
		name   string
		change change
		flush  uint8 // the answer to a FLUSH of both types; 0: it is taken
		word   uint8 // and to an ATOMIC WRITE
	}{
		{"no type", func(_ *testing.T, _ *reader, h *wire.Packet) { h.FETH = 0 }, invalid, 0},
		{"unknown type", func(_ *testing.T, _ *reader, h *wire.Packet) { h.FETH |= 4 }, invalid, 0},
		{"unknown level", func(_ *testing.T, _ *reader, h *wire.Packet) { h.FETH |= 2 << 4 }, invalid, 0},
		{"too long", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.Length = 1<<31 + 1 }, invalid, invalid},
		{"longer", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.Length++ }, 0, invalid},
		{"shorter", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.Length = 0 }, 0, invalid},
		{"misaligned", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.VA += 4 }, 0, invalid},
		{"unknown key", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.RKey ^= 1 }, access, access},
		{"up to the end", func(_ *testing.T, r *reader, h *wire.Packet) { h.RETH.VA = (r.m.Addr() + flushLen - 8) &^ 7 }, 0, 0},
		{"across the end", func(_ *testing.T, r *reader, h *wire.Packet) { h.RETH.VA = (r.m.Addr() + flushLen) &^ 7 }, access, access},
		{"beyond the end", func(_ *testing.T, r *reader, h *wire.Packet) { h.RETH.VA = (r.m.Addr() + flushLen + 8) &^ 7 }, access, access},
		{"before the start", func(_ *testing.T, r *reader, h *wire.Packet) { h.RETH.VA = r.m.Addr() &^ 7 }, access, access},
		{"around the end of all addresses", func(_ *testing.T, _ *reader, h *wire.Packet) { h.RETH.VA = 1<<64 - 8 }, access, access},
		{"closed", func(t *testing.T, r *reader, _ *wire.Packet) { require.NoError(t, r.m.Close()) }, access, access},
		{"another domain", func(t *testing.T, r *reader, h *wire.Packet) {
			pd, err := r.end.dev.AllocPD()
			require.NoError(t, err)
			m, err := pd.(verbs.Persister).RegPersistentMR(r.end.mem, all, func([]byte) error { return nil })
			require.NoError(t, err)
			h.RETH.VA, h.RETH.RKey = m.Addr(), m.RKey()
			t.Cleanup(func() { require.NoError(t, m.Close()); require.NoError(t, pd.Close()) })
		}, access, access},
		{"no visibility", key(all &^ verbs.FlushGlobal), access, 0},
		{"no persistence", key(all &^ verbs.FlushPersistent), access, 0},
		{"no writing", key(all &^ verbs.RemoteWrite), 0, access},
		{"only both", key(verbs.FlushGlobal | verbs.FlushPersistent), 0, access},
		{"all but both", key(all &^ (verbs.FlushGlobal | verbs.FlushPersistent)), access, 0},
	} {
		for _, op := range []wire.Opcode{wire.RCFlush, wire.RCAtomicWrite} {
			t.Run(c.name+" "+op.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r, d := newFlusher(t, link{})
					r.end.recv(verbs.RecvWR{ID: 9})
					h := r.flush(peerPSN, visible|persistent, wire.FlushRange, 3, 8) // 3: aligned
					want := c.flush
					if op == wire.RCAtomicWrite {
						h, want = r.word(peerPSN, 3, "87654321"), c.word
					}
					c.change(t, r, &h)
					r.send(h, ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+1, []byte{7}), 0, 1)))
					if want == 0 {
						requireAnswer(t, requirePlaced(t, r.take(), peerPSN, 1), answer{peerPSN + 1, wire.SyndromeACK, 2})
						return
					}
					require.Equal(t, []answer{{peerPSN, want, 0}}, r.answers())
					require.Equal(t, []outcome{{9, verbs.WRFlushErr}}, r.end.outcomes())
					require.Empty(t, d.written())
					require.Zero(t, r.end.mem[0], "what follows is not executed")
					for i, b := range r.end.mem[:2*8192] {
						require.Zero(t, b, i)
					}
				})
			})
		}
	}
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{}) // no responder resources
		r := &reader{p, p.end.mr}
		r.send(r.flush(peerPSN, visible, wire.FlushRange, 0, 8))
		require.Equal(t, []answer{{peerPSN, invalid, 0}}, r.answers())
	})
	bubble(t, func(t *testing.T) { // in the middle of a message
		r, _ := newFlusher(t, link{})
		r.send(r.writeTo(packet(wire.RCWriteFirst, peerPSN, make([]byte, 256)), 0, 300), r.flush(peerPSN+1, visible, wire.FlushRange, 0, 8))
		require.Equal(t, []answer{{peerPSN + 1, invalid, 0}}, r.answers())
	})
}

func TestPlacementIsDoneOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := newFlusher(t, link{rd: 3})
		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
		require.Len(t, d.written(), 1)
		requirePlaced(t, r.take(), peerPSN, 1)
		r.send(r.word(peerPSN+1, 3, "abcdefgh"))
		requirePlaced(t, r.take(), peerPSN+1, 2)
		require.Equal(t, "abcdefgh", string(r.m.Bytes()[3:11]))
		copy(r.m.Bytes()[3:], "ABCDEFGH")

		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
		requirePlaced(t, r.take(), peerPSN, 1)
		r.send(r.word(peerPSN+1, 3, "abcdefgh"), r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
		got := requirePlaced(t, r.take(), peerPSN, 1)
		require.Empty(t, requirePlaced(t, got, peerPSN+1, 2))
		require.Equal(t, "ABCDEFGH", string(r.m.Bytes()[3:11]))
		require.Empty(t, d.written())
		// What it was not is not answered.
		r.send(r.word(peerPSN, 3, "abcdefgh"), r.flush(peerPSN+1, visible, wire.FlushRange, 0, 8), r.ask(peerPSN, 0, 0), r.add(peerPSN+1, 3, 1))
		require.Empty(t, r.take())
		// What was done stays so when the region is gone.
		require.NoError(t, r.m.Close())
		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8), r.word(peerPSN+1, 3, "abcdefgh"))
		require.Empty(t, requirePlaced(t, requirePlaced(t, r.take(), peerPSN, 1), peerPSN+1, 2))
		// Three are known.
		r.send(r.ask(peerPSN+2, 0, 0), r.ask(peerPSN+3, 0, 0))
		r.take()
		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
		require.Empty(t, r.take())
	})
}

// TestWhatAFlushHoldsUp: who waits for a disk is the FLUSH, and what the specification puts behind it.
func TestWhatAFlushHoldsUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := newFlusher(t, link{rd: 8})
		d.hold = make(chan error)
		r.end.recv(verbs.RecvWR{ID: 9})
		r.send(
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 0, 1)),
			r.flush(peerPSN+1, persistent, wire.FlushRange, 0, 8),
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+2, []byte{2}), 0, 1)),
			r.flush(peerPSN+3, visible, wire.FlushRange, 0, 8),
			ask(packet(wire.RCSendOnly, peerPSN+4, nil)),
			r.ask(peerPSN+5, 3, 8),
			r.word(peerPSN+6, 3, "abcdefgh"),
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+7, []byte{3}), 0, 1)),
		)
		require.Equal(t, [][2]int{{flushAt, 8}}, d.written())
		require.Equal(t, []answer{{peerPSN, wire.SyndromeACK, 1}}, r.answers(), "what was written is acknowledged at once")
		require.EqualValues(t, 2, r.end.mem[0], "a WRITE does not wait")
		require.Equal(t, []outcome{{9, 0}}, r.end.outcomes(), "nor does a message")
		require.Zero(t, r.m.Bytes()[3], "an ATOMIC WRITE does")

		// Repetitions draw nothing, however many.
		r.send(r.flush(peerPSN+1, persistent, wire.FlushRange, 0, 8), r.word(peerPSN+6, 3, "abcdefgh"))
		r.send(r.flush(peerPSN+1, persistent, wire.FlushRange, 0, 8), r.ask(peerPSN+5, 3, 8))
		require.Empty(t, r.take())
		copy(r.m.Bytes()[3:], "ABCDEFGH")

		d.hold <- nil
		got := requirePlaced(t, r.take(), peerPSN+1, 2)
		got = requirePlaced(t, got, peerPSN+3, 4)
		got = requireReply(t, got, peerPSN+5, 256, []byte("ABCDEFGH"), 6)
		requireAnswer(t, got, answer{peerPSN + 6, wire.SyndromePSNSequence, 6})
		require.Empty(t, d.written())
		r.send(r.word(peerPSN+6, 3, "abcdefgh"), ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+7, []byte{3}), 0, 1)))
		requireAnswer(t, requirePlaced(t, r.take(), peerPSN+6, 7), answer{peerPSN + 7, wire.SyndromeACK, 8})
		require.Equal(t, "abcdefgh", string(r.m.Bytes()[3:11]))

		// Atomics wait, too.
		r.send(r.flush(peerPSN+8, persistent, wire.FlushMR, 0, 0), r.add(peerPSN+9, 11, 1))
		require.Empty(t, r.take())
		require.Zero(t, r.m.Bytes()[11])
		d.hold <- nil
		requireAnswer(t, requirePlaced(t, r.take(), peerPSN+8, 9), answer{peerPSN + 9, wire.SyndromePSNSequence, 9})
	})
}

// TestFlushesOfOneConnectionAreInOrder, as many as were granted at once. One more, which rdma_rxe may send, is asked for later.
func TestFlushesOfOneConnectionAreInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := newFlusher(t, link{rd: 3})
		d.hold = make(chan error)
		var hs []wire.Packet
		for i := range 5 {
			hs = append(hs, r.flush(peerPSN+uint32(i), persistent, wire.FlushRange, i, 1))
		}
		r.send(hs...)
		for i := range 3 {
			require.Equal(t, [][2]int{{flushAt + i, 1}}, d.written())
			require.Empty(t, r.take())
			d.hold <- nil
			got := requirePlaced(t, r.take(), peerPSN+uint32(i), uint32(i)+1)
			if i < 2 {
				require.Empty(t, got)
				continue
			}
			requireAnswer(t, got, answer{peerPSN + 3, wire.SyndromePSNSequence, 3})
		}
		r.send(hs[3:]...)
		require.Equal(t, [][2]int{{flushAt + 3, 1}}, d.written())
		d.hold <- nil
		requirePlaced(t, r.take(), peerPSN+3, 4)
		d.hold <- nil
		requirePlaced(t, r.take(), peerPSN+4, 5)
		require.Equal(t, [][2]int{{flushAt + 4, 1}}, d.written())
	})
}

func TestFlushThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, d := newFlusher(t, link{})
		d.hold = make(chan error)
		r.end.recv(verbs.RecvWR{ID: 8}, verbs.RecvWR{ID: 9})
		r.send(
			r.flush(peerPSN, persistent, wire.FlushRange, 0, 8),
			r.flush(peerPSN+1, persistent, wire.FlushRange, 8, 8),
			ask(packet(wire.RCSendOnly, peerPSN+2, nil)),
			r.flush(peerPSN+3, persistent, wire.FlushRange, 16, 8),
		)
		d.hold <- nil
		requirePlaced(t, r.take(), peerPSN, 1)
		d.hold <- errors.New("input/output error")
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeRemoteOp, 4}}, r.answers())
		require.Equal(t, []outcome{{8, 0}, {9, verbs.WRFlushErr}}, r.end.outcomes(), "a message behind it has arrived")
		require.Equal(t, [][2]int{{flushAt, 8}, {flushAt + 8, 8}}, d.written(), "what was to follow is not begun")
		// The refusal is repeated, and what was done before it; what was not done is not said to be.
		r.send(r.flush(peerPSN+1, persistent, wire.FlushRange, 8, 8))
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeRemoteOp, 4}}, r.answers())
		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
		requireAnswer(t, requirePlaced(t, r.take(), peerPSN, 1), answer{peerPSN + 1, wire.SyndromeRemoteOp, 4})
		r.send(r.flush(peerPSN+3, persistent, wire.FlushRange, 16, 8))
		require.Empty(t, r.take())
	})
}

// TestRefusalBehindAFlush: what is wrong with a later request is told after the FLUSH is answered.
func TestRefusalBehindAFlush(t *testing.T) {
	for _, fails := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			r, d := newFlusher(t, link{})
			d.hold = make(chan error)
			bad := r.ask(peerPSN+1, 0, 8)
			bad.RETH.RKey ^= 1
			r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8), bad)
			require.Empty(t, r.take())
			if fails {
				d.hold <- errors.New("no")
				require.Equal(t, []answer{{peerPSN, wire.SyndromeRemoteOp, 1}}, r.answers())
				return
			}
			d.hold <- nil
			requireAnswer(t, requirePlaced(t, r.take(), peerPSN, 1), answer{peerPSN + 1, wire.SyndromeRemoteAccess, 1})
		})
	}
}

// TestFlushAndClose closes what a FLUSH is about.
func TestFlushAndClose(t *testing.T) {
	begin := func(t *testing.T) (*reader, *disk) {
		r, d := newFlusher(t, link{})
		d.hold = make(chan error)
		r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8), r.flush(peerPSN+1, persistent, wire.FlushMR, 0, 0))
		require.Len(t, d.written(), 1)
		return r, d
	}
	closing := func(c interface{ Close() error }) *atomic.Bool {
		var done atomic.Bool
		go func() { done.Store(c.Close() == nil) }()
		synctest.Wait()
		return &done
	}
	t.Run("region", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, d := begin(t)
			done := closing(r.m)
			require.False(t, done.Load(), "the memory is in use")
			d.hold <- nil
			synctest.Wait()
			require.True(t, done.Load())
			requireAnswer(t, requirePlaced(t, r.take(), peerPSN, 1), answer{peerPSN + 1, wire.SyndromeRemoteAccess, 2})
			require.Empty(t, d.written())
		})
	})
	t.Run("queue pair", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, d := begin(t)
			done := closing(r.end.q)
			require.False(t, done.Load(), "the memory is in use")
			d.hold <- nil
			synctest.Wait()
			require.True(t, done.Load())
			require.Empty(t, r.take())
			require.Empty(t, d.written())
		})
	})
	t.Run("to error", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, d := begin(t)
			require.NoError(t, r.end.q.ToError())
			d.hold <- nil
			require.Empty(t, r.take())
			require.Empty(t, d.written())
			r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8))
			require.Empty(t, r.take())
		})
	})
}

// TestManyConnectionsFlush: no more than some wait for the disk at a time, and all have their turn.
func TestManyConnectionsFlush(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const conns, each = 3 * maxPersisters, 4
		r, d := newFlusher(t, link{})
		d.hold = make(chan error)
		peers := make([]*end, conns)
		for i := range peers {
			peers[i] = r.end.newEnd(verbs.QPInitAttr{}, 8, nil)
			require.NoError(t, peers[i].q.connect(&rcAttr{
				path: newPath(addrA, addrB), destQPN: peerQPN, sqPSN: endPSN, rqPSN: peerPSN, mtu: 256, maxRDAtomic: each, maxDestRDAtomic: each,
			}))
		}
		for j := range each {
			for i, e := range peers {
				h := r.flush(peerPSN+uint32(j), persistent, wire.FlushRange, 8*i, 8)
				h.DestQP = e.q.num
				r.send(h)
			}
		}
		require.Len(t, d.written(), maxPersisters)
		seen := map[int]int{}
		for range conns * each {
			d.hold <- nil
			for _, w := range d.written() {
				seen[w[0]]++
			}
		}
		require.Len(t, r.take(), conns*each)
		synctest.Wait()
		require.Zero(t, r.end.dev.persister.workers)
		require.Empty(t, r.end.dev.persister.queue)
		require.GreaterOrEqual(t, len(seen), conns-maxPersisters)
	})
}

// TestFlushWithLoss flushes what was written over a bad network: when a FLUSH completes, all that was written before it was there to be
// made persistent.
func TestFlushWithLoss(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { flushWithLoss(t, seed) })
		})
	}
}

// TestNothingIsHeldByOtherGoroutines: acknowledgements that wait to go with something else are seen to by who reads the network. Those that
// other goroutines have to give are not left to it.
func TestNothingIsHeldByOtherGoroutines(t *testing.T) {
	t.Run("persister", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, d := newFlusher(t, link{})
			d.hold = make(chan error)
			r.end.dev.spins.net = &quietNet{}
			r.end.q.rc.hold.score = holdScoreMax
			r.end.recv(verbs.RecvWR{ID: 9})
			r.send(r.flush(peerPSN, persistent, wire.FlushRange, 0, 8), ask(packet(wire.RCSendOnly, peerPSN+1, nil)))
			d.hold <- nil
			requireAnswer(t, requirePlaced(t, r.take(), peerPSN, 1), answer{peerPSN + 1, wire.SyndromeACK, 2})
		})
	})
	t.Run("before a FLUSH", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r, d := newFlusher(t, link{})
			d.hold = make(chan error)
			r.end.dev.spins.net = &quietNet{}
			r.end.q.rc.hold.score = holdScoreMax
			r.end.recv(verbs.RecvWR{ID: 9})
			r.send(ask(packet(wire.RCSendOnly, peerPSN, nil)))
			require.Empty(t, r.take())
			r.send(r.flush(peerPSN+1, persistent, wire.FlushRange, 0, 8))
			require.Equal(t, []answer{{peerPSN, wire.SyndromeACK, 1}}, r.answers())
			d.hold <- nil
			require.Empty(t, requirePlaced(t, r.take(), peerPSN+1, 2))
		})
	})
	t.Run("replier", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newReader(t, link{mtu: 256})
			r.end.dev.spins.net = &quietNet{}
			r.end.q.rc.hold.score = holdScoreMax
			r.end.recv(verbs.RecvWR{ID: 9})
			const n = replyHere + 3*replyTurn
			r.send(r.ask(peerPSN, 0, n*256), ask(packet(wire.RCSendOnly, peerPSN+n, nil)))
			got := requireReply(t, r.take(), peerPSN, 256, r.end.mem[:n*256], 1)
			requireAnswer(t, got, answer{peerPSN + n, wire.SyndromeACK, 2})
		})
	})
}
