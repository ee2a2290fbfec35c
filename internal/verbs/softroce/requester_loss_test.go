package softroce

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

func TestSequenceNAKGoesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		copy(p.end.mem, pattern(1, 1000))
		p.end.send(p.end.write(1, 0, 1), p.end.write(2, 0, 1000), p.end.write(3, 5, 2))
		require.Len(t, p.take(), 6)
		p.send(response(endPSN+3, wire.SyndromePSNSequence))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes(), "what comes before has arrived")
		got := p.take()
		require.Len(t, got, 3)
		// A WRITE goes on in its middle, without a RETH.
		require.Equal(t, wire.RCWriteMiddle, got[0].Opcode)
		require.Equal(t, pattern(1, 1000)[512:768], got[0].Payload)
		require.Equal(t, wire.RCWriteLast, got[1].Opcode)
		require.Equal(t, pattern(1, 1000)[768:], got[1].Payload)
		require.Equal(t, wire.RCWriteOnly, got[2].Opcode)
		require.EqualValues(t, endPSN+5, got[2].PSN)
		require.EqualValues(t, 3, p.end.q.Stats().Retransmits)

		// A copy of the NAK says nothing new, but later it says that the round was lost, too.
		p.send(response(endPSN+3, wire.SyndromePSNSequence))
		require.Empty(t, p.take())
		time.Sleep(time.Millisecond)
		p.send(response(endPSN+3, wire.SyndromePSNSequence))
		require.Len(t, p.take(), 3)
		p.send(ack(endPSN + 5))
		require.Equal(t, []outcome{{2, 0}, {3, 0}}, p.end.outcomes())
	})
}

func TestAcknowledgementOvertakesRetransmission(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.send(p.end.write(1, 0, 256*100))
		require.Len(t, p.take(), 100)
		cc := p.end.q.rc.cc
		time.Sleep(60 * time.Millisecond) // the timeout repeats some
		require.Len(t, p.take(), probePackets)
		require.Less(t, cc.window, int64(initialWindow))
		p.send(ack(endPSN + 49)) // of the first transmission
		require.GreaterOrEqual(t, cc.window, int64(initialWindow), "nothing was lost")
		got := p.takeSent()
		require.Len(t, got, 50)
		require.EqualValues(t, endPSN+50, got[0].PSN, "the acknowledged ones are not sent again")
		p.send(ack(endPSN + 99))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
	})
}

func TestReceiverNotReadyIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.send(p.end.write(1, 0, 1), p.end.write(2, 0, 300), p.end.write(3, 0, 1))
		p.take()
		start := time.Now()
		// rxe lets a sequence NAK follow.
		p.send(response(endPSN+2, wire.SyndromeRNR|20), response(endPSN+2, wire.SyndromePSNSequence), response(endPSN+2, wire.SyndromeRNR|1))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		p.end.send(p.end.write(4, 0, 1))
		time.Sleep(10240*time.Microsecond - 1)
		require.Empty(t, p.take())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []sent{{wire.RCWriteLast, endPSN + 2, true, 44}}, p.takeSent(), "the message alone")
		require.Equal(t, 10240*time.Microsecond, time.Since(start))
		require.EqualValues(t, 1, p.end.q.Stats().RNRs)
		require.EqualValues(t, initialWindow, p.end.q.rc.cc.window, "nothing was lost")
		p.send(ack(endPSN + 2))
		require.Equal(t, []sent{{wire.RCWriteOnly, endPSN + 3, true, 1}, {wire.RCWriteOnly, endPSN + 4, true, 1}}, p.takeSent())
		p.send(ack(endPSN + 4))
		require.Equal(t, []outcome{{2, 0}, {3, 0}, {4, 0}}, p.end.outcomes())
	})
}

func TestRNRRetriesRunOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rnr: 2})
		send := func(id uint64) verbs.SendWR { return verbs.SendWR{ID: id, Op: verbs.OpSend} }
		p.end.send(send(1), send(2))
		rnr := func(psn uint32) {
			p.send(response(psn, wire.SyndromeRNR|1))
			time.Sleep(time.Millisecond)
		}
		rnr(endPSN)
		rnr(endPSN)
		rnr(endPSN + 1) // the first message has arrived: the count starts again
		require.Empty(t, p.end.completions())
		rnr(endPSN + 1)
		require.Empty(t, p.end.completions())
		p.take()
		rnr(endPSN + 1) // the third
		require.Equal(t, []outcome{{2, verbs.RNRRetryExcErr}}, p.end.outcomes())
		require.Empty(t, p.take())
	})
}

func TestEndlessRNRRetriesOutliveTheACKTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{timeout: 14, retry: 1}) // 67 ms
		p.end.send(p.end.write(1, 0, 1))
		for range 50 {
			p.send(response(endPSN, wire.SyndromeRNR)) // 655 ms
			time.Sleep(700 * time.Millisecond)
		}
		require.Empty(t, p.end.completions())
		p.send(ack(endPSN))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
	})
}

func TestNAKFailsTheRequestItNames(t *testing.T) {
	for syndrome, status := range map[uint8]verbs.Status{
		wire.SyndromeInvalidReq:   verbs.RemInvReqErr,
		wire.SyndromeRemoteAccess: verbs.RemAccessErr,
		wire.SyndromeRemoteOp:     verbs.RemOpErr,
	} {
		t.Run(status.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256})
				p.end.recv(verbs.RecvWR{ID: 9})
				quiet := p.end.write(2, 0, 600)
				quiet.Flags = 0
				p.end.send(p.end.write(1, 0, 1), quiet, p.end.write(3, 0, 1), quiet)
				p.take()
				p.send(response(endPSN+2, syndrome)) // in the middle of the second
				require.Equal(t, []outcome{
					{1, verbs.Success}, {2, status}, {3, verbs.WRFlushErr}, {2, verbs.WRFlushErr}, {9, verbs.WRFlushErr},
				}, p.end.outcomes())
				p.send(ack(endPSN + 4))
				time.Sleep(time.Minute)
				require.Empty(t, p.take(), "nothing is sent any more")
				require.Empty(t, p.end.completions())
			})
		})
	}
}

func TestDeadPeerIsNoticedInTime(t *testing.T) {
	for _, c := range []struct {
		timeout, retry uint8
		after          time.Duration
	}{
		{14, 7, 8 * 4096 * 1 << 14},
		{19, 7, 8 * 4096 * 1 << 19},
		{19, none, 4096 * 1 << 19},
		{8, 3, 4 * 4096 * 1 << 8}, // 1 ms: shorter than any estimate
		{1, 7, 8 * 4096 * 1 << 1},
	} {
		t.Run(fmt.Sprint(c.timeout, c.retry), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := link{timeout: c.timeout, retry: c.retry}
				note := make(chan time.Time, 1)
				l.notifyA = func() { note <- time.Now() }
				p := newPeer(t, l)
				require.NoError(t, p.end.cq.Arm())
				start := time.Now()
				p.end.send(p.end.write(1, 0, 1))
				require.Equal(t, c.after, (<-note).Sub(start))
				require.Equal(t, []outcome{{1, verbs.RetryExcErr}}, p.end.outcomes())
			})
		})
	}
}

func TestProgressRestartsTheClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := link{timeout: 14, retry: 1} // dead after 134 ms
		note := make(chan time.Time, 1)
		l.notifyA = func() { note <- time.Now() }
		p := newPeer(t, l)
		for i := range 10 {
			p.end.send(p.end.write(uint64(i), 0, 1))
		}
		for i := range uint32(9) {
			time.Sleep(130 * time.Millisecond)
			p.send(ack(endPSN + i))
		}
		last := time.Now()
		require.Len(t, p.end.outcomes(), 9)
		require.NoError(t, p.end.cq.Arm())
		require.Equal(t, 2*4096*time.Duration(1<<14), (<-note).Sub(last))
	})
}

func TestLossIsRepairedSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		flow := p.end.q.rc.path.Flow()
		start := time.Now()
		var at []time.Duration
		var flows []uint32
		remove := p.net.Filter(func(f *simnet.Frame) bool {
			if f.Src.Addr() == addrA {
				at = append(at, time.Since(start))
				flows = append(flows, p.end.q.rc.path.Flow())
			}
			return false
		})
		p.end.send(p.end.write(1, 0, 1))
		time.Sleep(time.Second)
		remove()
		ms := time.Millisecond
		// It doubles to what a search for another way takes, which grows with the time passed.
		want := []time.Duration{0, 50 * ms, 150 * ms}
		for next := 250 * ms; next <= time.Second; next += max(100*ms, next/16) {
			want = append(want, next)
		}
		require.Equal(t, want, at)
		require.Equal(t, []uint32{flow, flow}, flows[:2])
		require.Len(t, slices.Compact(flows), len(want)-1, "other ways were tried")
		p.send(ack(endPSN))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		require.EqualValues(t, len(want)-1, p.end.q.Stats().Retransmits)
		require.Zero(t, p.end.q.rc.srtt, "the answer could be to any of them (Karn)")
		require.InDelta(t, 0.7*initialWindow, p.end.q.rc.cc.window, 10, "one loss, to the others on the path")
	})
}

func TestProbesNeedNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.send(p.end.write(1, 0, 3000))
		require.Len(t, p.take(), 12)
		cc := p.end.q.rc.cc
		cc.mu.Lock()
		cc.inflight += 1 << 30 // of other queue pairs
		cc.mu.Unlock()
		time.Sleep(60 * time.Millisecond)
		require.Len(t, p.take(), probePackets)
		p.send(ack(endPSN + 2))
		require.Empty(t, p.take(), "all else does")
		cc.mu.Lock()
		require.EqualValues(t, 1<<30, cc.inflight)
		cc.inflight = 0
		cc.mu.Unlock()
		time.Sleep(60 * time.Millisecond)
		p.take()
		p.send(ack(endPSN + 11))
		require.Equal(t, []outcome{{1, 0}}, p.end.outcomes())
		require.Zero(t, cc.inflight)
	})
}

func TestRepetitionStartsGently(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.send(p.end.write(1, 0, 100*256))
		require.Len(t, p.take(), 100)
		p.send(response(endPSN, wire.SyndromePSNSequence))
		got := p.takeSent()
		require.Len(t, got, probePackets)
		require.True(t, got[probePackets-1].Ask)
		p.send(ack(endPSN + probePackets - 1))
		require.Len(t, p.take(), 25, "a quarter of what was on the way")
		p.send(ack(endPSN + probePackets + 24))
		require.Len(t, p.take(), 50, "twice as much")
	})
}

func TestNoMoreThanTheWindowIsOutstanding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{attr: verbs.QPInitAttr{MaxSendWR: 2000}})
		p.end.q.rc.cc.window = 1 << 30
		for range 1100 {
			p.end.send(verbs.SendWR{Op: verbs.OpSend})
		}
		require.Len(t, p.take(), sendWindow)
		p.send(ack(endPSN + 9))
		require.Len(t, p.take(), 10)
	})
}

func TestOneTurnIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		p.end.q.rc.cc.window = 1 << 30
		p.end.send(p.end.write(1, 0, 1000*256))
		got := p.takeSent()
		require.Len(t, got, maxTurn)
		require.True(t, got[maxTurn-1].Ask, "an answer lets it go on")
		p.send(ack(endPSN))
		require.Len(t, p.take(), maxTurn)
	})
}

func TestTimeoutFollowsTheRoundTrip(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		for i := range uint32(50) {
			p.end.send(p.end.write(1, 0, 1))
			time.Sleep(100 * time.Microsecond)
			p.send(ack(endPSN + i))
		}
		require.InDelta(t, 100*time.Microsecond, p.end.q.rc.srtt, float64(10*time.Microsecond))
		p.end.send(p.end.write(1, 0, 1))
		p.take()
		time.Sleep(5*time.Millisecond - 1)
		require.Empty(t, p.take())
		time.Sleep(time.Nanosecond)
		require.Len(t, p.take(), 1)
	})
}

// countingClock counts timer operations, and the timers that have not fired.
type countingClock struct {
	realClock
	mu      sync.Mutex
	pending int
	armed   int
}

type countingTimer struct {
	*time.Timer
	c *countingClock
}

func (c *countingClock) count(pending, armed int) {
	c.mu.Lock()
	c.pending += pending
	c.armed += armed
	c.mu.Unlock()
}

func (c *countingClock) counts() (pending, armed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending, c.armed
}

func (c *countingClock) AfterFunc(d time.Duration, f func()) Timer {
	c.count(1, 1)
	return &countingTimer{time.AfterFunc(d, func() { c.count(-1, 0); f() }), c}
}

func (t *countingTimer) Reset(d time.Duration) bool {
	active := t.Timer.Reset(d)
	if active {
		t.c.count(0, 1)
	} else {
		t.c.count(1, 1)
	}
	return active
}

func (t *countingTimer) Stop() bool {
	active := t.Timer.Stop()
	if active {
		t.c.count(-1, 0)
	}
	return active
}

func TestTimersAreLazyAndNoneIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		clock := &countingClock{}
		p := newPeerConfig(t, link{}, &Config{Clock: clock})
		pending, _ := clock.counts()
		require.Zero(t, pending)
		for i := range uint32(1000) {
			p.end.send(p.end.write(1, 0, 1))
			p.send(ack(endPSN + i))
		}
		pending, armed := clock.counts()
		require.Equal(t, [2]int{1, 1}, [2]int{pending, armed}, "a thousand messages, one timer operation")
		time.Sleep(time.Hour)
		pending, armed = clock.counts()
		require.Equal(t, [2]int{0, 1}, [2]int{pending, armed}, "nothing is outstanding")
		require.Zero(t, p.end.dev.stats.timeouts.Load())
	})
}
