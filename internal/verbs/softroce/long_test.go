package softroce

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestTwoGigabytes takes the longest message, all but the last packets of which are said to be done.
func TestTwoGigabytes(t *testing.T) {
	const half, mtu, left = 1 << 30, 4096, 3
	skip := uint32(2*(half/mtu) - left)
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
		t.Run(op.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: mtu, rd: 4})
				q := p.end.q
				arena, err := p.end.pd.NewArena(half) // of which little is ever touched
				require.NoError(t, err)
				m := p.end.reg(arena.Bytes(), verbs.LocalWrite)
				t.Cleanup(func() {
					require.NoError(t, m.Close())
					require.NoError(t, arena.Close())
				})
				sge := verbs.SGE{Addr: m.Addr(), Length: half, LKey: m.LKey()}
				wr := p.end.write(1, 0, 1)
				wr.Op, wr.SGL = op, []verbs.SGE{sge, sge}
				w := q.dev.begin()
				q.mu.Lock()
				for _, wr := range []verbs.SendWR{wr, p.end.write(2, 0, 1)} {
					_, err := q.postSend(w, &wr)
					require.NoError(t, err)
				}
				at := wire.PSNAdd(endPSN, skip)
				q.rc.una, q.rc.nxt, q.rc.max, q.rc.paid, q.rc.seen = at, at, at, at, at
				q.rc.curPacket = skip
				q.mu.Unlock()
				w.end(false)
				data := pattern(1, left*mtu)
				tail := arena.Bytes()[half-left*mtu:]
				if op == verbs.OpWrite {
					copy(tail, data)
				}
				p.end.send(p.end.write(3, 0, 1))
				got := p.take()
				if op == verbs.OpWrite {
					require.Equal(t, left+2, len(got)) //nolint:testifylint // they are long
					require.Equal(t, wire.RCWriteMiddle, got[0].Opcode)
					require.Equal(t, wire.RCWriteLast, got[left-1].Opcode)
					require.True(t, bytes.Equal(data[mtu:2*mtu], got[1].Payload))
					p.send(ack(at + left - 1))
				} else {
					require.Equal(t, 3, len(got)) //nolint:testifylint // they are long
					require.Equal(t, wire.RETH{VA: wr.RemoteAddr + 2*half - left*mtu, RKey: wr.RKey, Length: left * mtu}, got[0].RETH)
					p.send(reply(at, mtu, data)...)
					require.True(t, bytes.Equal(data, tail))
				}
				wc := p.end.completions()
				require.Len(t, wc, 1)
				require.Zero(t, wc[0].Status)
				if op == verbs.OpRead {
					require.Equal(t, uint32(2*half), wc[0].ByteLen)
				}
				p.send(ack(at + left + 1))
				require.Equal(t, []outcome{{2, 0}, {3, 0}}, p.end.outcomes())
			})
		})
	}
}

// TestLongestMessageOfSmallPackets: PSNs bound it.
func TestLongestMessageOfSmallPackets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReader(t, link{mtu: 256})
		big := verbs.SGE{Length: 1 << 30}
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			_, err := r.end.q.PostSend([]verbs.SendWR{{Op: op, SGL: []verbs.SGE{big, {Length: 1<<30 - 256 + 1}}}})
			require.ErrorIs(t, err, syscall.EMSGSIZE)
		}
		h := r.ask(peerPSN, 0, 0)
		h.RETH.Length = 1<<31 - 255
		r.send(h)
		require.Equal(t, []answer{{peerPSN, wire.SyndromeInvalidReq, 0}}, r.answers())
	})
}
