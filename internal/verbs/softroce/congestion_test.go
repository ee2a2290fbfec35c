package softroce

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// stream writes total bytes in messages of size, with depth of them outstanding,
// and returns when the last is acknowledged.
func stream(e, to *end, wake chan struct{}, total, size, depth int) {
	posted, done := 0, 0
	wr := verbs.SendWR{
		Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: e.sgl(0, size), RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey(),
	}
	for done < total/size {
		for posted < total/size && posted-done < depth {
			e.send(wr)
			posted++
		}
		require.NoError(e.t, e.cq.Arm())
		got := e.outcomes()
		for _, o := range got {
			require.Equal(e.t, verbs.Success, o.Status)
		}
		if done += len(got); len(got) == 0 {
			<-wake
		}
	}
}

func waker() (chan struct{}, func()) {
	c := make(chan struct{}, 1)
	return c, func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func TestBottleneckIsUsedWell(t *testing.T) {
	for _, c := range []struct {
		name  string
		net   simnet.Options
		total int
		least float64 // part of the rate
	}{
		{"short", simnet.Options{Rate: 100e6, Queue: 200 << 10, Delay: 50 * time.Microsecond}, 32 << 20, 0.85},
		{"long", simnet.Options{Rate: 100e6, Queue: 1 << 20, Delay: 5 * time.Millisecond}, 64 << 20, 0.7},
		{"shallow", simnet.Options{Rate: 100e6, Queue: 64 << 10, Delay: 200 * time.Microsecond}, 32 << 20, 0.7},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				_, a, b := pair(t, 1, c.net)
				wake, notify := waker()
				x, y := connected(a, b, link{mtu: 4096, notifyA: notify, depth: 64})
				start := time.Now()
				stream(x, y, wake, c.total, 256<<10, 32)
				took := time.Since(start)
				rate := float64(c.total) / took.Seconds() / float64(c.net.Rate)
				again := float64(x.q.Stats().Retransmits) * 4096 / float64(c.total)
				t.Logf("%.0f%% of the rate, %.2f%% sent again, %d timeouts", 100*rate, 100*again, a.dev.stats.timeouts.Load())
				require.Greater(t, rate, c.least)
				require.Less(t, again, 0.1)
			})
		})
	}
}

func TestQueuePairsShareThePath(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{Rate: 100e6, Queue: 100 << 10, Delay: 100 * time.Microsecond})
		const n = 8
		var wg sync.WaitGroup
		var first, last time.Duration
		var mu sync.Mutex
		start := time.Now()
		for range n {
			wake, notify := waker()
			x, y := connected(a, b, link{mtu: 1024, notifyA: notify})
			wg.Go(func() {
				stream(x, y, wake, 2<<20, 64<<10, 8)
				mu.Lock()
				defer mu.Unlock()
				if last = time.Since(start); first == 0 {
					first = last
				}
			})
		}
		wg.Wait()
		t.Logf("first after %v, last after %v; %d of %d packets sent again", first, last, a.dev.stats.retransmits.Load(), n*2048)
		require.Less(t, last, 2*n*(2<<20)*time.Second/100e6)
		require.Greater(t, first, last/2, "none starves")
		require.Len(t, a.dev.paths.m, 1)
		for _, c := range a.dev.paths.m {
			require.Zero(t, c.inflight)
			require.Nil(t, c.first)
		}
	})
}

// TestTurnsAreWorthwhile: where many queue pairs wait for room each sends several packets in its turn, not one, with
// one acknowledgement for all of them.
func TestTurnsAreWorthwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net, a, b := pair(t, 1, simnet.Options{Rate: 500e6, Queue: 1 << 20, Delay: 50 * time.Microsecond})
		const n, each, mtu = 64, 1 << 20, 4096
		var wg sync.WaitGroup
		before := net.Stats().Sent
		for range n {
			wake, notify := waker()
			x, y := connected(a, b, link{mtu: mtu, notifyA: notify})
			wg.Go(func() { stream(x, y, wake, each, 64<<10, 8) })
		}
		wg.Wait()
		data := uint64(n * each / mtu)
		again := a.dev.stats.retransmits.Load()
		answers := net.Stats().Sent - before - data - again
		t.Logf("%d answers to %d packets, %d of which were sent again", answers, data+again, again)
		require.Less(t, answers, data/4)
	})
}

func TestTurnsWhereOthersWait(t *testing.T) {
	const packet = 1000 + packetOverhead
	c := &congestion{packet: packet, window: 40 * packet, threshold: maxWindow}
	var w work
	var a, b, d rc
	require.EqualValues(t, 40*packet, c.take(&a, packet, 100*packet))
	require.Zero(t, c.take(&a, packet, 100*packet))
	c.give(&w, packet)
	require.Equal(t, []*rc{&a}, w.resume, "alone it goes on with a packet")
	w.resume = nil
	require.EqualValues(t, packet, c.take(&a, packet, 100*packet))
	require.Zero(t, c.take(&a, packet, 100*packet))
	require.Zero(t, c.take(&b, packet, 100*packet))
	c.give(&w, 9*packet)
	require.Empty(t, w.resume, "less than a quarter of the window")
	c.give(&w, packet)
	require.Equal(t, []*rc{&a}, w.resume)
	w.resume = nil
	require.EqualValues(t, 10*packet, c.take(&a, packet, 100*packet))
	c.give(&w, packet)
	require.Equal(t, []*rc{&b}, w.resume, "it is the last")
	w.resume = nil
	require.EqualValues(t, packet, c.take(&b, packet, 100*packet))

	// Who has little to send does not wait for more, nor anybody where nothing is in flight.
	require.Zero(t, c.take(&a, packet, 2*packet))
	require.Zero(t, c.take(&b, packet, 100*packet))
	c.give(&w, 2*packet)
	require.Equal(t, []*rc{&a}, w.resume)
	w.resume = nil
	require.Zero(t, c.take(&d, packet, 100*packet))
	c.window = 4 * packet
	c.give(&w, c.inflight-3*packet)
	require.Equal(t, []*rc{&b}, w.resume, "a quarter of the window is a packet")
}

func TestDeadQueuePairDoesNotHurtOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{Rate: 100e6, Queue: 200 << 10, Delay: 50 * time.Microsecond})
		for range 20 { // their other ends vanish without a word
			x, y := connected(a, b, link{mtu: 1024})
			require.NoError(t, y.q.Close())
			x.send(verbs.SendWR{Op: verbs.OpWrite, SGL: a.sgl(0, 1<<20), RemoteAddr: 1, RKey: 1})
		}
		time.Sleep(time.Second)
		wake, notify := waker()
		x, y := connected(a, b, link{mtu: 1024, notifyA: notify})
		start := time.Now()
		stream(x, y, wake, 8<<20, 64<<10, 8)
		rate := 8 << 20 / time.Since(start).Seconds() / 100e6
		t.Logf("%.0f%% of the rate", 100*rate)
		require.Greater(t, rate, 0.6)
	})
}

func TestClosedQueuePairsGiveTheirRoomBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net, a, b := pair(t, 1, simnet.Options{})
		remove := net.Filter(nil)
		keep, _ := connected(a, b, link{})
		var xs []*end
		for i := range 50 {
			x, _ := connected(a, b, link{})
			x.send(verbs.SendWR{Op: verbs.OpWrite, SGL: a.sgl(0, 1<<20), RemoteAddr: 1, RKey: 1})
			if i == 25 {
				keep.send(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: a.sgl(0, 5000), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			}
			xs = append(xs, x)
		}
		require.Empty(t, keep.completions())
		for i, x := range xs { // in neither the order of the line nor its reverse
			if i%2 == 0 {
				require.NoError(t, x.q.Close())
			}
		}
		for i, x := range xs {
			if i%2 != 0 {
				require.NoError(t, x.q.ToError())
			}
		}
		remove()
		time.Sleep(time.Second)
		require.Equal(t, []outcome{{0, 0}}, keep.outcomes())
		require.Zero(t, keep.q.rc.cc.inflight)
	})
}

func TestRoomIsGivenInTurn(t *testing.T) {
	table := congestionTable{}
	const packet = 1000 + packetOverhead
	c := table.join(addrA, 3<<16, packet)
	require.Same(t, c, table.join(addrA, 3<<16|77, packet))
	require.NotSame(t, c, table.join(addrA, 4<<16, packet))
	require.NotSame(t, c, table.join(addrB, 3<<16, packet))
	c.window = 10 * packet
	var w work
	var a, b, d rc
	resumed := func() (names string) {
		for _, r := range w.resume {
			names += map[*rc]string{&a: "a", &b: "b", &d: "d"}[r]
		}
		w.resume = nil
		return names
	}
	require.EqualValues(t, 4*packet, c.take(&a, packet, 4*packet))
	require.EqualValues(t, 6*packet, c.take(&b, packet, 100*packet), "all there is")
	require.Zero(t, c.take(&a, packet, packet))
	require.Zero(t, c.take(&a, packet, packet), "once in the line is enough")
	c.give(&w, packet/2)
	require.Empty(t, resumed(), "too little")
	require.Zero(t, c.take(&d, 10, 10), "no room for those who come later, be they small")
	c.give(&w, packet)
	require.Equal(t, "a", resumed())
	require.Zero(t, c.take(&b, packet, packet), "a was first")
	require.EqualValues(t, packet+packet/2, c.take(&a, packet, packet))

	// The one whose turn it is has gone: the next takes its place.
	c.give(&w, packet)
	require.Equal(t, "d", resumed())
	c.quit(&w, &d)
	require.Equal(t, "b", resumed())
	require.NotZero(t, c.take(&b, packet, packet))

	// The first of the line goes, who needed more than there was.
	require.Zero(t, c.take(&a, packet, packet))
	require.Zero(t, c.take(&b, packet, packet))
	require.Zero(t, c.take(&d, packet, packet))
	c.quit(&w, &b)
	c.quit(&w, &d)
	require.Same(t, &a, c.last)
	require.Zero(t, c.take(&b, packet, packet))
	c.give(&w, c.inflight)
	require.Equal(t, "a", resumed())
	c.refund(&w, &a)
	require.Equal(t, "b", resumed(), "what a does not need")
	c.refund(&w, &b)
	require.Zero(t, c.inflight)
	require.EqualValues(t, 5*packet, c.take(&a, 5*packet, 5*packet))
	c.window = packet
	c.give(&w, 5*packet)
	require.EqualValues(t, 5*packet, c.take(&a, 5*packet, 5*packet), "one always gets what it needs")
	table.leave(c)
	table.leave(c)
	require.Len(t, table.m, 2)
}
