package softroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// reader is a peer that reads a region of the end's.
type reader struct {
	*peer
	m verbs.MR
}

func newReader(t *testing.T, l link) *reader {
	if l.rd == 0 {
		l.rd = 4
	}
	p := newPeer(t, l)
	r := &reader{p, p.end.reg(p.end.mem, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)}
	t.Cleanup(func() { require.NoError(t, r.m.Close()) })
	return r
}

// ask is a READ request.
func (r *reader) ask(psn uint32, off, n int) wire.Packet {
	h := ask(packet(wire.RCReadRequest, psn, nil))
	h.RETH = wire.RETH{VA: r.m.Addr() + uint64(off), RKey: r.m.RKey(), Length: uint32(n)}
	return h
}

func (r *reader) add(psn uint32, off int, add uint64) wire.Packet {
	h := ask(packet(wire.RCFetchAdd, psn, nil))
	h.Atomic = wire.AtomicETH{VA: r.m.Addr() + uint64(off), RKey: r.m.RKey(), SwapAdd: add}
	return h
}

func (r *reader) swap(psn uint32, off int, compare, swap uint64) wire.Packet {
	h := r.add(psn, off, swap)
	h.Opcode, h.Atomic.Compare = wire.RCCompareSwap, compare
	return h
}

// requireReply checks that the packets are the reply to a READ, and returns the others.
func requireReply(t *testing.T, got []wire.Packet, psn uint32, mtu int, data []byte, msn uint32) []wire.Packet {
	t.Helper()
	want := reply(psn, mtu, data)
	require.GreaterOrEqual(t, len(got), len(want))
	for i, w := range want {
		h := got[i]
		require.Equal(t, w.Opcode, h.Opcode, i)
		require.Equal(t, w.PSN, h.PSN)
		require.Equal(t, string(w.Payload), string(h.Payload))
		require.Equal(t, wire.PadFor(len(w.Payload)), h.Pad)
		require.EqualValues(t, peerQPN, h.DestQP)
		require.False(t, h.AckReq)
		require.False(t, h.Solicited)
		if h.Opcode.HasAETH() {
			require.Equal(t, wire.ACK(msn), h.AETH)
		}
	}
	return got[len(want):]
}

func TestReadIsAnswered(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, n := range []int{0, 1, 2, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1} {
			t.Run(fmt.Sprint(mtu, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := newReader(t, link{mtu: verbs.MTU(mtu)})
					copy(r.end.mem, pattern(1, 3*mtu))
					r.send(r.ask(peerPSN, 5, n))
					require.Empty(t, requireReply(t, r.take(), peerPSN, mtu, pattern(1, 3*mtu)[5:5+n], 1))
					packets := uint32(max(1, (n+mtu-1)/mtu))
					r.send(ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+packets, []byte{7}), 0, 1)))
					require.Equal(t, []answer{{peerPSN + packets, wire.SyndromeACK, 2}}, r.answers())
					require.Empty(t, r.end.completions(), "a READ is silent")
				})
			})
		}
	}
}

func TestAnswersKeepTheirOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		copy(r.end.mem, pattern(1, 100_000))
		binary.NativeEndian.PutUint64(r.end.mem[200_000:], 7)
		// All in one batch, with a READ that takes several turns.
		const n = 80 * 256
		r.send(
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 500_000, 1)),
			r.ask(peerPSN+1, 0, n),
			r.add(peerPSN+81, 200_000, 1),
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+82, []byte{2}), 500_001, 1)),
			r.ask(peerPSN+83, 3, 1),
			ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+84, []byte{3}), 500_002, 1)),
		)
		rest := requireReply(t, r.take(), peerPSN+1, 256, pattern(1, 100_000)[:n], 2)
		require.Len(t, rest, 3)
		require.Equal(t, wire.RCAtomicAck, rest[0].Opcode)
		require.EqualValues(t, peerPSN+81, rest[0].PSN)
		require.Equal(t, wire.ACK(3), rest[0].AETH)
		require.EqualValues(t, 7, rest[0].AtomicAck.Original)
		rest = requireReply(t, rest[1:], peerPSN+83, 256, pattern(1, 10)[3:4], 5)
		require.Equal(t, wire.RCAck, rest[0].Opcode)
		require.EqualValues(t, peerPSN+84, rest[0].PSN)
		require.Equal(t, wire.ACK(6), rest[0].AETH)
		require.Equal(t, []byte{1, 2, 3}, r.end.mem[500_000:500_003])

		// A response acknowledges what comes before it, and nothing has to be said twice.
		r.send(ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+85, []byte{4}), 500_000, 1)), r.ask(peerPSN+86, 0, 5))
		require.Empty(t, requireReply(t, r.take(), peerPSN+86, 256, pattern(1, 5), 8))

		// Three at a time go round the four that are kept.
		for i := range uint32(5) {
			psn := peerPSN + 87 + 3*i
			r.send(r.ask(psn, 1, 1), r.ask(psn+1, 2, 1), r.ask(psn+2, 3, 1))
			got := r.take()
			for j := range uint32(3) {
				got = requireReply(t, got, psn+j, 256, pattern(1, 10)[1+j:2+j], 9+3*i+j)
			}
			require.Empty(t, got)
		}
	})
}

func TestNAKsWaitForReplies(t *testing.T) {
	for name, c := range map[string]struct {
		bad  func(r *reader, psn uint32) wire.Packet
		want answer
	}{
		"refusal": {
			func(r *reader, psn uint32) wire.Packet { h := r.ask(psn, 0, 1); h.RETH.RKey ^= 1; return h },
			answer{peerPSN + 80, wire.SyndromeRemoteAccess, 1},
		},
		"gap": {
			func(r *reader, psn uint32) wire.Packet { return r.ask(psn+1, 0, 1) },
			answer{peerPSN + 80, wire.SyndromePSNSequence, 1},
		},
		"not ready": {
			func(_ *reader, psn uint32) wire.Packet { return packet(wire.RCSendOnly, psn, nil) },
			answer{peerPSN + 80, rnr12, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newReader(t, link{mtu: 256})
				copy(r.end.mem, pattern(1, 80*256))
				r.send(r.ask(peerPSN, 0, 80*256), c.bad(r, peerPSN+80))
				rest := requireReply(t, r.take(), peerPSN, 256, pattern(1, 80*256), 1)
				require.Len(t, rest, 1)
				require.Equal(t, c.want, answer{rest[0].PSN, rest[0].AETH.Syndrome, rest[0].MSN})
			})
		})
	}
}

// TestNotReadyThatHasPassed: an RNR NAK that waits for replies is out of date when the message comes again meanwhile.
func TestNotReadyThatHasPassed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		rc := r.end.q.rc
		r.end.q.mu.Lock()
		rc.exp, rc.due, rc.notReadyPSN = peerPSN+1, dueNotReady, peerPSN
		w := r.end.dev.begin()
		rc.respond(w, 1)
		r.end.q.mu.Unlock()
		w.end(false)
		require.Equal(t, []answer{{peerPSN, wire.SyndromeACK, 0}}, r.answers())
	})
}

func TestMoreThanWasGrantedIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256, rd: 2})
		const n = 80 * 256
		r.end.recv(verbs.RecvWR{ID: 9})
		r.send(r.ask(peerPSN, 0, n), r.ask(peerPSN+80, 0, n), r.add(peerPSN+160, 0, 1))
		rest := requireReply(t, r.take(), peerPSN, 256, make([]byte, n), 1)
		rest = requireReply(t, rest, peerPSN+80, 256, make([]byte, n), 2)
		require.Len(t, rest, 1)
		require.Equal(t, answer{peerPSN + 160, wire.SyndromeInvalidReq, 2}, answer{rest[0].PSN, rest[0].AETH.Syndrome, rest[0].MSN})
		require.Equal(t, []outcome{{9, verbs.WRFlushErr}}, r.end.outcomes())
		require.Zero(t, r.end.mem[0])
		// The refusal is repeated, and nothing else.
		r.send(r.add(peerPSN+160, 0, 1))
		require.Equal(t, []answer{{peerPSN + 160, wire.SyndromeInvalidReq, 2}}, r.answers())
		// And so is what comes before it, if that was lost.
		r.send(r.ask(peerPSN+80, 0, n), r.add(peerPSN+160, 0, 1))
		rest = requireReply(t, r.take(), peerPSN+80, 256, make([]byte, n), 2)
		require.Len(t, rest, 1)
		require.Equal(t, answer{peerPSN + 160, wire.SyndromeInvalidReq, 2}, answer{rest[0].PSN, rest[0].AETH.Syndrome, rest[0].MSN})
		r.send(r.add(peerPSN+161, 0, 1))
		require.Empty(t, r.take())
	})
}

func TestAtomicsAreExecutedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256, rd: 3})
		word := func() uint64 { return binary.NativeEndian.Uint64(r.end.mem[16:]) }
		result := func(psn uint32, original uint64, msn uint32) {
			t.Helper()
			got := r.take()
			require.Len(t, got, 1)
			require.Equal(t, wire.RCAtomicAck, got[0].Opcode)
			require.Equal(t, psn, got[0].PSN)
			require.Equal(t, original, got[0].AtomicAck.Original)
			require.Equal(t, wire.ACK(msn), got[0].AETH)
		}
		r.send(r.add(peerPSN, 16, 5))
		result(peerPSN, 0, 1)
		r.send(r.add(peerPSN, 16, 5))
		result(peerPSN, 0, 1)
		require.EqualValues(t, 5, word())
		r.send(r.swap(peerPSN+1, 16, 4, 100))
		result(peerPSN+1, 5, 2)
		require.EqualValues(t, 5, word())
		r.send(r.swap(peerPSN+2, 16, 5, 100))
		result(peerPSN+2, 5, 3)
		require.EqualValues(t, 100, word())
		r.send(r.swap(peerPSN+2, 16, 5, 100))
		result(peerPSN+2, 5, 3)
		r.send(r.add(peerPSN, 16, 5))
		result(peerPSN, 0, 1)
		h := r.add(peerPSN+3, 16, ^uint64(0)) // nobody has to ask
		h.AckReq = false
		r.send(h)
		result(peerPSN+3, 100, 4)
		require.EqualValues(t, 99, word())
		r.send(r.add(peerPSN, 16, 5))
		require.Empty(t, r.take(), "it is forgotten")
		r.send(r.swap(peerPSN+1, 16, 4, 100))
		result(peerPSN+1, 5, 2)
		r.send(r.ask(peerPSN+3, 16, 8))
		require.Empty(t, r.take(), "it was no READ")
		require.EqualValues(t, 99, word())
	})
}

func TestRepeatedReadsAreExecutedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256, rd: 2})
		const n = 4*256 + 9
		copy(r.end.mem, pattern(1, n))
		r.send(r.ask(peerPSN, 0, n))
		requireReply(t, r.take(), peerPSN, 256, pattern(1, n), 1)
		copy(r.end.mem, pattern(2, n))
		r.send(r.ask(peerPSN, 0, n))
		requireReply(t, r.take(), peerPSN, 256, pattern(2, n), 1)
		// From the middle, and a part.
		r.send(r.ask(peerPSN+3, 3*256, n-3*256))
		require.Empty(t, requireReply(t, r.take(), peerPSN+3, 256, pattern(2, n)[3*256:], 1))
		r.send(r.ask(peerPSN+1, 256, 512))
		require.Empty(t, requireReply(t, r.take(), peerPSN+1, 256, pattern(2, n)[256:768], 1))
		r.send(r.ask(peerPSN+4, 4*256, 9))
		require.Empty(t, requireReply(t, r.take(), peerPSN+4, 256, pattern(2, n)[4*256:], 1))
		// What was not asked for then.
		key := r.ask(peerPSN, 0, n)
		key.RETH.RKey ^= 1
		atomic := r.add(peerPSN+1, 256, 1)
		for name, h := range map[string]wire.Packet{
			"another key": key, "an atomic": atomic,
			"longer": r.ask(peerPSN, 0, n+1), "elsewhere": r.ask(peerPSN, 1, n-1), "before": r.ask(peerPSN, -256, n),
			"beyond from the middle": r.ask(peerPSN+3, 3*256, n-3*256+1), "another part": r.ask(peerPSN+3, 2*256, 256),
			"not whole packets": r.ask(peerPSN, 0, 300), "nothing": r.ask(peerPSN, 0, 0), "longest": r.ask(peerPSN, 0, -1),
			"never asked": r.ask(peerPSN-1, 0, 8),
		} {
			r.send(h)
			require.Empty(t, r.take(), name)
		}
		require.Equal(t, pattern(2, n), r.end.mem[:n])
		// One more is known, one less is not.
		r.send(r.ask(peerPSN+5, 0, 1), r.ask(peerPSN+6, 0, 1))
		r.take()
		r.send(r.ask(peerPSN, 0, n))
		require.Empty(t, r.take())
		r.send(r.ask(peerPSN+5, 0, 1))
		requireReply(t, r.take(), peerPSN+5, 256, pattern(2, 1), 2)
	})
}

// TestRepetitionWhileItIsAnswered: a READ that comes again is answered from where it asks, once, and in its turn.
func TestRepetitionWhileItIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256, rd: 4})
		const k = replyHere + 2*replyTurn
		copy(r.end.mem, pattern(1, k*256))
		data := pattern(1, k*256)
		r.end.q.rc.replying = true // as if the replier had others to serve
		r.send(r.ask(peerPSN, 0, k*256), r.ask(peerPSN+k, 0, 1))
		require.Empty(t, r.take())
		turn := func() []wire.Packet {
			r.end.q.rc.turn(r.end.dev)
			return r.take()
		}
		got := turn()
		require.Len(t, got, replyTurn)
		// A late copy of a later request is no reason to leave anything out.
		r.send(r.ask(peerPSN+replyTurn+9, (replyTurn+9)*256, (k-replyTurn-9)*256))
		got = turn()
		require.EqualValues(t, peerPSN+replyTurn, got[0].PSN)
		require.Equal(t, wire.RCReadResponseMid, got[0].Opcode)
		// A copy of what is about to be sent, and of what has not begun, says nothing new.
		r.send(r.ask(peerPSN+2*replyTurn, 2*replyTurn*256, (k-2*replyTurn)*256), r.ask(peerPSN+k, 0, 1))
		// One from before takes it back.
		r.send(r.ask(peerPSN+10, 10*256, (k-10)*256))
		got = nil
		for more := turn(); len(more) > 0; more = turn() {
			got = append(got, more...)
		}
		rest := requireReply(t, got, peerPSN+10, 256, data[10*256:], 1)
		require.Empty(t, requireReply(t, rest, peerPSN+k, 256, data[:1], 2))
		require.Zero(t, r.end.q.rc.replies)

		// A repetition that is being answered gives way to a new request: who sends that has all of the old.
		r.end.q.rc.replying = true
		r.send(r.add(peerPSN+k+1, 0, 0), r.add(peerPSN+k+2, 0, 0))
		turn()
		r.end.q.rc.replying = true
		r.send(r.ask(peerPSN, 0, k*256))
		r.send(r.add(peerPSN+k+3, 0, 0))
		got = turn()
		require.Len(t, got, 1)
		require.Equal(t, wire.RCAtomicAck, got[0].Opcode)
		require.Zero(t, r.end.q.rc.replies)
	})
}

func TestForbiddenReadsAndAtomics(t *testing.T) {
	type bad = func(r *reader) wire.Packet
	reading := func(f func(r *reader, h *wire.RETH)) bad {
		return func(r *reader) wire.Packet { h := r.ask(peerPSN, 0, 600); f(r, &h.RETH); return h }
	}
	adding := func(f func(r *reader, h *wire.AtomicETH)) bad {
		return func(r *reader) wire.Packet { h := r.add(peerPSN, 0, 1); f(r, &h.Atomic); return h }
	}
	lacking := func(r *reader, access verbs.Access) verbs.MR {
		m := r.end.reg(r.end.mem[:4096], (verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic)&^access)
		r.t.Cleanup(func() { _ = m.Close() })
		return m
	}
	const access, invalid = wire.SyndromeRemoteAccess, wire.SyndromeInvalidReq
	for name, c := range map[string]struct {
		bad      bad
		syndrome uint8
	}{
		"read key":           {reading(func(_ *reader, h *wire.RETH) { h.RKey ^= 1 }), access},
		"read before":        {reading(func(_ *reader, h *wire.RETH) { h.VA-- }), access},
		"read behind":        {reading(func(_ *reader, h *wire.RETH) { h.VA += nodeMem - 599 }), access},
		"read wraps":         {reading(func(_ *reader, h *wire.RETH) { h.VA = ^uint64(0) - 100 }), access},
		"read without right": {reading(func(r *reader, h *wire.RETH) { m := lacking(r, verbs.RemoteRead); h.VA, h.RKey = m.Addr(), m.RKey() }), access},
		"read too long":      {reading(func(_ *reader, h *wire.RETH) { h.Length = maxMsgSize + 1 }), invalid},
		"read longest":       {reading(func(r *reader, h *wire.RETH) { h.Length = uint32(r.end.q.maxMessage()) }), access},
		"read of all ones":   {reading(func(_ *reader, h *wire.RETH) { h.Length = 1<<32 - 1 }), invalid},
		"add key":            {adding(func(_ *reader, h *wire.AtomicETH) { h.RKey ^= 1 }), access},
		"add before":         {adding(func(_ *reader, h *wire.AtomicETH) { h.VA -= 8 }), access},
		"add behind":         {adding(func(_ *reader, h *wire.AtomicETH) { h.VA += nodeMem }), access},
		"add wraps":          {adding(func(_ *reader, h *wire.AtomicETH) { h.VA = ^uint64(7) }), access},
		"add at 1":           {adding(func(_ *reader, h *wire.AtomicETH) { h.VA++ }), invalid},
		"add at 4":           {adding(func(_ *reader, h *wire.AtomicETH) { h.VA += 4 }), invalid},
		"add without right": {adding(func(r *reader, h *wire.AtomicETH) {
			m := lacking(r, verbs.RemoteAtomic)
			h.VA, h.RKey = m.Addr(), m.RKey()
		}), access},
		"read in a send": {func(r *reader) wire.Packet {
			r.end.recv(verbs.RecvWR{ID: 8, SGL: r.end.sgl(9000, 600)})
			r.send(packet(wire.RCSendFirst, peerPSN, make([]byte, 256)))
			return r.ask(peerPSN+1, 0, 1)
		}, invalid},
		"flush":        {func(*reader) wire.Packet { return packet(wire.RCFlush, peerPSN, nil) }, invalid},
		"atomic write": {func(*reader) wire.Packet { return packet(wire.RCAtomicWrite, peerPSN, make([]byte, 8)) }, invalid},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newReader(t, link{mtu: 256})
				h := c.bad(r)
				r.end.recv(verbs.RecvWR{ID: 9})
				r.send(h, ask(r.writeTo(packet(wire.RCWriteOnly, h.PSN+1, []byte{1}), 0, 1)))
				require.Equal(t, []answer{{h.PSN, c.syndrome, 0}}, r.answers())
				got := r.end.outcomes()
				require.Equal(t, outcome{9, verbs.WRFlushErr}, got[len(got)-1])
				require.Equal(t, make([]byte, 8), r.end.mem[:8], "nothing was done")
			})
		})
	}
}

func TestEdgesOfARegionCanBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		copy(r.end.mem, pattern(1, nodeMem))
		r.send(r.ask(peerPSN, 0, 1), r.ask(peerPSN+1, nodeMem-1, 1), r.ask(peerPSN+2, nodeMem-300, 300), r.ask(peerPSN+4, nodeMem, 0))
		got := requireReply(t, r.take(), peerPSN, 256, r.end.mem[:1], 1)
		got = requireReply(t, got, peerPSN+1, 256, r.end.mem[nodeMem-1:], 2)
		got = requireReply(t, got, peerPSN+2, 256, r.end.mem[nodeMem-300:], 3)
		require.Empty(t, requireReply(t, got, peerPSN+4, 256, nil, 4))
		clear(r.end.mem[nodeMem-8:])
		h := r.ask(peerPSN+5, 0, 0) // of nothing, from nowhere
		h.RETH.VA, h.RETH.RKey = ^uint64(0), 1
		r.send(r.add(peerPSN+6, nodeMem-8, 3)) // ahead: it draws a NAK and is not done
		r.send(h, r.add(peerPSN+6, nodeMem-8, 3))
		got = r.take()
		require.Equal(t, wire.SyndromePSNSequence, got[0].AETH.Syndrome)
		got = requireReply(t, got[1:], peerPSN+5, 256, nil, 5)
		require.EqualValues(t, 0, got[0].AtomicAck.Original)
		require.EqualValues(t, 3, binary.NativeEndian.Uint64(r.end.mem[nodeMem-8:]))
	})
}

// TestRegionClosedWhileItIsRead: the reply ends in a refusal at the packet that could not be read.
func TestRegionClosedWhileItIsRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		m := r.end.reg(r.end.mem, verbs.RemoteRead)
		at := func(psn uint32, off, n int) wire.Packet {
			h := r.ask(psn, off, n)
			h.RETH.VA, h.RETH.RKey = m.Addr()+uint64(off), m.RKey()
			return h
		}
		const k = 3 * replyTurn
		r.end.recv(verbs.RecvWR{ID: 9})
		r.send(at(peerPSN, 0, 600))
		r.take()
		r.end.q.rc.replying = true
		r.send(at(peerPSN+3, 0, k*256), r.ask(peerPSN+3+k, 0, 1), ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+4+k, []byte{1}), 0, 1)))
		r.end.q.rc.turn(r.end.dev)
		require.Len(t, r.take(), replyTurn)
		require.NoError(t, m.Close())
		// What comes again of a READ that was answered is refused too, but may be a late copy: the connection lives.
		r.send(at(peerPSN, 0, 600))
		require.Equal(t, []answer{{peerPSN, wire.SyndromeRemoteAccess, 3}}, withoutMSN(r.answers(), 3))
		require.Empty(t, r.end.completions())
		// Taken back to where it was before, it is refused behind what was sent.
		r.end.q.rc.resources[1].cur = 5
		r.end.q.rc.turn(r.end.dev)
		refusal := answer{peerPSN + 3 + replyTurn, wire.SyndromeRemoteAccess, 3}
		require.Equal(t, []answer{refusal}, withoutMSN(r.answers(), 3))
		require.Equal(t, []outcome{{9, verbs.WRFlushErr}}, r.end.outcomes())
		r.send(at(peerPSN+3, 0, k*256))
		require.Equal(t, []answer{{peerPSN + 3, wire.SyndromeRemoteAccess, 3}, refusal}, withoutMSN(r.answers(), 3))
	})
}

func withoutMSN(as []answer, msn uint32) []answer {
	for i := range as {
		as[i].MSN = msn
	}
	return as
}

// TestLongRepliesLetOthersThrough: while a long READ is answered, another queue pair is served.
func TestLongRepliesLetOthersThrough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		other := r.end.newEnd(verbs.QPInitAttr{}, 64, nil)
		require.NoError(t, other.q.connect(&rcAttr{
			path: newPath(addrA, addrB), destQPN: peerQPN + 1, sqPSN: endPSN, rqPSN: peerPSN, mtu: 256, ackTimeout: 19, retryCount: 7, rnrRetry: 7,
		}))
		h := ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 0, 1))
		h.DestQP = other.q.num
		replier := &r.end.dev.replier
		replier.start.Do(func() {}) // its goroutine comes later, so that it does not come in between
		r.send(r.ask(peerPSN, 0, nodeMem), h)
		got := r.take()
		require.Len(t, got, replyHere+1)
		require.Equal(t, wire.RCAck, got[replyHere].Opcode)
		require.EqualValues(t, peerQPN+1, got[replyHere].DestQP)
		go replier.run(r.end.dev)
		require.Len(t, r.take(), nodeMem/256-replyHere)
	})
}

// TestCloseAmidReplies: no reply leaves, and no region is touched, once the queue pair is closed or failed.
func TestCloseAmidReplies(t *testing.T) {
	for name, end := range map[string]func(q *qp) error{"Close": (*qp).Close, "ToError": (*qp).ToError} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newReader(t, link{mtu: 256})
				q := r.end.q
				q.rc.replying = true
				r.send(r.ask(peerPSN, 0, 100*256), ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+100, []byte{1}), 0, 1)))
				q.rc.turn(r.end.dev)
				require.Len(t, r.take(), replyTurn)
				require.NoError(t, end(q))
				require.True(t, q.rc.turn(r.end.dev))
				require.Empty(t, r.take())
				require.Zero(t, q.rc.replies)
				require.False(t, q.rc.replying)
				r.send(r.ask(peerPSN, 0, 256))
				time.Sleep(time.Minute)
				require.Empty(t, r.take())
			})
		})
	}
}

func TestReadsAcrossThePSNWrapAtTheResponder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256, psnA: endPSN, psnB: 0xFFFFFE})
		copy(r.end.mem, pattern(1, 1000))
		r.send(r.ask(0xFFFFFE, 0, 1000), r.add(2, 2000, 1))
		got := requireReply(t, r.take(), 0xFFFFFE, 256, pattern(1, 1000), 1)
		require.EqualValues(t, 2, got[0].PSN)
		r.send(r.ask(1, 768, 232))
		require.Empty(t, requireReply(t, r.take(), 1, 256, pattern(1, 1000)[768:], 1))
		r.send(r.ask(0xFFFFFF, 256, 744))
		require.Empty(t, requireReply(t, r.take(), 0xFFFFFF, 256, pattern(1, 1000)[256:], 1))
	})
}

// TestRepliesKeepTheirOrderBetweenGoroutines: what the reader of the network began, another goroutine goes on with.
func TestRepliesKeepTheirOrderBetweenGoroutines(t *testing.T) {
	wake := make(chan struct{}, 1)
	_, a, b := pair(t, 1, simnet.Options{})
	x, y := connected(a, b, link{mtu: 256, rd: 4, notifyA: func() { wake <- struct{}{} }})
	copy(b.mem, pattern(1, nodeMem))
	for range 20 {
		require.NoError(t, x.cq.Arm())
		clear(a.mem)
		x.send(verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.Signaled, SGL: a.sgl(0, nodeMem), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		<-wake
		require.Equal(t, []outcome{{1, 0}}, x.outcomes())
		require.True(t, bytes.Equal(b.mem, a.mem))
	}
	require.Zero(t, a.dev.stats.gaps.Load())
	require.Empty(t, y.completions())
}

// TestRegionClosedWhileItIsReadAgain: a repetition that was taken up is refused, and the connection lives.
func TestRegionClosedWhileItIsReadAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		m := r.end.reg(r.end.mem, verbs.RemoteRead)
		h := r.ask(peerPSN, 0, 600)
		h.RETH.VA, h.RETH.RKey = m.Addr(), m.RKey()
		r.send(h)
		require.Len(t, r.take(), 3)
		r.end.q.rc.replying = true
		r.send(h)
		require.NoError(t, m.Close())
		require.True(t, r.end.q.rc.turn(r.end.dev))
		require.Equal(t, []answer{{peerPSN, wire.SyndromeRemoteAccess, 1}}, r.answers())
		r.send(ask(r.writeTo(packet(wire.RCWriteOnly, peerPSN+3, []byte{1}), 0, 1)))
		require.Equal(t, []answer{{peerPSN + 3, wire.SyndromeACK, 2}}, r.answers())
	})
}

// TestRepliesCarryWhatWasRead: what its owner writes to memory once it was read does not change packets on their way out.
func TestRepliesCarryWhatWasRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 4096})
		data := pattern(1, 20*4096)
		copy(r.end.mem, data)
		q := r.end.q
		q.rc.replying = true
		r.send(r.ask(peerPSN, 0, 20*4096))
		w := q.dev.begin()
		q.mu.Lock()
		require.True(t, q.rc.respond(w, replyTurn))
		q.rc.replying = false
		q.mu.Unlock()
		clear(r.end.mem)
		w.end(false)
		require.Empty(t, requireReply(t, r.take(), peerPSN, 4096, data, 1))
	})
}

// TestRepliesOfSeveralQueuePairsInABatch: together they are more than a batch holds copies of.
func TestRepliesOfSeveralQueuePairsInABatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 4096})
		const n = replyHere * 4096
		copy(r.end.mem, pattern(1, 6*n))
		var hs []wire.Packet
		ends := []*end{r.end}
		for i := range 6 {
			if i > 0 {
				e := r.end.newEnd(verbs.QPInitAttr{}, 64, nil)
				require.NoError(t, e.q.connect(&rcAttr{
					path: newPath(addrA, addrB), destQPN: peerQPN, rqPSN: peerPSN, mtu: 4096, ackTimeout: 19, maxDestRDAtomic: 1,
				}))
				ends = append(ends, e)
			}
			h := r.ask(peerPSN, i*n, n)
			h.DestQP = ends[i].q.num
			hs = append(hs, h)
		}
		r.send(hs...)
		got := r.take()
		for i := range 6 {
			got = requireReply(t, got, peerPSN, 4096, pattern(1, 6*n)[i*n:(i+1)*n], 1)
		}
		require.Empty(t, got)
	})
}
