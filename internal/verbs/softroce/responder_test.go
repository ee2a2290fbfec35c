package softroce

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const rnr12 = wire.SyndromeRNR | verbs.DefaultRNRTimer

func TestSendIsDeliveredAndAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		p.end.recv(verbs.RecvWR{ID: 7, SGL: p.end.sgl(100, 64)})
		p.send(ask(packet(wire.RCSendOnly, peerPSN, []byte("hello"))))
		require.Equal(t, []answer{{peerPSN, wire.SyndromeACK, 1}}, p.answers())
		require.Equal(t, []verbs.WC{{ID: 7, Op: verbs.WCRecv, ByteLen: 5, QPN: p.end.q.Num()}}, p.end.completions())
		require.Equal(t, "hello\x00", string(p.end.mem[100:106]))
	})
}

func TestImmediateIsDelivered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		p.end.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2, SGL: p.end.sgl(0, 8)})
		h := packet(wire.RCSendOnlyImm, peerPSN, nil)
		h.Imm = 0x01020304
		p.send(h)
		// The receive's buffer is not touched by a WRITE with immediate.
		h = p.writeTo(packet(wire.RCWriteOnlyImm, peerPSN+1, []byte("abc")), 500, 3)
		h.Imm = 9
		p.send(ask(h))
		qpn := p.end.q.Num()
		require.Equal(t, []verbs.WC{
			{ID: 1, Op: verbs.WCRecv, Flags: verbs.WCWithImm, Imm: 0x01020304, QPN: qpn},
			{ID: 2, Op: verbs.WCRecvWithImm, Flags: verbs.WCWithImm, Imm: 9, ByteLen: 3, QPN: qpn},
		}, p.end.completions())
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeACK, 2}}, p.answers())
		require.Equal(t, make([]byte, 8), p.end.mem[:8])
		require.Equal(t, "abc\x00", string(p.end.mem[500:504]))
	})
}

func TestSendIsScatteredOverItsBuffers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, attr: verbs.QPInitAttr{MaxRecvSGE: 4}})
		data := pattern(1, 700)
		p.end.recv(verbs.RecvWR{ID: 3, SGL: []verbs.SGE{p.end.sge(10, 255), {}, p.end.sge(1000, 2), p.end.sge(2000, 443)}})
		p.send(packet(wire.RCSendFirst, peerPSN, data[:256]))
		p.send(packet(wire.RCSendMiddle, peerPSN+1, data[256:512]))
		require.Empty(t, p.end.completions())
		require.Empty(t, p.take(), "nobody asked")
		p.send(ask(packet(wire.RCSendLast, peerPSN+2, data[512:])))
		require.Equal(t, []answer{{peerPSN + 2, wire.SyndromeACK, 1}}, p.answers())
		wc := p.end.completions()
		require.Len(t, wc, 1)
		require.EqualValues(t, 700, wc[0].ByteLen)
		got := slices.Concat(p.end.mem[10:265], p.end.mem[1000:1002], p.end.mem[2000:2443])
		require.Equal(t, data, got)
	})
}

func TestWriteLandsToTheByte(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		data := pattern(2, 256+256+5)
		const off = 4093
		p.send(
			p.writeTo(packet(wire.RCWriteFirst, peerPSN, data[:256]), off, len(data)),
			packet(wire.RCWriteMiddle, peerPSN+1, data[256:512]),
			ask(packet(wire.RCWriteLast, peerPSN+2, data[512:])),
		)
		require.Equal(t, []answer{{peerPSN + 2, wire.SyndromeACK, 1}}, p.answers())
		want := make([]byte, nodeMem)
		copy(want[off:], data)
		require.Equal(t, want, p.end.mem)
		require.Empty(t, p.end.completions(), "a WRITE is silent")
	})
}

func TestOneAcknowledgementForABatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		var hs []wire.Packet
		for i := range 40 {
			hs = append(hs, ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+uint32(i), []byte{byte(i)}), i, 1)))
		}
		p.send(hs...)
		require.Equal(t, []answer{{peerPSN + 39, wire.SyndromeACK, 40}}, p.answers())
	})
}

func TestZeroLengthNamesNoMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		p.end.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2, SGL: p.end.sgl(0, 4)})
		h := packet(wire.RCWriteOnly, peerPSN, nil)
		h.RETH = wire.RETH{VA: ^uint64(0), RKey: 0xDEAD}
		i := h
		i.Opcode, i.PSN = wire.RCWriteOnlyImm, peerPSN+1
		p.send(h, i, ask(packet(wire.RCSendOnly, peerPSN+2, nil)))
		require.Equal(t, []answer{{peerPSN + 2, wire.SyndromeACK, 3}}, p.answers())
		require.Equal(t, []outcome{{1, verbs.Success}, {2, verbs.Success}}, p.end.outcomes())
	})
}

func TestPSNWrapsAtTheResponder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{psnA: endPSN, psnB: 0xFFFFFE})
		p.send(p.writeTo(packet(wire.RCWriteOnly, 1, []byte{9}), 9, 1)) // ahead, across the wrap
		require.Equal(t, []answer{{0xFFFFFE, wire.SyndromePSNSequence, 0}}, p.answers())
		for i := range uint32(4) {
			p.send(ask(p.writeTo(packet(wire.RCWriteOnly, (0xFFFFFE+i)&psnMask, []byte{1}), int(i), 1)))
		}
		require.Equal(t, []answer{{0xFFFFFE, 31, 1}, {0xFFFFFF, 31, 2}, {0, 31, 3}, {1, 31, 4}}, p.answers())
		p.send(p.writeTo(packet(wire.RCWriteOnly, 0xFFFFFF, []byte{9}), 1, 1)) // behind, across the wrap
		require.Equal(t, []answer{{1, 31, 4}}, p.answers())
		require.Equal(t, []byte{1, 1, 1, 1, 0}, p.end.mem[:5])
	})
}

func TestGapDrawsOneNAK(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		at := func(i uint32) wire.Packet {
			return ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+i, []byte{byte(i)}), int(i), 1))
		}
		p.send(at(0))
		p.send(at(2))
		p.send(at(3), at(4))
		require.Equal(t, []answer{{peerPSN, 31, 1}, {peerPSN + 1, wire.SyndromePSNSequence, 1}}, p.answers())
		require.Equal(t, []byte{0, 0, 0, 0, 0}, p.end.mem[:5], "what came ahead is dropped")

		p.send(at(1), at(2))
		require.Equal(t, []answer{{peerPSN + 2, 31, 3}}, p.answers())
		p.send(at(4))
		require.Equal(t, []answer{{peerPSN + 3, wire.SyndromePSNSequence, 3}}, p.answers(), "the next gap is another")
		require.Equal(t, []byte{0, 1, 2, 0, 0}, p.end.mem[:5])
		p.send(at(3))
		p.answers()
		p.send(at(5), at(0))
		require.Equal(t, []answer{{peerPSN + 4, wire.SyndromePSNSequence, 4}}, p.answers(), "it also acknowledges the duplicate")
	})
}

// TestGapIsReportedWhereverPSNsAre: what earlier gaps left behind must not matter half the number space later.
func TestGapIsReportedWhereverPSNsAre(t *testing.T) {
	for _, first := range []uint32{0, 1, 0x7ffffe, 0x7fffff, 0x800000, 0x800001, 0xfffffe, 0xffffff} {
		for _, ahead := range []uint32{1, 2, 1<<22 + 1, 1<<23 - 1} {
			t.Run(fmt.Sprintf("%#x+%#x", first, ahead), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPeer(t, link{psnA: endPSN, psnB: first})
					p.send(p.writeTo(packet(wire.RCWriteOnly, wire.PSNAdd(first, ahead), nil), 0, 0))
					require.Equal(t, []answer{{first, wire.SyndromePSNSequence, 0}}, p.answers())
				})
			})
		}
	}
}

func TestGapIsReportedAgainWhenTheRequesterStartsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		at := func(i uint32) wire.Packet {
			return p.writeTo(packet(wire.RCWriteOnly, peerPSN+i, []byte{1}), int(i), 1)
		}
		nak := []answer{{peerPSN, wire.SyndromePSNSequence, 0}}
		p.send(at(1), at(2), at(3))
		require.Equal(t, nak, p.answers())
		p.send(at(4))
		require.Empty(t, p.answers())
		p.send(at(1), at(2)) // the second round, and its first packet is lost too
		require.Equal(t, nak, p.answers())
	})
}

func TestReorderedBatchIsAnsweredByWhatIsMissing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		at := func(i uint32) wire.Packet {
			return ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+i, []byte{1}), int(i), 1))
		}
		p.send(at(1), at(0), at(2))
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromePSNSequence, 1}}, p.answers())
		p.send(at(1), at(2))
		require.Equal(t, []answer{{peerPSN + 2, 31, 3}}, p.answers())
		p.send(at(4), at(3), at(4))
		require.Equal(t, []answer{{peerPSN + 4, 31, 5}}, p.answers(), "it came again in the same batch")
		p.send(at(6), at(5))
		require.Equal(t, []answer{{peerPSN + 6, wire.SyndromePSNSequence, 6}}, p.answers())
		p.send(at(7))
		require.Empty(t, p.answers(), "that gap was reported")
	})
}

func TestDuplicatesAreAcknowledgedNotExecuted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		p.end.recv(verbs.RecvWR{ID: 1, SGL: p.end.sgl(0, 4)}, verbs.RecvWR{ID: 2, SGL: p.end.sgl(4, 4)})
		send := packet(wire.RCSendOnly, peerPSN, []byte("one"))
		write := p.writeTo(packet(wire.RCWriteOnly, peerPSN+1, []byte("two")), 8, 3)
		p.send(send, ask(write))
		p.answers()
		copy(p.end.mem[8:], "own")
		p.send(send)
		p.send(write, send)
		want := answer{peerPSN + 1, wire.SyndromeACK, 2}
		require.Equal(t, []answer{want, want}, p.answers())
		require.Equal(t, []outcome{{1, verbs.Success}}, p.end.outcomes())
		require.Equal(t, "own", string(p.end.mem[8:11]))
	})
}

// A requester that repeats itself has not got the answers: their way may lead to
// a process that does not listen.
func TestAnswersThatDoNotArriveTakeAnotherWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		at := func(i uint32) wire.Packet {
			return ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+i, []byte{1}), int(i), 1))
		}
		path := p.end.q.rc.path
		flow := path.Flow()
		again := func(i uint32) {
			time.Sleep(10 * time.Millisecond)
			p.send(at(i))
			p.send(at(i), at(i)) // of the same attempt
			require.Len(t, p.answers(), 2)
		}
		p.send(at(0))
		require.Len(t, p.answers(), 1)
		again(0)
		require.Equal(t, flow, path.Flow(), "one answer may be lost")
		p.send(at(1), at(0))
		require.Len(t, p.answers(), 1)
		time.Sleep(10 * time.Millisecond)
		p.send(at(2))
		require.Len(t, p.answers(), 1)
		again(2)
		require.Equal(t, flow, path.Flow(), "some arrive")
		part := true
		for range 300 {
			before := path.Flow()
			again(2)
			require.NotEqual(t, before, path.Flow())
			part = part && path.Flow() == partFlow(peerQPN, path.Flow())
		}
		require.False(t, part, "also those that are another process's part, in the end")
	})
}

func TestReceiverNotReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.send(ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 0, 1)))
		require.Equal(t, []answer{{peerPSN, 31, 1}}, p.answers())

		// What follows in flight draws nothing more.
		send := packet(wire.RCSendOnly, peerPSN+1, []byte("x"))
		p.send(send, packet(wire.RCSendOnly, peerPSN+2, []byte("y")))
		p.send(packet(wire.RCSendOnly, peerPSN+3, []byte("z")))
		require.Equal(t, []answer{{peerPSN + 1, rnr12, 1}}, p.answers())
		p.send(send)
		p.send(packet(wire.RCSendOnly, peerPSN+2, []byte("y")))
		require.Equal(t, []answer{{peerPSN + 1, rnr12, 1}}, p.answers())
		p.send(send)
		require.Equal(t, []answer{{peerPSN + 1, rnr12, 1}}, p.answers(), "as often as it is sent")

		p.end.recv(verbs.RecvWR{ID: 1, SGL: p.end.sgl(8, 8)})
		p.send(ask(send))
		require.Equal(t, []answer{{peerPSN + 1, 31, 2}}, p.answers())
		require.Equal(t, []outcome{{1, verbs.Success}}, p.end.outcomes())
	})
}

func TestWriteWithImmediateNeedsAReceiveAtItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, attr: verbs.QPInitAttr{MinRNRTimer: 3}})
		data := pattern(3, 300)
		p.send(ask(p.writeTo(packet(wire.RCWriteFirst, peerPSN, data[:256]), 0, 300)))
		require.Equal(t, []answer{{peerPSN, 31, 0}}, p.answers())
		last := packet(wire.RCWriteLastImm, peerPSN+1, data[256:])
		last.Imm = 77
		p.send(last)
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeRNR | 3, 0}}, p.answers())
		require.Equal(t, make([]byte, 44), p.end.mem[256:300], "nothing of the refused packet is executed")
		p.end.recv(verbs.RecvWR{ID: 4})
		p.send(ask(last))
		require.Equal(t, []answer{{peerPSN + 1, 31, 1}}, p.answers())
		require.Equal(t, data, p.end.mem[:300])
		wc := p.end.completions()
		require.Len(t, wc, 1)
		require.EqualValues(t, 300, wc[0].ByteLen)
		require.EqualValues(t, 77, wc[0].Imm)
	})
}

func TestPacketsOfOthersAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		good := ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 0, 1))
		with := func(f func(h *wire.Packet)) wire.Packet { h := good; f(&h); return h }
		s := &p.end.dev.stats
		raw := func(b []byte) {
			p.end.dev.HandlePackets([]netio.Packet{{Local: addrA, Remote: netipPort(addrB), Data: b}})
		}
		for _, c := range []struct {
			name  string
			count func() uint64
			send  func()
		}{
			{"P_Key", s.wrongPKey.Load, func() { p.send(with(func(h *wire.Packet) { h.PKey = 0x8001 })) }},
			{"unknown queue pair", s.unknownQP.Load, func() { p.send(with(func(h *wire.Packet) { h.DestQP = p.end.q.num ^ 1 })) }},
			{"another slot", s.unknownQP.Load, func() { p.send(with(func(h *wire.Packet) { h.DestQP = p.end.q.num ^ 1<<16 })) }},
			{"queue pair 0", s.unknownQP.Load, func() { raw(slices.Concat([]byte{4, 0, 255, 255, 0, 0, 0, 0}, make([]byte, 4))) }},
			{"multicast", s.unknownQP.Load, func() { p.send(with(func(h *wire.Packet) { h.DestQP = wire.QPNMulticast })) }},
			{"UD", s.wrongType.Load, func() { p.send(packet(wire.UDSendOnly, peerPSN, nil)) }},
			{"CNP", s.wrongType.Load, func() { p.send(packet(wire.CNP, 0, make([]byte, 16))) }},
			{"another source", s.wrongAddr.Load, func() {
				path := p.path
				p.path = &netio.Path{Local: addrB.Next(), Remote: addrA}
				p.send(good)
				p.path = path
			}},
			{"another destination", s.wrongAddr.Load, func() {
				path := p.path
				p.path = &netio.Path{Local: addrB6, Remote: addrA6}
				p.send(good)
				p.path = path
			}},
			{"another destination of the same source", s.wrongAddr.Load, func() {
				b := rawPacket(byte(wire.RCSendOnly), p.end.q.num, 0)
				p.end.dev.HandlePackets([]netio.Packet{{Local: addrA.Next().Next(), Remote: netipPort(addrB), Data: b}})
			}},
			{"unknown opcode", s.malformed.Load, func() { raw(rawPacket(0x15, p.end.q.num, 0)) }},
			{"UC", s.malformed.Load, func() { raw(rawPacket(0x2A, p.end.q.num, 16)) }},
			{"opcode ff", s.malformed.Load, func() { raw(rawPacket(0xFF, p.end.q.num, 32)) }},
			{"transport version", s.malformed.Load, func() { b := rawPacket(4, p.end.q.num, 0); b[1] = 1; raw(b) }},
			{"runt", s.malformed.Load, func() { raw([]byte{4, 0, 255, 255}) }},
			{"no RETH", s.malformed.Load, func() { raw(rawPacket(0x0A, p.end.q.num, 12)) }},
			{"read response", s.staleAcks.Load, func() { p.send(response(endPSN, 31), packet(wire.RCReadResponseOnly, endPSN, nil)) }},
		} {
			before := c.count()
			c.send()
			require.Greater(t, c.count(), before, c.name)
			require.Empty(t, p.take(), c.name)
		}
		require.Zero(t, p.end.mem[0])
		// A limited member of the partition is as good.
		p.send(with(func(h *wire.Packet) { h.PKey = 0x7FFF }))
		require.Equal(t, []answer{{peerPSN, 31, 1}}, p.answers())
	})
}

func rawPacket(op byte, qpn uint32, n int) []byte {
	b := []byte{op, 0, 0xFF, 0xFF, 0, byte(qpn >> 16), byte(qpn >> 8), byte(qpn), 0, 0, peerPSN >> 8, peerPSN & 255}
	return append(b, make([]byte, n)...)
}

func TestUnconnectedQueuePairHearsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		e := p.end.newEnd(verbs.QPInitAttr{}, 8, nil)
		e.recv(verbs.RecvWR{ID: 1})
		h := ask(packet(wire.RCSendOnly, 0, nil))
		h.DestQP = e.q.num
		p.send(h)
		require.Empty(t, p.take())
		require.EqualValues(t, 1, e.dev.stats.wrongState.Load())
		require.NoError(t, e.q.ToError())
		require.Equal(t, []outcome{{1, verbs.WRFlushErr}}, e.outcomes())
	})
}

func TestFirstPacketOfThePeerIsReportedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		est := make(chan bool, 10)
		var p *peer
		p = newPeer(t, link{commEstA: func() {
			p.end.q.Num()
			_ = p.end.q.Cap() // takes the lock
			est <- true
		}})
		h := packet(wire.RCSendOnly, peerPSN, nil)
		h.PKey = 1
		p.send(h)
		require.Empty(t, est, "not the peer's")
		p.send(ask(packet(wire.RCSendOnly, peerPSN, nil)))
		require.Len(t, est, 1, "even though it meets no receive")
		p.send(ask(packet(wire.RCSendOnly, peerPSN, nil)))
		synctest.Wait()
		require.Len(t, est, 1)
	})
}
