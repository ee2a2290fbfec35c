package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// holder is a peer whose other end may hold acknowledgements, and has reason to.
type holder struct {
	*peer
	psn uint32
}

func newHolder(t *testing.T, l link) *holder {
	h := &holder{newPeer(t, l), peerPSN}
	h.end.dev.spins.net = &quietNet{}
	h.end.q.rc.hold.score = holdScoreMax
	return h
}

// message sends the end a message, and returns what that draws at once.
func (h *holder) message() []wire.Packet {
	h.end.recv(verbs.RecvWR{})
	p := packet(wire.RCSendOnly, h.psn, nil)
	p.AckReq = true
	h.send(p)
	h.psn++
	synctest.Wait()
	return h.take()
}

func (h *holder) answer() {
	h.end.send(verbs.SendWR{Op: verbs.OpSend})
	synctest.Wait()
}

func requireAck(t *testing.T, h *holder, p *wire.Packet) {
	t.Helper()
	require.Equal(t, wire.RCAck, p.Opcode)
	require.Equal(t, wire.PSNAdd(h.psn, psnMask), p.PSN)
	require.Equal(t, wire.KindACK, p.AETH.Kind())
	require.Equal(t, h.psn-peerPSN, p.AETH.MSN)
}

// TestHeldAcknowledgement goes with the answer, and otherwise at the latest when somebody finds that there will be none.
func TestHeldAcknowledgement(t *testing.T) {
	run := func(name string, f func(t *testing.T, h *holder)) {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHolder(t, link{rd: 1})
				f(t, h)
				require.Zero(t, h.end.dev.holds.n.Load())
				require.Empty(t, h.end.dev.holds.list)
			})
		})
	}
	run("with the answer", func(t *testing.T, h *holder) {
		for range 3 {
			require.Empty(t, h.message())
			h.answer()
			got := h.take()
			require.Len(t, got, 2)
			require.Equal(t, wire.RCSendOnly, got[0].Opcode)
			requireAck(t, h, &got[1])
		}
		require.Equal(t, holdScoreMax, h.end.q.rc.hold.score)
	})
	run("when the network is idle", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		h.end.dev.HandleIdle()
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 1)
		requireAck(t, h, &got[0])
		require.Less(t, h.end.q.rc.hold.score, holdScoreMax)
	})
	run("when the consumer is back", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		h.end.completions()
		look := func() {
			_, _, err := h.end.cq.(*cq).PollOrArm(make([]verbs.WC, 1), time.Second, false)
			require.NoError(t, err)
			synctest.Wait()
		}
		look()
		require.Empty(t, h.take(), "it is a moment")
		time.Sleep(time.Duration(holdTime))
		look()
		got := h.take()
		require.Len(t, got, 1)
		requireAck(t, h, &got[0])
	})
	run("with the next", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		got := h.message()
		require.Len(t, got, 1)
		requireAck(t, h, &got[0])
	})
	run("by the timer", func(t *testing.T, h *holder) {
		for range 2 {
			h.end.dev.polling.Add(1) // a consumer reads, which spins
			h.end.dev.spins.begin(h.end.dev.now())
			require.Empty(t, h.message())
			h.end.dev.spins.end(h.end.dev, false)
			h.end.dev.polling.Add(-1)
			time.Sleep(2 * holdTimeout)
			synctest.Wait()
			got := h.take()
			require.Len(t, got, 1)
			requireAck(t, h, &got[0])
		}
		require.False(t, h.end.dev.holds.timed)
	})
	run("when the queue pair fails", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		require.NoError(t, h.end.q.ToError())
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 1)
		requireAck(t, h, &got[0])
	})
	run("when the queue pair is closed", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		require.NoError(t, h.end.q.Close())
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 1)
		requireAck(t, h, &got[0])
	})
	run("said by a NAK", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		h.send(packet(wire.RCSendOnly, h.psn+1, nil))
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 1)
		require.Equal(t, wire.KindNAK, got[0].AETH.Kind())
	})
	run("said by a response", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		r := packet(wire.RCReadRequest, h.psn, nil)
		r.RETH = wire.RETH{VA: h.end.mr.Addr(), RKey: h.end.mr.RKey(), Length: 8}
		h.send(r)
		synctest.Wait()
		got := h.take()
		require.Len(t, got, 1)
		require.Equal(t, wire.RCReadResponseOnly, got[0].Opcode)
	})
	run("not of what no consumer is told", func(t *testing.T, h *holder) {
		w := packet(wire.RCWriteOnly, h.psn, nil)
		w.AckReq = true
		h.send(w)
		h.psn++
		synctest.Wait()
		require.Len(t, h.take(), 1)
	})
	run("not of a repetition", func(t *testing.T, h *holder) {
		require.Empty(t, h.message())
		h.answer()
		h.take()
		h.send(packet(wire.RCSendOnly, peerPSN, nil))
		synctest.Wait()
		require.Len(t, h.take(), 1)
	})
	run("not where nobody sees to it", func(t *testing.T, h *holder) {
		h.end.dev.polling.Add(1) // a consumer reads once, and may not come again
		require.Len(t, h.message(), 1)
		h.end.dev.polling.Add(-1)
		h.end.dev.spins.net = nil
		require.Len(t, h.message(), 1)
	})
}

// TestAcknowledgementsAreHeldWhereItPays: where no answers come they go at once, but for few.
func TestAcknowledgementsAreHeldWhereItPays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHolder(t, link{})
		held := 0
		for range 4000 {
			if len(h.message()) == 0 {
				held++
				h.end.dev.HandleIdle()
				synctest.Wait()
				require.Len(t, h.take(), 1)
			}
			h.end.completions()
		}
		require.Less(t, held, 12)
		require.Greater(t, held, 6)
		for range 20_000 {
			if len(h.message()) == 0 {
				held++
			}
			h.answer()
			h.take()
			h.send(ack(wire.PSNAdd(h.end.q.rc.max, psnMask)))
			synctest.Wait()
			h.end.completions()
		}
		require.Greater(t, held, 15_000)
	})
}
