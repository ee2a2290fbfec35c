package softroce

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const remoteAt = 0xABC0000000000008

// flushOf is a signaled FLUSH of n bytes.
func (e *end) flushOf(id uint64, kind verbs.Access, n uint32) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Op: verbs.OpFlush, Flags: verbs.Signaled, RemoteAddr: remoteAt, RKey: 0x1234, FlushLength: n, FlushType: kind,
	}
}

// atomicWrite is a signaled ATOMIC_WRITE of eight times the same byte.
func (e *end) atomicWrite(id uint64, value byte) verbs.SendWR {
	b := [8]byte{value, value, value, value, value, value, value, value}
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicWrite, Flags: verbs.Signaled, Inline: b[:], RemoteAddr: remoteAt, RKey: 0x1234}
}

// placed is the answer to a FLUSH or ATOMIC WRITE.
func placed(psn uint32) wire.Packet { return reply(psn, 256, nil)[0] }

func TestFlushOnTheWire(t *testing.T) {
	both := verbs.FlushGlobal | verbs.FlushPersistent
	for _, c := range []struct {
		kind  verbs.Access
		level verbs.FlushLevel
		n     uint32
		feth  wire.FETH
		size  uint32
	}{
		{verbs.FlushGlobal, verbs.FlushRange, 3000, 0x01, 3000},
		{verbs.FlushPersistent, verbs.FlushRange, 0, 0x02, 0},
		{both, verbs.FlushRange, 1 << 31, 0x03, 1 << 31},
		{both, verbs.FlushMR, 77, 0x13, 0},
		{verbs.FlushGlobal, verbs.FlushMR, 1<<32 - 1, 0x11, 0},
	} {
		bubble(t, func(t *testing.T) {
			p := newPeer(t, link{rd: 4})
			wr := p.end.flushOf(1, c.kind, c.n)
			wr.FlushLevel = c.level
			p.end.send(wr, p.end.write(2, 0, 1))
			got := p.take()
			require.Len(t, got, 2, "later requests do not wait")
			require.Equal(t, wire.RCFlush, got[0].Opcode)
			require.Equal(t, c.feth, got[0].FETH)
			require.Equal(t, wire.RETH{VA: remoteAt, RKey: 0x1234, Length: c.size}, got[0].RETH)
			require.EqualValues(t, endPSN, got[0].PSN)
			require.True(t, got[0].AckReq)
			require.Empty(t, got[0].Payload)
			require.EqualValues(t, endPSN+1, got[1].PSN)

			p.send(placed(endPSN), ack(endPSN+1))
			require.Equal(t, []verbs.WC{
				{ID: 1, Op: verbs.WCFlush, QPN: p.end.q.Num()}, {ID: 2, Op: verbs.WCWrite, QPN: p.end.q.Num()},
			}, p.end.completions())
			require.Zero(t, p.end.q.rc.inflight)
			require.Zero(t, p.end.q.rc.cc.inflight)
		})
	}
}

func TestFlushesThatAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 4})
		for name, c := range map[string]struct {
			change func(wr *verbs.SendWR)
			want   error
		}{
			"no type":      {func(wr *verbs.SendWR) { wr.FlushType = 0 }, syscall.EINVAL},
			"another type": {func(wr *verbs.SendWR) { wr.FlushType |= verbs.RemoteRead }, syscall.EINVAL},
			"level":        {func(wr *verbs.SendWR) { wr.FlushLevel = 2 }, syscall.EINVAL},
			"data":         {func(wr *verbs.SendWR) { wr.SGL = p.end.sgl(0, 0) }, syscall.EINVAL},
			"inline data":  {func(wr *verbs.SendWR) { wr.Inline = []byte{} }, syscall.EINVAL},
			"too much":     {func(wr *verbs.SendWR) { wr.FlushLength = 1<<31 + 1 }, syscall.EMSGSIZE},
		} {
			wr := p.end.flushOf(1, verbs.FlushGlobal, 8)
			c.change(&wr)
			_, err := p.end.q.PostSend([]verbs.SendWR{wr})
			require.ErrorIs(t, err, c.want, name)
		}
		require.Empty(t, p.take())
	})
}

// TestPlacementCountsAsReadsDo: FLUSHes and ATOMIC_WRITEs are as many as were granted, and fences wait for them.
func TestPlacementCountsAsReadsDo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 2})
		fenced := p.end.write(4, 0, 1)
		fenced.Flags |= verbs.Fence
		p.end.send(p.end.flushOf(1, verbs.FlushGlobal, 1), p.end.atomicWrite(2, 1), p.end.read(3, 0, 1), fenced)
		ops := func() (ops []wire.Opcode) {
			for _, h := range p.take() {
				ops = append(ops, h.Opcode)
			}
			return ops
		}
		require.Equal(t, []wire.Opcode{wire.RCFlush, wire.RCAtomicWrite}, ops())
		p.send(placed(endPSN))
		require.Equal(t, []wire.Opcode{wire.RCReadRequest}, ops())
		p.send(reply(endPSN+2, 256, []byte{1})...)
		// The answer to the ATOMIC WRITE is missing: all from there on is asked for again.
		require.Equal(t, []wire.Opcode{wire.RCAtomicWrite, wire.RCReadRequest}, ops())
		p.send(placed(endPSN + 1))
		require.Empty(t, ops())
		p.send(reply(endPSN+2, 256, []byte{1})...)
		require.Equal(t, []wire.Opcode{wire.RCWriteOnly}, ops())
		p.send(ack(endPSN + 3))
		require.Equal(t, []outcome{{1, 0}, {2, 0}, {3, 0}, {4, 0}}, p.end.outcomes())
	})
}

// TestWordsComeAfterWhatIsPersistent: an ATOMIC_WRITE or atomic behind a FLUSH that may take long is not sent in vain; a message is sent.
func TestWordsComeAfterWhatIsPersistent(t *testing.T) {
	for _, c := range []struct {
		kind verbs.Access
		op   verbs.Opcode
		wait bool
	}{
		{verbs.FlushPersistent, verbs.OpAtomicWrite, true},
		{verbs.FlushPersistent | verbs.FlushGlobal, verbs.OpFetchAdd, true},
		{verbs.FlushGlobal, verbs.OpAtomicWrite, false},
		{verbs.FlushPersistent, verbs.OpRead, false},
		{verbs.FlushPersistent, verbs.OpFlush, false},
		{verbs.FlushPersistent, verbs.OpSend, false},
	} {
		bubble(t, func(t *testing.T) {
			p := newPeer(t, link{rd: 4})
			next := verbs.SendWR{ID: 2, Op: c.op, Flags: verbs.Signaled}
			switch c.op {
			case verbs.OpAtomicWrite:
				next = p.end.atomicWrite(2, 7)
			case verbs.OpFetchAdd:
				next = p.end.fetchAdd(2, 64, 1)
			case verbs.OpFlush:
				next = p.end.flushOf(2, c.kind, 1)
			}
			p.end.send(p.end.write(0, 0, 1), p.end.flushOf(1, c.kind, 8), next, p.end.write(3, 0, 1))
			got := p.take()
			if !c.wait {
				require.Len(t, got, 4, c)
				require.NoError(t, p.end.q.ToError())
				return
			}
			require.Len(t, got, 2, c)
			p.send(ack(endPSN))
			require.Empty(t, p.take())
			p.send(placed(endPSN + 1))
			require.Len(t, p.take(), 2)
			require.NoError(t, p.end.q.ToError())
		})
	}
}

func TestWrongAnswersToPlacement(t *testing.T) {
	for name, c := range map[string]struct {
		h    wire.Packet
		want verbs.Status
	}{
		"data":              {reply(endPSN, 256, []byte{1})[0], verbs.BadRespErr},
		"a READ's last":     {func() wire.Packet { h := placed(endPSN); h.Opcode = wire.RCReadResponseLast; return h }(), verbs.BadRespErr},
		"an atomic's":       {atomicReply(endPSN, 1), verbs.BadRespErr},
		"no acknowledgment": {func() wire.Packet { h := placed(endPSN); h.AETH = wire.NAK(0x62, 0); return h }(), verbs.BadRespErr},
		"access":            {response(endPSN, wire.SyndromeRemoteAccess), verbs.RemAccessErr},
		"invalid":           {response(endPSN, wire.SyndromeInvalidReq), verbs.RemInvReqErr},
		"operation":         {response(endPSN, wire.SyndromeRemoteOp), verbs.RemOpErr},
	} {
		for _, op := range []verbs.Opcode{verbs.OpFlush, verbs.OpAtomicWrite} {
			t.Run(fmt.Sprint(name, op), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPeer(t, link{rd: 4})
					wr := p.end.flushOf(1, verbs.FlushGlobal, 8)
					if op == verbs.OpAtomicWrite {
						wr = p.end.atomicWrite(1, 5)
					}
					p.end.recv(verbs.RecvWR{ID: 9})
					p.end.send(wr, p.end.write(2, 0, 1))
					p.take()
					p.send(c.h)
					require.Equal(t, []outcome{{1, c.want}, {2, verbs.WRFlushErr}, {9, verbs.WRFlushErr}}, p.end.outcomes())
				})
			})
		}
	}
}

// TestFlushesThatTakeLong: how long a disk takes is not how long the path is.
func TestFlushesThatTakeLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 4})
		rc := p.end.q.rc
		for i := range uint32(8) { // the path is fast
			p.end.send(p.end.write(0, 0, 1))
			p.take()
			time.Sleep(100 * time.Microsecond)
			p.send(ack(endPSN + i))
		}
		psn := uint32(endPSN + 8)
		srtt, window := rc.srtt, rc.cc.window
		require.Less(t, rc.baseRTO(), 6*time.Millisecond.Nanoseconds())
		// Nothing is known: it is asked for again after 50 ms.
		p.end.send(p.end.flushOf(1, verbs.FlushPersistent, 8))
		require.Len(t, p.take(), 1)
		time.Sleep(firstRTODuration - time.Millisecond)
		require.Empty(t, p.take())
		time.Sleep(time.Millisecond)
		require.Len(t, p.take(), 1)
		time.Sleep(30 * time.Millisecond)
		p.send(placed(psn))
		// It took 30 ms from there, at least. With that, and half of it as the deviation, others are waited for longer.
		require.EqualValues(t, 90*time.Millisecond, rc.flushRTO())
		for i := range uint32(3) {
			p.end.send(p.end.flushOf(1, verbs.FlushPersistent, 8), p.end.write(2, 0, 1))
			require.Len(t, p.take(), 2)
			time.Sleep(80 * time.Millisecond)
			require.Empty(t, p.take())
			p.send(placed(psn+1+2*i), ack(psn+2+2*i))
		}
		require.Equal(t, srtt, rc.srtt, "no round trip of the path")
		require.GreaterOrEqual(t, rc.cc.window, window/2, "no loss but the one")
		// Other requests are not waited for so long.
		require.Less(t, rc.baseRTO(), 6*time.Millisecond.Nanoseconds())
		require.Len(t, p.end.outcomes(), 8+1+6)
	})
}

const firstRTODuration = time.Duration(firstRTO)

// TestFlushWithoutAnswer: the connection ends when the specification says so.
func TestFlushWithoutAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 4, timeout: 14, retry: 3})
		p.end.send(p.end.flushOf(1, verbs.FlushPersistent, 8), p.end.atomicWrite(2, 1))
		giveUp := 4096 << 14 * 4 * time.Nanosecond
		time.Sleep(giveUp - 1)
		synctest.Wait()
		require.Empty(t, p.end.outcomes())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []outcome{{1, verbs.RetryExcErr}, {2, verbs.WRFlushErr}}, p.end.outcomes())
	})
}
