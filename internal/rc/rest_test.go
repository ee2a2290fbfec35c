package rc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// newRester is a connection over a queue whose calls are dear, and what its one side waits for: the next completion.
func newRester(t *testing.T, restFor time.Duration) (_ *Poller, _ *testCQ, _ *testHandler, wait func()) {
	refreshProcs()
	if procs.Load() == 1 {
		procs.Store(2)
		t.Cleanup(refreshProcs)
	}
	q := &testCQ{}
	h := &testHandler{t: t}
	want := uint64(0)
	h.a, h.b = NewSide(func() bool { return h.next.Load() >= want }), NewSide(func() bool { return true })
	c := &Poller{cq: q, one: &dearCQ{testCQ: q}, h: h, rest: rest{every: restFor}}
	c.busy.Store(int64(time.Minute))
	q.notify = c.notify
	c.role.Store(rolePolling)
	c.Start()
	require.True(t, c.armed.Load())
	return c, q, h, func() {
		t.Helper()
		for range 100 {
			h.a.spin.losses = losses{} // the machine may be busy, but the spin is to last
			want = h.next.Load() + 1
			start := c.parks.Load()
			pushed := make(chan struct{})
			go func() {
				defer close(pushed)
				for c.role.Load() != rolePolling && c.parked.Load() == 0 { // until it spins
					time.Sleep(10 * time.Microsecond)
				}
				q.push(verbs.WC{ID: h.next.Load()})
			}()
			require.NoError(t, c.Wait(h.a))
			<-pushed
			if c.parks.Load() == start {
				return
			}
		}
		require.Fail(t, "each wait parks")
	}
}

func (q *testCQ) timesArmed() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.arms
}

// TestRest: one who spins with success leaves the queue unarmed, which nobody pays for any more; it is looked at all the same.
func TestRest(t *testing.T) {
	t.Run("costs nothing", func(t *testing.T) {
		c, q, _, wait := newRester(t, time.Hour)
		wait() // the arming of Start goes off
		arms := q.timesArmed()
		for range 100 {
			wait()
		}
		require.Equal(t, arms, q.timesArmed())
		require.False(t, c.armed.Load())
	})
	t.Run("also for who polls", func(t *testing.T) {
		c, q, h, wait := newRester(t, time.Hour)
		wait()
		arms := q.timesArmed()
		for i := range uint64(100) {
			q.push(verbs.WC{ID: 1 + i})
			c.Poll()
			require.Equal(t, 2+i, h.next.Load())
			c.Poll()
		}
		require.LessOrEqual(t, q.timesArmed(), arms+1)
		require.False(t, c.armed.Load())
	})
	t.Run("does not last", func(t *testing.T) {
		c, q, h, wait := newRester(t, 2*time.Millisecond)
		wait()
		wait()
		q.push(verbs.WC{ID: 2}) // nobody is told
		require.Eventually(t, func() bool { return h.next.Load() == 3 && c.armed.Load() }, 10*time.Second, time.Millisecond)
		arms := q.timesArmed()
		time.Sleep(10 * time.Millisecond)
		assert.Equal(t, arms, q.timesArmed(), "a queue that is armed is left alone")
	})
	t.Run("lasts longer where spins go on", func(t *testing.T) {
		c, _, _, _ := newRester(t, time.Hour)
		c.armed.Store(false)
		c.rest.begin(c)
		for _, want := range []time.Duration{2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 8 * time.Hour} {
			c.spins.Add(1)
			require.False(t, c.rest.over(c))
			require.Equal(t, want, c.rest.next)
		}
		require.True(t, c.rest.over(c), "no spin meanwhile")
		c.rest.begin(c)
		require.Equal(t, time.Hour, c.rest.next)
		c.rest.close()
	})
	t.Run("not with something pending", func(t *testing.T) {
		c, _, h, wait := newRester(t, time.Hour)
		wait()
		wait()
		require.False(t, c.armed.Load())
		h.pends.Store(true)
		wait()
		require.True(t, c.armed.Load())
	})
	t.Run("ends with Attend", func(t *testing.T) {
		c, q, h, wait := newRester(t, time.Hour)
		wait()
		wait()
		q.push(verbs.WC{ID: 2})
		c.Attend()
		require.EqualValues(t, 3, h.next.Load())
		require.True(t, c.armed.Load())
	})
	t.Run("not while another is parked", func(t *testing.T) {
		c, q, h, wait := newRester(t, time.Hour)
		wait()
		wait()
		ready := false
		h.b = NewSide(func() bool { return ready })
		c.SetBusyPoll(-1)
		woken := make(chan error)
		go func() { woken <- c.Wait(h.b) }()
		require.Eventually(t, func() bool { return c.parks.Load() == 1 && c.armed.Load() }, 10*time.Second, time.Millisecond)
		q.push(verbs.WC{ID: 2}) // which the handler signals
		require.NoError(t, <-woken)
		c.SetBusyPoll(time.Minute)
		require.Zero(t, c.parked.Load())
	})
	t.Run("after the one who is notified", func(t *testing.T) {
		c, q, h, wait := newRester(t, time.Hour)
		wait()
		wait()
		c.Attend()
		arms := q.timesArmed()
		q.push(verbs.WC{ID: 2}) // notifies
		require.EqualValues(t, 3, h.next.Load())
		require.Equal(t, arms, q.timesArmed(), "the one who spins will be back")
		c.lastMet.Store(now() - int64(2*time.Hour))
		c.Attend()
		q.push(verbs.WC{ID: 3})
		require.Equal(t, arms+2, q.timesArmed())
	})
}

// TestLongSpinner: two ends that park make each other's waits long. One that spins for as long finds out
// that its waits become shorter, and goes on; where they do not, it stops.
func TestLongSpinner(t *testing.T) {
	procs.Store(2)
	defer refreshProcs()
	const parked = int64(900 * time.Microsecond)
	run := func(spun int64) (spins int) {
		p := Spinner{score: scoreMax / 2}
		for range 1000 {
			d := p.Budget(0, true)
			if d > 0 {
				spins++
			}
			switch {
			case d == 0:
				p.Slept(parked)
			case d < spun:
				p.Account(false, d)
				p.Slept(parked)
			default:
				p.Account(true, spun)
			}
		}
		return spins
	}
	assert.Greater(t, run(parked/2), 900)
	assert.Less(t, run(parked*9/10), 100)
	assert.Greater(t, run(int64(10*time.Microsecond)), 900)
	assert.Less(t, run(int64(10*time.Millisecond)), 100)

	p := Spinner{}
	p.Slept(int64(time.Second))
	assert.LessOrEqual(t, p.probe(), spinMax, "an idle connection is probed shortly")
}

// TestSpinnersLeaveOne: with all of Go's processors spinning nobody would look at the network poller.
func TestSpinnersLeaveOne(t *testing.T) {
	c, _, _, _ := newRester(t, time.Hour)
	procs.Store(2)
	defer refreshProcs()
	never := NewSide(func() bool { return false })
	spin := func(others int32, limit time.Duration) bool {
		spinners.Store(others)
		start := now()
		require.False(t, met(c.spinOn(never, start, int64(limit))))
		took := now() - start
		require.Equal(t, others, spinners.Swap(0))
		return took >= int64(limit)
	}
	for _, busy := range []time.Duration{0, time.Minute} {
		c.SetBusyPoll(busy)
		// It also ends where another program has taken the processor.
		require.Eventually(t, func() bool { return spin(0, time.Millisecond) }, 10*time.Second, time.Nanosecond)
		require.False(t, spin(1, time.Second), "BusyPoll %v", busy)
	}
}

// TestSpinWhereTimeStandsStill ends.
func TestSpinWhereTimeStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _, _ := newRester(t, time.Hour)
		require.False(t, met(c.spinInside(NewSide(func() bool { return false }), now(), int64(time.Hour))))
	})
}

// seatCQ has a seat. Who sits is there when completions are pushed, as if it had read them.
type seatCQ struct {
	*dearCQ
	taken bool
	sat   int
	sit   func(done func() bool)
}

func (q *seatCQ) Seat() verbs.Seat { return q }

func (q *seatCQ) Take() bool {
	if q.taken || q.sit == nil {
		return false
	}
	q.taken = true
	return true
}

func (q *seatCQ) Sit(done func() bool) { q.sat++; q.sit(done) }
func (q *seatCQ) Stand()               {}
func (q *seatCQ) Leave()               { q.taken = false }

// TestParkAtASeat: one who parks where completions come in handles them itself, and leaves the queue at rest, since it will come again.
func TestParkAtASeat(t *testing.T) {
	c, q, h, _ := newRester(t, time.Hour)
	c.SetBusyPoll(-1)
	seat := &seatCQ{dearCQ: c.one.(*dearCQ)}
	c.seat = seat
	want := uint64(0)
	h.a = NewSide(func() bool { return h.next.Load() >= want })
	seat.sit = func(done func() bool) {
		require.True(t, c.armed.Load())
		require.False(t, done())
		q.push(verbs.WC{ID: h.next.Load()})
		require.True(t, done())
	}
	for range 10 {
		want = h.next.Load() + 1
		require.NoError(t, c.Wait(h.a))
		require.False(t, seat.taken)
		require.Zero(t, c.parked.Load())
	}
	require.Equal(t, 10, seat.sat)
	require.False(t, c.armed.Load(), "it will come again")

	// What it waits for had come, and was found by looking once more.
	q.push(verbs.WC{ID: h.next.Load()})
	want = h.next.Load() + 1
	require.NoError(t, c.Wait(h.a))
	require.Equal(t, 10, seat.sat)
	require.False(t, seat.taken)

	// One that could end by a channel does not sit.
	done := make(chan struct{})
	close(done)
	want = h.next.Load() + 1
	h.a.SetDone(done)
	require.NoError(t, c.Wait(h.a))
	require.Equal(t, 10, seat.sat)
	require.False(t, seat.taken)

	// What it was told before, and has seen itself, does not end the next wait.
	h.a.SetDone(nil)
	require.NoError(t, c.Wait(h.a))
	require.Equal(t, want, h.next.Load())
	require.Equal(t, 11, seat.sat)

	// One that could end by a context sits, and is called away by its end. With the same context the next wait costs nothing.
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		h.a.SetContext(ctx)
		for range 3 {
			before := seat.sat
			want = h.next.Load() + 1
			require.NoError(t, c.Wait(h.a))
			require.Equal(t, before+1, seat.sat)
		}
		if !race.Enabled {
			allocs := func(set func()) float64 {
				return testing.AllocsPerRun(20, func() {
					want = h.next.Load() + 1
					set()
					if c.Wait(h.a) != nil {
						panic("not met")
					}
				})
			}
			with := allocs(func() { h.a.SetContext(ctx) })
			require.InDelta(t, allocs(func() { h.a.SetDone(nil) }), with, 0.1, "beside the test's own")
			h.a.SetContext(ctx)
		}
		sit := seat.sit
		seat.sit = func(done func() bool) {
			cancel()
			for !done() {
				time.Sleep(time.Millisecond)
			}
		}
		want = h.next.Load() + 1
		require.NoError(t, c.Wait(h.a))
		require.Less(t, h.next.Load(), want)
		seat.sit = sit
		before := seat.sat
		require.NoError(t, c.Wait(h.a), "it has ended")
		require.Equal(t, before, seat.sat)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h.a.SetContext(ctx)
	want = h.next.Load() + 1
	require.NoError(t, c.Wait(h.a))
	h.a.Forget()
	cancel()
	require.Zero(t, c.parked.Load())
	require.False(t, seat.taken)
}
