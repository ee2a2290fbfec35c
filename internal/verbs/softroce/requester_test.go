package softroce

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// write is a signaled WRITE of a range of the end's memory.
func (e *end) write(id uint64, off, n int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: e.sgl(off, n), RemoteAddr: 0xABC0000000000001, RKey: 0x1234}
}

func TestMessagesAreCutIntoPackets(t *testing.T) {
	type shape struct {
		op   verbs.Opcode
		n    int
		want []wire.Opcode
	}
	for _, c := range []shape{
		{verbs.OpSend, 0, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 1, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 255, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 256, []wire.Opcode{wire.RCSendOnly}},
		{verbs.OpSend, 257, []wire.Opcode{wire.RCSendFirst, wire.RCSendLast}},
		{verbs.OpSend, 512, []wire.Opcode{wire.RCSendFirst, wire.RCSendLast}},
		{verbs.OpSend, 513, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast}},
		{verbs.OpSendWithImm, 0, []wire.Opcode{wire.RCSendOnlyImm}},
		{verbs.OpSendWithImm, 600, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm}},
		{verbs.OpWrite, 0, []wire.Opcode{wire.RCWriteOnly}},
		{verbs.OpWrite, 256, []wire.Opcode{wire.RCWriteOnly}},
		{verbs.OpWrite, 600, []wire.Opcode{wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast}},
		{verbs.OpWriteWithImm, 5, []wire.Opcode{wire.RCWriteOnlyImm}},
		{verbs.OpWriteWithImm, 600, []wire.Opcode{wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm}},
	} {
		t.Run(fmt.Sprint(c.op, c.n), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256})
				copy(p.end.mem[100:], pattern(1, c.n))
				// Gathered from two pieces that do not fall on packet borders.
				cut := c.n / 3
				p.end.send(verbs.SendWR{
					Op: c.op, Flags: verbs.Solicited, Imm: 0xA1B2C3D4, RemoteAddr: 77, RKey: 88,
					SGL: []verbs.SGE{p.end.sge(100, cut), p.end.sge(100+cut, c.n-cut)},
				})
				var data []byte
				for i, h := range p.take() {
					require.Equal(t, c.want[i], h.Opcode)
					require.EqualValues(t, peerQPN, h.DestQP)
					require.EqualValues(t, endPSN+i, h.PSN)
					require.Equal(t, wire.DefaultPKey, h.PKey)
					last := i == len(c.want)-1
					require.Equal(t, last, h.AckReq)
					require.Equal(t, last && c.op != verbs.OpWrite, h.Solicited)
					if h.Opcode.HasRETH() {
						require.Equal(t, wire.RETH{VA: 77, RKey: 88, Length: uint32(c.n)}, h.RETH)
					}
					if h.Opcode.HasImm() {
						require.Equal(t, uint32(0xA1B2C3D4), h.Imm)
					}
					if !last {
						require.Len(t, h.Payload, 256)
					}
					data = append(data, h.Payload...)
				}
				require.Equal(t, string(pattern(1, c.n)), string(data))
			})
		})
	}
}

func TestLongMessagesAskForAcknowledgements(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.send(p.end.write(1, 0, 100*256))
		got := p.takeSent()
		require.Len(t, got, 100)
		since := 0
		for _, s := range got {
			if since++; s.Ask {
				since = 0
			}
			require.Less(t, since, 32)
		}
		require.True(t, got[99].Ask)
	})
}

func TestInlineBytesAreTakenAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		buf := []byte("first")
		p.net.DropNext(1, nil)
		p.end.send(verbs.SendWR{Op: verbs.OpSend, Inline: buf})
		copy(buf, "secnd")
		p.end.send(verbs.SendWR{Op: verbs.OpSend, Inline: buf})
		p.take()
		p.send(response(endPSN, wire.SyndromePSNSequence))
		got := p.take()
		require.Len(t, got, 2)
		require.Equal(t, "first", string(got[0].Payload))
		require.Equal(t, "secnd", string(got[1].Payload))
	})
}

func TestOneAcknowledgementCompletesSeveralInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		quiet := p.end.write(2, 0, 10)
		quiet.Flags = 0
		send := verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.Signaled}
		p.end.send(p.end.write(1, 0, 300), quiet, send, p.end.write(4, 0, 1), p.end.write(5, 0, 600))
		p.send(ack(endPSN)) // the first half of the first message
		require.Empty(t, p.end.completions())
		p.send(ack(endPSN + 3))
		qpn := p.end.q.Num()
		require.Equal(t, []verbs.WC{{ID: 1, Op: verbs.WCWrite, QPN: qpn}, {ID: 3, Op: verbs.WCSend, QPN: qpn}}, p.end.completions())
		p.send(ack(endPSN + 7))
		require.Equal(t, []outcome{{4, 0}, {5, 0}}, p.end.outcomes())
	})
}

func TestStaleAcknowledgementsAreIgnored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		p.end.send(p.end.write(1, 0, 1), p.end.write(2, 0, 1))
		p.send(ack(endPSN))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		p.take()
		for _, h := range []wire.Packet{
			ack(endPSN), ack(endPSN - 1), ack(endPSN + 2), ack(endPSN + 1<<22), // behind, and ahead of all that was sent
			response(endPSN, wire.SyndromePSNSequence), response(endPSN, wire.SyndromeRemoteAccess), response(endPSN, wire.SyndromeRNR|1),
			response(endPSN+2, wire.SyndromePSNSequence), response(endPSN+2, wire.SyndromeInvalidReq),
			response(endPSN+1, 0x40), response(endPSN+1, 0x7F), response(endPSN+1, 0x9F), // reserved
		} {
			p.send(h)
			require.Empty(t, p.end.completions())
			require.Empty(t, p.take())
		}
		p.send(ack(endPSN + 1))
		require.Equal(t, []outcome{{2, 0}}, p.end.outcomes())
		require.Zero(t, p.end.q.Stats())
	})
}

func TestWindowBoundsWhatIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 1024, attr: verbs.QPInitAttr{MaxSendWR: 4}})
		p.end.send(p.end.write(1, 0, 1<<19))
		first := p.takeSent()
		n := len(first)
		require.InDelta(t, initialWindow/(1024+packetOverhead), n, 1)
		require.True(t, first[n-1].Ask, "an answer must come, or all would wait")
		require.Empty(t, p.take())
		p.send(ack(endPSN + uint32(n) - 1))
		require.InDelta(t, 2*n, len(p.take()), 1, "slow start")
	})
}

func TestBadLocalKeysFailInTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		other, err := p.end.dev.AllocPD()
		require.NoError(t, err)
		m, err := other.RegMR(p.end.mem[:4096], verbs.LocalWrite)
		require.NoError(t, err)
		defer func() {
			require.NoError(t, m.Close())
			require.NoError(t, other.Close())
		}()
		for name, s := range map[string]verbs.SGE{
			"key":    {Addr: p.end.mr.Addr(), Length: 1, LKey: p.end.mr.LKey() ^ 1},
			"before": p.end.sge(-1, 1),
			"behind": p.end.sge(nodeMem-1, 2),
			"wraps":  {Addr: ^uint64(0), Length: 4, LKey: p.end.mr.LKey()},
			"domain": {Addr: m.Addr(), Length: 1, LKey: m.LKey()},
		} {
			e := p.end.newEnd(verbs.QPInitAttr{}, 16, nil)
			at := rcAttr{path: p.end.q.rc.path, destQPN: peerQPN, mtu: 1024, ackTimeout: 19, retryCount: 7}
			require.NoError(t, e.q.connect(&at))
			bad := e.write(2, 0, 1)
			bad.SGL, bad.Flags = []verbs.SGE{e.sge(0, 1), s}, 0
			e.send(e.write(1, 0, 1), bad, e.write(3, 0, 1))
			require.Len(t, p.take(), 1, name)
			require.Empty(t, e.completions(), "the request before is not done")
			h := ack(0)
			h.DestQP = e.q.num
			p.send(h)
			require.Equal(t, []outcome{{1, 0}, {2, verbs.LocProtErr}, {3, verbs.WRFlushErr}}, e.outcomes(), name)

			// A zero length names no memory.
			e = p.end.newEnd(verbs.QPInitAttr{}, 16, nil)
			require.NoError(t, e.q.connect(&at))
			s.Length = 0
			bad.SGL = []verbs.SGE{s}
			e.send(bad)
			require.Len(t, p.take(), 1)
			require.Empty(t, e.completions())
		}
	})
}

func TestRegionClosedTooEarlyFailsTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		m := p.end.reg(p.end.mem[:4096], verbs.LocalWrite)
		wr := verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: m.Addr(), Length: 600, LKey: m.LKey()}}}
		p.end.send(p.end.write(1, 0, 1), wr)
		require.Len(t, p.take(), 4)
		require.NoError(t, m.Close())
		time.Sleep(60 * time.Millisecond)
		require.Len(t, p.take(), 1, "only what is still registered is sent again")
		p.send(ack(endPSN))
		require.Equal(t, []outcome{{1, 0}, {2, verbs.LocProtErr}}, p.end.outcomes())
	})
}

func TestFullQueueTakesTheRestLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{attr: verbs.QPInitAttr{MaxSendWR: 5, MaxRecvWR: 3}})
		wrs := make([]verbs.SendWR, 8)
		for i := range wrs {
			wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpSend}
		}
		wrs[6].Flags = verbs.Signaled
		n, err := p.end.q.PostSend(wrs)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		n, err = p.end.q.PostSend(wrs[5:])
		require.NoError(t, err)
		require.Zero(t, n)
		p.send(ack(endPSN + 1)) // unsignaled: their slots are free without a completion
		n, err = p.end.q.PostSend(wrs[5:])
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Len(t, p.take(), 7)
		p.send(ack(endPSN + 6))
		require.Equal(t, []outcome{{6, 0}}, p.end.outcomes())

		n, err = p.end.q.PostRecv(make([]verbs.RecvWR, 5))
		require.NoError(t, err)
		require.Equal(t, 3, n)
	})
}

func TestPostErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{attr: verbs.QPInitAttr{MaxSendSGE: 2, MaxRecvSGE: 1}})
		q := p.end.q
		good := verbs.SendWR{Op: verbs.OpSend}
		post := func(wr verbs.SendWR) error {
			n, err := q.PostSend([]verbs.SendWR{good, wr, good})
			if err != nil {
				require.Equal(t, 1, n, "the requests before are taken")
			}
			return err
		}
		for _, op := range []verbs.Opcode{0, 99} {
			require.True(t, isUnsupported(post(verbs.SendWR{Op: op})), op)
		}
		for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpFlush, verbs.OpAtomicWrite} {
			require.ErrorIs(t, post(verbs.SendWR{Op: op, SGL: p.end.sgl(0, 8)}), syscall.EINVAL, "the connection was made without")
		}
		require.ErrorIs(t, post(verbs.SendWR{Op: verbs.OpSend, SGL: make([]verbs.SGE, 3)}), syscall.EINVAL)
		require.ErrorIs(t, post(verbs.SendWR{Op: verbs.OpSend, Inline: make([]byte, maxInline+1)}), syscall.EINVAL)
		big := verbs.SGE{Length: 1 << 30}
		require.ErrorIs(t, post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{big, {Length: 1<<30 + 1}}}), syscall.EMSGSIZE)
		_, err := q.PostRecv([]verbs.RecvWR{{SGL: make([]verbs.SGE, 2)}})
		require.ErrorIs(t, err, syscall.EINVAL)
		require.Len(t, p.take(), 10)

		fresh := p.end.newEnd(verbs.QPInitAttr{}, 4, nil)
		_, err = fresh.q.PostSend([]verbs.SendWR{good})
		require.ErrorIs(t, err, syscall.ENOTCONN)
		require.NoError(t, fresh.q.Close())
		_, err = fresh.q.PostSend([]verbs.SendWR{good})
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = fresh.q.PostRecv([]verbs.RecvWR{{}})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, fresh.q.ToError(), net.ErrClosed)
	})
}

func TestToErrorFlushesInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.recv(verbs.RecvWR{ID: 11, SGL: p.end.sgl(0, 1000)}, verbs.RecvWR{ID: 12})
		p.send(packet(wire.RCSendFirst, peerPSN, make([]byte, 256))) // begun, never to be finished
		quiet := p.end.write(2, 0, 1)
		quiet.Flags = 0
		p.end.send(p.end.write(1, 0, 1<<18), quiet, p.end.write(3, 0, 1))
		require.NoError(t, p.end.q.ToError())
		flush := func(ids ...uint64) (o []outcome) {
			for _, id := range ids {
				o = append(o, outcome{id, verbs.WRFlushErr})
			}
			return
		}
		require.Equal(t, flush(1, 2, 3, 11, 12), p.end.outcomes())
		p.end.recv(verbs.RecvWR{ID: 13})
		p.end.send(quiet)
		require.Equal(t, flush(13, 2), p.end.outcomes())
		require.NoError(t, p.end.q.ToError())
		require.Empty(t, p.end.outcomes())
		p.take()
		time.Sleep(time.Minute)
		require.Empty(t, p.take())
		require.Zero(t, p.end.q.rc.cc.inflight)
	})
}

func TestClosedQueuePairIsSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		e := p.end
		e.recv(verbs.RecvWR{ID: 1})
		e.send(e.write(2, 0, 1<<18))
		require.NoError(t, e.q.Close())
		p.take()
		time.Sleep(time.Minute)
		p.send(ask(packet(wire.RCSendOnly, peerPSN, nil)), ack(endPSN))
		require.Empty(t, p.take())
		require.Empty(t, e.completions())
		require.EqualValues(t, 2, e.dev.stats.unknownQP.Load())
		require.Empty(t, e.dev.paths.m, "the last queue pair takes the peer's congestion state along")
	})
}
