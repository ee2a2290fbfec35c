package softroce

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// FuzzReceive lets a hostile peer send anything. Its packets are made of the input: a byte
// of flags, a length in words, and the packet itself, of which the flags replace parts by what a
// peer that knows the connection would send.
func FuzzReceive(f *testing.F) { fuzzReceive(f, false) }

// FuzzReceiveShared is FuzzReceive where the receives are those of a shared queue.
func FuzzReceiveShared(f *testing.F) { fuzzReceive(f, true) }

func fuzzReceive(f *testing.F, shared bool) {
	seed := func(hs ...wire.Packet) {
		var in []byte
		for _, h := range hs {
			h.PKey = wire.DefaultPKey
			h.Pad = wire.PadFor(len(h.Payload))
			b := make([]byte, h.HeaderLen(), 4096)
			h.PutHeaders(b)
			b = append(b, h.Payload...)
			b = append(b, make([]byte, h.Pad)...)
			in = append(in, 0xFF, byte(len(b)/4))
			in = append(in, b...)
		}
		f.Add(in)
	}
	reth := wire.RETH{Length: 300}
	full := make([]byte, 256)
	seed(packet(wire.RCSendOnly, 0, []byte("abc")), packet(wire.RCSendOnlyImm, 0, nil))
	seed(packet(wire.RCSendFirst, 0, full), packet(wire.RCSendMiddle, 0, full), packet(wire.RCSendLast, 0, []byte("abcd")))
	seed(wire.Packet{BTH: wire.BTH{Opcode: wire.RCWriteFirst}, RETH: reth, Payload: full}, packet(wire.RCWriteLastImm, 0, full[:44]))
	seed(ack(0), response(0, wire.SyndromePSNSequence), response(0, wire.SyndromeRNR|1), response(0, wire.SyndromeRemoteAccess))
	seed(packet(wire.RCReadRequest, 0, nil), packet(wire.RCReadResponseOnly, 0, full), packet(wire.UDSendOnly, 0, full))
	seed(wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest}, RETH: reth}, wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest}, RETH: reth})
	seed(packet(wire.RCFetchAdd, 0, nil), packet(wire.RCCompareSwap, 0, nil), packet(wire.RCAtomicAck, 0, nil))
	flush := func(level uint8) wire.Packet {
		h := packet(wire.RCFlush, 0, nil)
		h.FETH, h.RETH = wire.NewFETH(wire.PlacementGlobal|wire.PlacementPersistent, level), reth
		return h
	}
	word := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAtomicWrite}, RETH: wire.RETH{Length: 8}, Payload: full[:8]}
	seed(flush(wire.FlushRange), word, flush(wire.FlushMR), word, flush(2), packet(wire.RCReadRequest, 0, nil))
	seed(flush(wire.FlushMR), flush(wire.FlushMR), flush(wire.FlushMR), flush(wire.FlushMR), flush(wire.FlushMR), word)
	seed(reply(0, 256, make([]byte, 600))...)
	seed(append([]wire.Packet{ack(0), ack(0)}, reply(0, 256, make([]byte, 600))...)...)
	seed(packet(wire.RCSendOnlyInv, 0, []byte("abc")), packet(wire.RCSendOnlyInv, 0, nil))
	seed(packet(wire.RCSendFirst, 0, full), packet(wire.RCSendLastInv, 0, []byte("abcd")), wire.Packet{BTH: wire.BTH{Opcode: wire.RCWriteOnly}, RETH: reth})
	f.Add([]byte{0, 1, 2, 3})

	f.Fuzz(func(t *testing.T, in []byte) {
		pa, _ := newPipes()
		n := newNode(t, nil, pa, addrA)
		var attr verbs.QPInitAttr
		var srq *srq
		if shared {
			srq = n.newSRQ(verbs.SRQAttr{})
			attr.SRQ = srq
		}
		e := n.newEnd(attr, 64, nil)
		require.NoError(t, e.q.connect(&rcAttr{
			path: newPath(addrA, addrB), destQPN: peerQPN, mtu: 256, ackTimeout: 19, rqPSN: 0xFFFFFC, sqPSN: 0xFFFFFD, rnrRetry: 3,
			maxRDAtomic: 6, maxDestRDAtomic: 3,
		}))
		small, err := n.pd.RegPersistentMR(n.mem[4096:4096+500], allAccess, func(mem []byte) error {
			if len(mem) == 0 || len(mem) > 500 {
				panic("FLUSH of what is not the region's")
			}
			return nil
		})
		require.NoError(t, err)
		recvs := []verbs.RecvWR{{SGL: []verbs.SGE{{Addr: small.Addr(), Length: 300, LKey: small.LKey()}}}, {}, {}}
		if shared {
			srq.mustPost(t, recvs...)
		} else {
			e.recv(recvs...)
		}
		e.send(e.write(1, 0, 1000), e.write(2, 0, 0), e.write(3, 5, 5))
		e.send(e.read(4, 8192, 600), e.fetchAdd(5, 8800, 1), e.read(6, 9000, 1))
		e.send(e.flushOf(7, verbs.FlushGlobal, 5), e.atomicWrite(8, 9), e.flushOf(9, verbs.FlushPersistent, 5))

		var batch []netio.Packet
		for len(in) >= 2 {
			flags, size := in[0], min(int(in[1])*4, len(in)-2)
			b := bytes.Clone(in[2 : 2+size])
			in = in[2+size:]
			if len(b) >= wire.BTHLen {
				if flags&1 != 0 {
					b[4], b[5], b[6], b[7] = 0, byte(e.q.num>>16), byte(e.q.num>>8), byte(e.q.num)
				}
				if op := wire.Opcode(b[0]); flags&2 != 0 {
					psn := (e.q.rc.exp + uint32(len(batch))) & psnMask
					if op.IsResponse() {
						psn = e.q.rc.una
					}
					b[9], b[10], b[11] = byte(psn>>16), byte(psn>>8), byte(psn)
				}
				if op := wire.Opcode(b[0]); flags&4 != 0 && (op.HasRETH() || op.IsAtomic()) && len(b) >= op.HeaderLen() {
					at := b[wire.BTHLen:]
					if op.Extensions()&wire.ExtFETH != 0 {
						at = at[wire.FETHLen:]
					}
					binary.BigEndian.PutUint64(at, small.Addr()+uint64(flags>>4))
					binary.BigEndian.PutUint32(at[8:], small.RKey())
				} else if flags&4 != 0 && op.HasInv() && len(b) >= op.HeaderLen() {
					binary.BigEndian.PutUint32(b[wire.BTHLen:], small.RKey())
				}
			}
			batch = append(batch, netio.Packet{Local: addrA, Remote: netip.AddrPortFrom(addrB, 1), Data: b})
			if flags&8 == 0 || len(batch) == 16 {
				n.dev.HandlePackets(batch)
				batch = batch[:0]
			}
		}
		n.dev.HandlePackets(batch)

		require.NoError(t, e.q.ToError())
		left := 0
		if shared {
			left = srq.rq.len()
		}
		require.Len(t, e.completions(), 12-left, "every request completes once")
		require.Zero(t, e.q.rc.inflight)
		require.Zero(t, e.q.rc.cc.inflight)
		require.Equal(t, make([]byte, 4096), n.mem[:4096])
		require.Equal(t, make([]byte, 4096-500), n.mem[4096+500:8192])
		for _, gap := range [][2]int{{8792, 8800}, {8808, 9000}, {9001, 12000}} {
			require.Equal(t, make([]byte, gap[1]-gap[0]), n.mem[gap[0]:gap[1]])
		}
		require.NoError(t, small.Close())
	})
}
