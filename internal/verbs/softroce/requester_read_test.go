package softroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// read is a signaled READ into a range of the end's memory.
func (e *end) read(id uint64, off, n int) verbs.SendWR {
	wr := e.write(id, off, n)
	wr.Op = verbs.OpRead
	return wr
}

func (e *end) fetchAdd(id uint64, off int, add uint64) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Op: verbs.OpFetchAdd, Flags: verbs.Signaled, SGL: e.sgl(off, 8), RemoteAddr: 0xABC0000000000008, RKey: 0x1234, SwapAdd: add,
	}
}

// question is the outline of a READ request.
type question struct {
	PSN  uint32
	VA   uint64
	Size uint32
}

// questions checks that the end has sent READ requests and nothing else.
func (p *peer) questions() []question {
	p.t.Helper()
	var qs []question
	for _, h := range p.take() {
		require.Equal(p.t, wire.RCReadRequest, h.Opcode)
		require.True(p.t, h.AckReq)
		require.EqualValues(p.t, 0x1234, h.RETH.RKey)
		qs = append(qs, question{h.PSN, h.RETH.VA - 0xABC0000000000001, h.RETH.Length})
	}
	return qs
}

// reply is a responder's answer to a READ: data in packets of size mtu, from PSN psn on.
func reply(psn uint32, mtu int, data []byte) (hs []wire.Packet) {
	n := max(1, (len(data)+mtu-1)/mtu)
	for i := range n {
		op := wire.RCReadResponseMid
		switch {
		case n == 1:
			op = wire.RCReadResponseOnly
		case i == 0:
			op = wire.RCReadResponseFirst
		case i == n-1:
			op = wire.RCReadResponseLast
		}
		h := packet(op, wire.PSNAdd(psn, uint32(i)), data[i*mtu:min(len(data), (i+1)*mtu)])
		h.AETH = wire.ACK(0)
		hs = append(hs, h)
	}
	return hs
}

func atomicReply(psn uint32, original uint64) wire.Packet {
	h := packet(wire.RCAtomicAck, psn, nil)
	h.AETH, h.AtomicAck.Original = wire.ACK(0), original
	return h
}

func TestReadTakesThePSNsOfItsResponses(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, n := range []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1, 5*mtu + 7} {
			t.Run(fmt.Sprint(mtu, n), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPeer(t, link{mtu: verbs.MTU(mtu), rd: 4, attr: verbs.QPInitAttr{MaxSendSGE: 3}})
					cut := n / 3
					wr := p.end.read(1, 100, n)
					wr.SGL = []verbs.SGE{p.end.sge(100, cut), {}, p.end.sge(50000, n-cut)}
					p.end.send(wr, p.end.write(2, 0, 1))
					packets := uint32(max(1, (n+mtu-1)/mtu))
					got := p.take()
					require.Len(t, got, 2)
					require.Equal(t, wire.RCReadRequest, got[0].Opcode)
					require.Equal(t, wire.RETH{VA: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(n)}, got[0].RETH)
					require.EqualValues(t, endPSN, got[0].PSN)
					require.True(t, got[0].AckReq)
					require.False(t, got[0].Solicited)
					require.Equal(t, wire.RCWriteOnly, got[1].Opcode)
					require.Equal(t, endPSN+packets, got[1].PSN)

					data := pattern(uint64(n), n)
					p.send(reply(endPSN, mtu, data)...)
					require.Equal(t, []verbs.WC{{ID: 1, Op: verbs.WCRead, ByteLen: uint32(n), QPN: p.end.q.Num()}}, p.end.completions())
					require.Equal(t, string(data), string(p.end.mem[100:100+cut])+string(p.end.mem[50000:50000+n-cut]))
					require.Zero(t, p.end.mem[100+cut])
					require.Zero(t, p.end.mem[50000+n-cut])
					p.send(ack(endPSN + packets))
					require.Equal(t, []outcome{{2, 0}}, p.end.outcomes())
					require.Zero(t, p.end.q.rc.inflight)
					require.Zero(t, p.end.q.rc.cc.inflight)
				})
			})
		}
	}
}

func TestAtomicsOnTheWire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 4})
		swap := p.end.fetchAdd(2, 64, 0x1122334455667788)
		swap.Op, swap.Compare = verbs.OpCompareSwap, 0x99AABBCCDDEEFF00
		long := p.end.fetchAdd(3, 0, 1)
		long.SGL = []verbs.SGE{p.end.sge(200, 3), p.end.sge(300, 30)} // what is beyond 8 bytes is not touched
		p.end.send(p.end.fetchAdd(1, 0, 5), swap, long)
		got := p.take()
		require.Len(t, got, 3)
		require.Equal(t, wire.RCFetchAdd, got[0].Opcode)
		require.Equal(t, wire.AtomicETH{VA: 0xABC0000000000008, RKey: 0x1234, SwapAdd: 5}, got[0].Atomic)
		require.Equal(t, wire.RCCompareSwap, got[1].Opcode)
		require.Equal(t, wire.AtomicETH{VA: 0xABC0000000000008, RKey: 0x1234, SwapAdd: 0x1122334455667788, Compare: 0x99AABBCCDDEEFF00}, got[1].Atomic)
		for i, h := range got {
			require.True(t, h.AckReq)
			require.EqualValues(t, endPSN+i, h.PSN)
		}
		p.send(atomicReply(endPSN, 77), atomicReply(endPSN+1, 1<<63|9), atomicReply(endPSN+2, 0x0102030405060708))
		qpn := p.end.q.Num()
		require.Equal(t, []verbs.WC{
			{ID: 1, Op: verbs.WCFetchAdd, ByteLen: 8, QPN: qpn}, {ID: 2, Op: verbs.WCCompareSwap, ByteLen: 8, QPN: qpn},
			{ID: 3, Op: verbs.WCFetchAdd, ByteLen: 8, QPN: qpn},
		}, p.end.completions())
		require.EqualValues(t, 77, binary.NativeEndian.Uint64(p.end.mem))
		require.Equal(t, uint64(1<<63|9), binary.NativeEndian.Uint64(p.end.mem[64:]))
		require.Equal(t, uint64(0x0102030405060708), binary.NativeEndian.Uint64(slices.Concat(p.end.mem[200:203], p.end.mem[300:305])))
		require.Zero(t, p.end.mem[305])
	})
}

func TestDepthLimitsWhatIsOutstanding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 3})
		for i := range 5 {
			p.end.send(p.end.read(uint64(i), i*1000, 600))
		}
		p.end.send(p.end.fetchAdd(5, 0, 1), p.end.write(6, 0, 1))
		require.Equal(t, []question{{endPSN, 0, 600}, {endPSN + 3, 0, 600}, {endPSN + 6, 0, 600}}, p.questions())
		p.send(reply(endPSN, 256, make([]byte, 600))[:2]...)
		require.Empty(t, p.take(), "it is not answered yet")
		p.send(reply(endPSN, 256, make([]byte, 600))[2])
		require.Equal(t, []question{{endPSN + 9, 0, 600}}, p.questions())
		p.send(append(reply(endPSN+3, 256, make([]byte, 600)), reply(endPSN+6, 256, make([]byte, 600))...)...)
		got := p.takeSent()
		require.Equal(t, []sent{
			{wire.RCReadRequest, endPSN + 12, true, 0}, {wire.RCFetchAdd, endPSN + 15, true, 0},
			{wire.RCWriteOnly, endPSN + 16, true, 1},
		}, got)
	})
}

func TestWritesWaitForNoReadUnlessFenced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		fenced := p.end.write(3, 0, 1)
		fenced.Flags |= verbs.Fence
		later := p.end.read(4, 0, 1)
		later.Flags |= verbs.Fence
		p.end.send(p.end.read(1, 1000, 300), p.end.write(2, 0, 1), fenced, later, p.end.write(5, 0, 1))
		require.Equal(t, []sent{{wire.RCReadRequest, endPSN, true, 0}, {wire.RCWriteOnly, endPSN + 2, true, 1}}, p.takeSent())
		p.send(reply(endPSN, 256, make([]byte, 300))...)
		require.Equal(t, []sent{
			{wire.RCWriteOnly, endPSN + 3, true, 1}, {wire.RCReadRequest, endPSN + 4, true, 0}, {wire.RCWriteOnly, endPSN + 5, true, 1},
		}, p.takeSent(), "a fence is for READs, not for WRITEs")
		// A fence that was passed holds when all of it is repeated: the READ behind it is no READ before it.
		p.send(response(endPSN+2, wire.SyndromePSNSequence))
		require.Equal(t, []sent{
			{wire.RCWriteOnly, endPSN + 2, true, 1}, {wire.RCWriteOnly, endPSN + 3, true, 1}, {wire.RCReadRequest, endPSN + 4, true, 0},
		}, p.takeSent())
	})
}

func TestLongReadsAreAskedForInParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 1024, rd: 2})
		const n = nodeMem
		data := pattern(3, n)
		p.end.send(p.end.read(1, 0, n), p.end.write(2, 0, 1))
		at, done := uint32(0), uint32(0)
		var parts []question
		for rounds := 0; done < n; rounds++ {
			require.Less(t, rounds, 1000)
			for _, h := range p.take() {
				if h.Opcode == wire.RCWriteOnly {
					continue
				}
				q := question{h.PSN, h.RETH.VA - 0xABC0000000000001, h.RETH.Length}
				require.Equal(t, endPSN+at/1024, q.PSN)
				require.EqualValues(t, at, q.VA, "one after the other")
				require.LessOrEqual(t, q.Size, uint32(readBytes))
				at += q.Size
				require.True(t, q.Size%1024 == 0 || at == n)
				parts = append(parts, q)
			}
			require.LessOrEqual(t, len(parts), 2, "the depth")
			require.NotEmpty(t, parts)
			outstanding := int64(0)
			for _, q := range parts {
				outstanding += int64(q.Size/1024) * (1024 + packetOverhead)
			}
			require.LessOrEqual(t, outstanding, p.end.q.rc.cc.window+1024+packetOverhead, "no more than there is room for")
			q := parts[0]
			parts = parts[1:]
			p.send(reply(q.PSN, 1024, data[q.VA:q.VA+uint64(q.Size)])...)
			done += q.Size
		}
		p.send(ack(endPSN + n/1024))
		require.Equal(t, []outcome{{1, 0}, {2, 0}}, p.end.outcomes())
		require.True(t, bytes.Equal(data, p.end.mem))
		require.Zero(t, p.end.q.rc.cc.inflight)
		require.Zero(t, p.end.q.Stats().Retransmits)
	})
}

func TestResponsesAcknowledgeWhatComesBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.send(p.end.write(1, 0, 600), p.end.write(2, 0, 1), p.end.read(3, 1000, 600), p.end.write(4, 0, 1), p.end.fetchAdd(5, 0, 1))
		require.Len(t, p.take(), 7)
		all := reply(endPSN+4, 256, pattern(1, 600))
		p.send(all[0])
		require.Equal(t, []outcome{{1, 0}, {2, 0}}, p.end.outcomes())
		p.send(all[1:]...)
		require.Equal(t, []outcome{{3, 0}}, p.end.outcomes())
		p.send(atomicReply(endPSN+8, 1))
		require.Equal(t, []outcome{{4, 0}, {5, 0}}, p.end.outcomes())
		require.Empty(t, p.take())
	})
}

// TestLostResponsesAreAskedForAgain loses one response of a READ, in every place, and learns of it in every way.
func TestLostResponsesAreAskedForAgain(t *testing.T) {
	const n = 4*256 + 5
	data := pattern(9, n)
	for lost := range uint32(5) {
		for name, tell := range map[string]func(p *peer) []wire.Packet{
			"a later response": func(*peer) []wire.Packet {
				if lost == 4 {
					return []wire.Packet{atomicReply(endPSN+6, 1)}
				}
				return reply(endPSN, 256, data)[lost+1:]
			},
			"an acknowledgement": func(*peer) []wire.Packet { return []wire.Packet{ack(endPSN + 5)} },
			"a sequence NAK":     func(*peer) []wire.Packet { return []wire.Packet{response(endPSN+6, wire.SyndromePSNSequence)} },
			"an RNR NAK":         func(*peer) []wire.Packet { return []wire.Packet{response(endPSN+6, wire.SyndromeRNR|31)} },
			"a NAK":              func(*peer) []wire.Packet { return []wire.Packet{response(endPSN+6, wire.SyndromeRemoteAccess)} },
			"silence":            func(*peer) []wire.Packet { time.Sleep(60 * time.Millisecond); return nil },
		} {
			for form, again := range map[string]func(hs []wire.Packet) []wire.Packet{
				"Middle and Last": func([]wire.Packet) []wire.Packet { return reply(endPSN, 256, data)[lost:] },
				"First and Last":  func([]wire.Packet) []wire.Packet { return reply(endPSN+lost, 256, data[lost*256:]) },
			} {
				t.Run(fmt.Sprint(lost, " ", name, " ", form), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						p := newPeer(t, link{mtu: 256, rd: 4})
						p.end.send(p.end.read(1, 0, n), p.end.write(2, 0, 1), p.end.fetchAdd(3, 4000, 1))
						require.Len(t, p.take(), 3)
						p.send(reply(endPSN, 256, data)[:lost]...)
						if hs := tell(p); hs != nil {
							p.send(hs...)
						}
						got := p.take()
						require.NotEmpty(t, got)
						require.Equal(t, wire.RCReadRequest, got[0].Opcode)
						require.Equal(t, endPSN+lost, got[0].PSN)
						require.Equal(t, wire.RETH{VA: 0xABC0000000000001 + uint64(lost)*256, RKey: 0x1234, Length: n - lost*256}, got[0].RETH)
						require.Empty(t, p.end.completions())

						p.send(again(nil)...)
						require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
						require.Equal(t, data, p.end.mem[:n])
						p.send(ack(endPSN + 5))
						p.send(atomicReply(endPSN+6, 0x4242))
						require.Equal(t, []outcome{{2, 0}, {3, 0}}, p.end.outcomes())
						require.EqualValues(t, 0x4242, binary.NativeEndian.Uint64(p.end.mem[4000:]))
						require.Zero(t, p.end.q.rc.cc.inflight)
					})
				})
			}
		}
	}
}

func TestPartsAreAskedForAgainAsTheyWere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.q.rc.cc.window = 1 << 30
		p.end.send(p.end.read(1, 0, 3*readBytes/2))
		k := uint32(readBytes / 256)
		require.Equal(t, []question{{endPSN, 0, readBytes}, {endPSN + k, readBytes, readBytes / 2}}, p.questions())
		// Of the first part, some came, and of the second, all.
		p.send(reply(endPSN, 256, make([]byte, 10*256))...)
		p.send(reply(endPSN+k, 256, make([]byte, readBytes/2))[0])
		require.Equal(t, []question{{endPSN + 10, 10 * 256, readBytes - 10*256}}, p.questions(), "a responder knows no part that spans two")
		p.send(reply(endPSN+10, 256, make([]byte, readBytes-10*256))[:k-11]...)
		p.send(reply(endPSN+k-1, 256, make([]byte, 256))...)
		require.Equal(t, []question{{endPSN + k, readBytes, readBytes / 2}}, p.questions())
		p.send(reply(endPSN+k, 256, make([]byte, readBytes/2))...)
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
	})
}

func TestStaleResponsesAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.send(p.end.read(1, 0, 600), p.end.read(2, 1000, 600))
		p.take()
		first := reply(endPSN, 256, pattern(1, 600))
		p.send(first...)
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		copy(p.end.mem, make([]byte, 600)) // the consumer's again
		p.send(first...)
		p.send(reply(endPSN-1, 256, pattern(2, 200))...)
		p.send(reply(endPSN+6, 256, pattern(2, 200))...)
		require.Equal(t, make([]byte, 600), p.end.mem[:600])
		require.Empty(t, p.take())
		// Each twice, and one from before in between.
		var hs []wire.Packet
		for _, h := range reply(endPSN+3, 256, pattern(3, 600)) {
			hs = append(hs, h, h, first[2])
		}
		p.send(hs...)
		require.Equal(t, []outcome{{2, 0}}, p.end.outcomes())
		require.Equal(t, pattern(3, 600), p.end.mem[1000:1600])
		require.Empty(t, p.take())
		require.Zero(t, p.end.q.Stats())
	})
}

func TestBadResponsesEndTheConnection(t *testing.T) {
	data := make([]byte, 600)
	nak := reply(endPSN, 256, data)[0]
	nak.AETH.Syndrome = wire.SyndromeRemoteAccess
	for name, h := range map[string]wire.Packet{
		"short":                    packet(wire.RCReadResponseFirst, endPSN, data[:252]),
		"long":                     packet(wire.RCReadResponseFirst, endPSN, data[:260]),
		"empty":                    packet(wire.RCReadResponseFirst, endPSN, nil),
		"of an atomic":             atomicReply(endPSN, 1),
		"whose AETH is no ACK":     nak,
		"to a WRITE":               reply(endPSN+3, 256, data[:1])[0],
		"to an atomic":             reply(endPSN+4, 256, data[:8])[0],
		"of an atomic to a WRITE":  atomicReply(endPSN+3, 1),
		"last is called a Middle":  packet(wire.RCReadResponseMid, endPSN+2, data[:88]),
		"last is longer":           reply(endPSN+2, 256, data[:89])[0],
		"last is a First, in full": packet(wire.RCReadResponseFirst, endPSN+2, data[:88]),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256, rd: 4})
				p.end.send(p.end.read(1, 0, 600), p.end.write(2, 0, 1), p.end.fetchAdd(3, 1000, 1))
				p.take()
				bad := uint64(1)
				var want []outcome
				if d := wire.PSNDiff(h.PSN, endPSN); d > 0 {
					all := reply(endPSN, 256, data)
					p.send(all[:min(d, 3)]...)
					if d >= 3 {
						bad = 2
						want = []outcome{{1, 0}}
					}
					if d == 4 {
						p.send(ack(endPSN + 3))
						bad, want = 3, append(want, outcome{2, 0})
					}
				}
				p.send(h)
				want = append(want, outcome{bad, verbs.BadRespErr})
				for id := bad + 1; id <= 3; id++ {
					want = append(want, outcome{id, verbs.WRFlushErr})
				}
				require.Equal(t, want, p.end.outcomes())
				require.Zero(t, p.end.q.rc.cc.inflight)
			})
		})
	}
}

func TestRefusalsOfReads(t *testing.T) {
	for syndrome, status := range map[uint8]verbs.Status{
		wire.SyndromeInvalidReq:   verbs.RemInvReqErr,
		wire.SyndromeRemoteAccess: verbs.RemAccessErr,
		wire.SyndromeRemoteOp:     verbs.RemOpErr,
	} {
		t.Run(status.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256, rd: 4})
				p.end.send(p.end.read(1, 0, 600), p.end.read(2, 1000, 600), p.end.write(3, 0, 1))
				p.take()
				// All of the first and some of the second come along with it.
				hs := append(reply(endPSN, 256, make([]byte, 600)), reply(endPSN+3, 256, make([]byte, 600))[0], response(endPSN+4, syndrome))
				p.send(hs...)
				require.Equal(t, []outcome{{1, 0}, {2, status}, {3, verbs.WRFlushErr}}, p.end.outcomes())
				require.Zero(t, p.end.q.rc.cc.inflight)
			})
		})
	}
}

func TestRefusalBehindLostResponses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.send(p.end.read(1, 0, 600), p.end.write(2, 0, 1), p.end.write(3, 0, 1), p.end.write(4, 0, 1))
		p.take()
		nak := response(endPSN+4, wire.SyndromeRemoteAccess)
		p.send(reply(endPSN, 256, make([]byte, 600))[0], nak, nak)
		require.Empty(t, p.end.completions(), "the responses may have been overtaken")
		require.Equal(t, sent{wire.RCReadRequest, endPSN + 1, true, 0}, p.takeSent()[0])
		for range maxDenials {
			require.Empty(t, p.end.completions())
			time.Sleep(time.Millisecond)
			p.send(nak) // the peer gives no other answer any more
		}
		require.Equal(t, []outcome{
			{1, verbs.WRFlushErr}, {2, verbs.WRFlushErr}, {3, verbs.RemAccessErr}, {4, verbs.WRFlushErr},
		}, p.end.outcomes())
	})
}

func TestPeerMayBeNotReadyForReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.send(p.end.read(1, 0, 600), p.end.read(2, 1000, 10))
		p.take()
		p.send(response(endPSN, wire.SyndromeRNR|20))
		time.Sleep(10240*time.Microsecond - 1)
		require.Empty(t, p.take())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []question{{endPSN, 0, 600}}, p.questions())
		p.send(reply(endPSN, 256, make([]byte, 600))...)
		require.Equal(t, []question{{endPSN + 3, 0, 10}}, p.questions())
		p.send(reply(endPSN+3, 256, make([]byte, 10))...)
		require.Equal(t, []outcome{{1, 0}, {2, 0}}, p.end.outcomes())
	})
}

func TestReadIntoForbiddenMemoryFailsInTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpFetchAdd} {
			p := newPeer(t, link{mtu: 256, rd: 4})
			m := p.end.reg(p.end.mem[:4096], verbs.RemoteRead)
			bad := verbs.SendWR{ID: 2, Op: op, SGL: []verbs.SGE{{Addr: m.Addr(), Length: 8, LKey: m.LKey()}}}
			p.end.send(p.end.read(1, 5000, 8), bad, p.end.read(3, 5000, 8))
			require.Len(t, p.questions(), 1, "it is not even sent")
			require.Empty(t, p.end.completions())
			p.send(reply(endPSN, 256, make([]byte, 8))...)
			require.Equal(t, []outcome{{1, 0}, {2, verbs.LocProtErr}, {3, verbs.WRFlushErr}}, p.end.outcomes())
			require.NoError(t, m.Close())
			require.NoError(t, p.end.q.Close())
		}
	})
}

func TestRegionClosedWhileItIsReadInto(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		m := p.end.reg(p.end.mem[:4096], verbs.LocalWrite)
		wr := p.end.read(2, 0, 0)
		wr.SGL = []verbs.SGE{{Addr: m.Addr(), Length: 600, LKey: m.LKey()}}
		p.end.send(p.end.read(1, 5000, 8), wr, p.end.read(3, 5000, 8))
		p.take()
		p.send(append(reply(endPSN, 256, make([]byte, 8)), reply(endPSN+1, 256, pattern(1, 600))[0])...)
		require.NoError(t, m.Close())
		p.send(reply(endPSN+1, 256, pattern(1, 600))[1:]...)
		require.Equal(t, []outcome{{1, 0}, {2, verbs.LocProtErr}, {3, verbs.WRFlushErr}}, p.end.outcomes())
		require.Equal(t, make([]byte, 344), p.end.mem[256:600])
	})
}

func TestReadsAcrossThePSNWrap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4, psnA: 0xFFFFFE, psnB: 0xFFFFFF})
		p.end.send(p.end.read(1, 0, 1000), p.end.read(2, 2000, 10))
		require.Equal(t, []question{{0xFFFFFE, 0, 1000}, {2, 0, 10}}, p.questions())
		all := reply(0xFFFFFE, 256, pattern(1, 1000))
		p.send(all[0], all[2]) // a gap at the wrap
		require.Equal(t, []question{{0xFFFFFF, 256, 744}}, p.questions()[:1])
		p.send(all[1:]...)
		p.send(reply(2, 256, make([]byte, 10))...)
		require.Equal(t, []outcome{{1, 0}, {2, 0}}, p.end.outcomes())
		require.Equal(t, pattern(1, 1000), p.end.mem[:1000])
	})
}

func TestSilenceEndsAReadInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4, timeout: 14, retry: 3}) // 67 ms, 4 times
		start := time.Now()
		p.end.send(p.end.read(1, 0, 2000), p.end.fetchAdd(2, 0, 1))
		for range 4 {
			time.Sleep(60 * time.Millisecond)
			require.Empty(t, p.end.completions())
		}
		for len(p.end.ready()) == 0 {
			time.Sleep(time.Millisecond)
			require.Less(t, time.Since(start), time.Second)
		}
		require.InDelta(t, 268*time.Millisecond, time.Since(start), float64(5*time.Millisecond))
		require.Zero(t, p.end.q.rc.cc.inflight)
	})
}

// ready returns the outcomes once there are some; the requests have failed by then.
func (e *end) ready() []outcome {
	o := e.outcomes()
	if len(o) > 0 {
		require.Equal(e.t, []outcome{{1, verbs.RetryExcErr}, {2, verbs.WRFlushErr}}, o)
	}
	return o
}

// TestPartsAreNotLittle: room that comes back packet by packet is not used packet by packet.
func TestPartsAreNotLittle(t *testing.T) {
	t.Run("window", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newPeer(t, link{mtu: 256, rd: 8})
			p.end.q.rc.cc.window = 1 << 30
			p.end.send(p.end.read(1, 0, nodeMem))
			require.Equal(t, []question{{endPSN, 0, readBytes}, {endPSN + 512, readBytes, readBytes}}, p.questions())
			all := reply(endPSN, 256, make([]byte, nodeMem))
			for i := range 255 {
				p.send(all[i])
				require.Empty(t, p.questions())
			}
			p.send(all[255])
			require.Equal(t, []question{{endPSN + 1024, 2 * readBytes, readBytes / 2}}, p.questions())
		})
	})
	t.Run("room", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p := newPeer(t, link{mtu: 1024, rd: 8})
			p.end.send(p.end.read(1, 0, nodeMem))
			all := reply(endPSN, 1024, make([]byte, nodeMem))
			n := 0
			for _, h := range all {
				for _, q := range p.questions() {
					n++
					require.True(t, q.Size >= 24<<10 || q.VA+uint64(q.Size) == nodeMem, "%d bytes", q.Size)
				}
				p.send(h)
			}
			require.Less(t, n, 40)
			require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		})
	})
}
