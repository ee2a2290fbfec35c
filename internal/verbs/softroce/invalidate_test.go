package softroce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const testInvalidatable = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteInvalidate

func sendInv(op wire.Opcode, psn, key uint32, payload []byte) wire.Packet {
	h := ask(packet(op, psn, payload))
	h.InvKey = key
	return h
}

// TestInvalidateRequests: the last packet of the message, and no other, has the key; so it is when packets are sent again.
func TestInvalidateRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		const key = 0x12345678
		wr := verbs.SendWR{Op: verbs.OpSendWithInv, Flags: verbs.Signaled, InvalidateKey: key, Imm: 99}
		for i, n := range []int{0, 255, 256, 257, 600} {
			wr.ID, wr.SGL = uint64(i), p.end.sgl(i, n)
			p.end.send(wr)
		}
		want := []sent{
			{wire.RCSendOnlyInv, endPSN, true, 0}, {wire.RCSendOnlyInv, endPSN + 1, true, 255}, {wire.RCSendOnlyInv, endPSN + 2, true, 256},
			{wire.RCSendFirst, endPSN + 3, false, 256}, {wire.RCSendLastInv, endPSN + 4, true, 1},
			{wire.RCSendFirst, endPSN + 5, false, 256}, {wire.RCSendMiddle, endPSN + 6, false, 256}, {wire.RCSendLastInv, endPSN + 7, true, 88},
		}
		check := func(got []wire.Packet, want []sent) {
			t.Helper()
			var s []sent
			for _, h := range got {
				s = append(s, sent{h.Opcode, h.PSN, h.AckReq, len(h.Payload)})
				require.Zero(t, h.Imm)
				if h.Opcode.HasInv() {
					require.EqualValues(t, key, h.InvKey)
				} else {
					require.Zero(t, h.InvKey)
				}
			}
			require.Equal(t, want, s)
		}
		check(p.take(), want)
		p.send(response(endPSN+4, wire.SyndromePSNSequence))
		check(p.take()[:1], []sent{{wire.RCSendLastInv, endPSN + 4, true, 1}})
		p.send(ack(endPSN + 7))
		require.Equal(t, []outcome{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}, p.end.outcomes())
	})
}

// TestInvalidateDuplicates: a region is invalidated once, when the last packet of a message is taken.
func TestInvalidateDuplicates(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 2})
		m := p.end.reg(p.end.mem[:8192], testInvalidatable)
		defer m.Close()
		key := m.RKey()
		full := make([]byte, 256)
		for i := range uint64(3) {
			p.end.recv(verbs.RecvWR{ID: i, SGL: p.end.sgl(8192, 600)})
		}
		first, last := packet(wire.RCSendFirst, peerPSN, full), sendInv(wire.RCSendLastInv, peerPSN+1, key, full[:3])
		p.send(last)
		require.Equal(t, []answer{{peerPSN, wire.SyndromePSNSequence, 0}}, p.answers())
		p.send(first)
		require.False(t, m.(*mr).invalid.Load())
		p.send(last)
		require.True(t, m.(*mr).invalid.Load())
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeACK, 1}}, p.answers())
		require.Equal(t, []verbs.WC{{ID: 0, Op: verbs.WCRecv, Flags: verbs.WCWithInv, Imm: key, ByteLen: 259, QPN: p.end.q.num}}, p.end.completions())

		m.(*mr).invalid.Store(false) // as if the key were another region's by now
		p.send(first, last)
		p.send(last, last)
		require.Len(t, p.answers(), 2)
		require.False(t, m.(*mr).invalid.Load())
		require.Empty(t, p.end.completions())

		// Without a receive nothing happens.
		only := sendInv(wire.RCSendOnlyInv, peerPSN+2, key, nil)
		require.NoError(t, p.end.q.Close())
		p.send(only)
		require.False(t, m.(*mr).invalid.Load())
	})
}

// TestInvalidateMeetsNoReceive: what draws an RNR NAK invalidates nothing.
func TestInvalidateMeetsNoReceive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		m := p.end.reg(p.end.mem[:8192], testInvalidatable)
		defer m.Close()
		only := sendInv(wire.RCSendOnlyInv, peerPSN, m.RKey(), nil)
		p.send(only)
		require.Equal(t, []answer{{peerPSN, wire.SyndromeRNR | verbs.DefaultRNRTimer, 0}}, p.answers())
		require.False(t, m.(*mr).invalid.Load())
		// Nor does what is longer than its receive.
		p.end.recv(verbs.RecvWR{ID: 1})
		only.Payload = []byte{1}
		p.send(only)
		require.Equal(t, []answer{{peerPSN, wire.SyndromeInvalidReq, 0}}, p.answers())
		require.Equal(t, []outcome{{1, verbs.LocLenErr}}, p.end.outcomes())
		require.False(t, m.(*mr).invalid.Load())
	})
}

// TestInvalidateRefused: a message that names a key which cannot be invalidated is acknowledged, and the dead queue pair acknowledges
// it again, should that have been lost. READs before it are answered, and what comes behind is not.
func TestInvalidateRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 4})
		p.end.recv(verbs.RecvWR{ID: 1, SGL: p.end.sgl(0, 600)}, verbs.RecvWR{ID: 2}, verbs.RecvWR{ID: 3})
		p.end.send(verbs.SendWR{ID: 4, Op: verbs.OpSend})
		p.take()
		key := p.end.mr.RKey() // of a region that was registered without
		full := make([]byte, 256)
		const packets = 100
		read := p.writeTo(packet(wire.RCReadRequest, peerPSN, nil), 8192, packets*256)
		at := uint32(peerPSN + packets)
		first, last := packet(wire.RCSendFirst, at, full), sendInv(wire.RCSendLastInv, at+1, key, full[:4])
		behind := ask(p.writeTo(packet(wire.RCWriteOnly, at+2, []byte{1}), 9000, 1))
		p.send(read, first, last, behind)
		accepted := func() {
			t.Helper()
			got := p.take()
			require.Len(t, got, packets+1)
			h := got[packets]
			require.Equal(t, sent{wire.RCAck, at + 1, false, 0}, sent{h.Opcode, h.PSN, h.AckReq, len(h.Payload)})
			require.Equal(t, wire.SyndromeACK, h.AETH.Syndrome)
			require.EqualValues(t, 2, h.MSN)
			for i, h := range got[:packets] {
				require.True(t, h.Opcode.IsReadResponse())
				require.EqualValues(t, peerPSN+i, h.PSN)
			}
		}
		accepted()
		require.Equal(t, []outcome{{1, verbs.RemInvReqErr}, {4, verbs.WRFlushErr}, {2, verbs.WRFlushErr}, {3, verbs.WRFlushErr}}, p.end.outcomes())
		require.EqualValues(t, 1, p.end.dev.stats.refused.Load())

		p.send(read, first, last, behind)
		accepted()
		p.send(first, last, last)
		require.Equal(t, []answer{{at + 1, wire.SyndromeACK, 2}}, p.answers())
		p.send(behind, behind)
		require.Empty(t, p.take())
		require.Zero(t, p.end.mem[9000])
		require.Empty(t, p.end.outcomes())

		require.NoError(t, p.end.q.Close())
		p.send(last)
		require.Empty(t, p.take())
	})
}

// TestInvalidateRefusedInSilence: what asks for no acknowledgement gets none.
func TestInvalidateRefusedInSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.recv(verbs.RecvWR{ID: 1})
		h := sendInv(wire.RCSendOnlyInv, peerPSN, 0, nil)
		h.AckReq = false
		p.send(h)
		require.Empty(t, p.take())
		require.Equal(t, []outcome{{1, verbs.RemInvReqErr}}, p.end.outcomes())
	})
}

// TestInvalidateInTheMiddle invalidates the region of a WRITE and of a READ that are under way.
func TestInvalidateInTheMiddle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 1})
		m := p.end.reg(p.end.mem[:8192], testInvalidatable)
		full := pattern(1, 256)
		h := packet(wire.RCWriteFirst, peerPSN, full)
		h.RETH = wire.RETH{VA: m.Addr(), RKey: m.RKey(), Length: 600}
		p.send(h)
		m.(*mr).invalidate() // by the request of another queue pair
		p.send(ask(packet(wire.RCWriteMiddle, peerPSN+1, full)))
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeRemoteAccess, 0}}, p.answers())
		require.Equal(t, full, p.end.mem[:256])
		require.Equal(t, make([]byte, 256), p.end.mem[256:512])
		require.Len(t, m.Bytes(), 8192)
		require.NoError(t, m.Close())
		require.Nil(t, m.Bytes())
		require.NoError(t, m.Close())
	})
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256, rd: 1})
		m := p.end.reg(p.end.mem[:1<<19], testInvalidatable)
		h := packet(wire.RCReadRequest, peerPSN, nil)
		h.RETH = wire.RETH{VA: m.Addr(), RKey: m.RKey(), Length: 600}
		p.send(h)
		require.Len(t, p.take(), 3)
		m.(*mr).invalidate()
		p.send(h) // the responses were lost
		require.Equal(t, []answer{{peerPSN, wire.SyndromeRemoteAccess, 1}}, p.answers())
		require.NoError(t, m.Close())
	})
}

// TestInvalidateOnBadNetwork invalidates many regions while the network loses, doubles and mixes up packets: each one once, and none
// before its message is complete.
func TestInvalidateOnBadNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const messages = 200
		_, a, b := pair(t, 5, simnet.Options{
			Loss: 0.03, Dup: 0.03, Reorder: 0.05, Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond,
		})
		x, y := connected(a, b, link{mtu: 256, psnA: 0xFFFF80, attr: verbs.QPInitAttr{MaxSendWR: messages, MaxRecvWR: messages}})
		var regions []verbs.MR
		for i := range messages {
			m := b.reg(b.mem[i*4096:(i+1)*4096], testInvalidatable)
			regions = append(regions, m)
			b.closers = append(b.closers, m)
			y.recv(verbs.RecvWR{ID: uint64(i), SGL: b.sgl(i*4096, 1000)})
		}
		for i := range a.mem {
			a.mem[i] = byte(i * 7)
		}
		size := func(i int) int { return i * 37 % 1000 }
		for i := range messages {
			x.send(verbs.SendWR{
				ID: uint64(i), Op: verbs.OpSendWithInv, Flags: verbs.Signaled, SGL: a.sgl(i, size(i)), InvalidateKey: regions[i].RKey(),
			})
		}
		for done := 0; done < messages; time.Sleep(50 * time.Microsecond) {
			for _, wc := range y.completions() {
				require.Equal(t, verbs.WC{
					ID: uint64(done), Op: verbs.WCRecv, Flags: verbs.WCWithInv, Imm: regions[done].RKey(), ByteLen: uint32(size(done)), QPN: y.q.num,
				}, wc)
				require.True(t, regions[done].(*mr).invalid.Load())
				require.Equal(t, a.mem[done:done+size(done)], b.mem[done*4096:done*4096+size(done)])
				done++
			}
		}
		time.Sleep(time.Second)
		require.Len(t, x.completions(), messages)
		require.Positive(t, x.q.Stats().Retransmits)
	})
}
