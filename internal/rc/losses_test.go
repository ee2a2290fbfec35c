package rc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestLosses: a loss now and then is nothing; those that are not paid for make spins pause, for longer and longer.
func TestLosses(t *testing.T) {
	const (
		us   = int64(time.Microsecond)
		loss = 3000 * us
	)
	var l losses
	for range 100 {
		l.lost(0, loss)
		require.Zero(t, l.until)
		for range loss / (40 * us) { // 40 us saved each time
			l.saved(10*us, 50*us)
		}
	}
	require.Zero(t, l.debt)

	l.lost(0, loss)
	for at, want := int64(1), pauseMin; at < int64(10*time.Second); at, want = l.until, min(2*want, pauseMax) {
		l.lost(at, loss)
		require.Equal(t, at+want, l.until)
		l.saved(50*us, 50*us) // as long as one that parks
		l.saved(90*us, 50*us)
		l.saved(1*us, 0) // nobody has parked
		require.NotZero(t, l.debt)
	}
	for range lossCredit / usualSaving {
		l.saved(1*us, 0)
	}
	require.Equal(t, losses{}, l)
}

// busyCQ is a queue on a machine where who looks on loses the processor, in simulated time.
type busyCQ struct {
	*dearCQ
	turn time.Duration // how long others have it
}

func (q *busyCQ) PollOrArm(wc []verbs.WC, spin time.Duration, arm bool) (n int, armed bool, err error) {
	if n, armed, err = q.dearCQ.PollOrArm(wc, 0, arm); n > 0 || err != nil || spin == 0 {
		return n, armed, err
	}
	time.Sleep(q.turn)
	return q.dearCQ.PollOrArm(wc, 0, arm)
}

// TestSpinsOnABusyMachine: where spins lose the processor for milliseconds they become rare, also those that were asked for, and
// are back soon once they pay again.
func TestSpinsOnABusyMachine(t *testing.T) {
	const parked, quick = 100 * time.Microsecond, 20 * time.Microsecond
	for name, busy := range map[string]time.Duration{"adaptive": 0, "explicit": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, q, h, _ := newRester(t, time.Hour)
				c.SetBusyPoll(busy)
				cq := &busyCQ{dearCQ: c.one.(*dearCQ)}
				c.one = cq
				want := uint64(0)
				h.a = NewSide(func() bool { return h.next.Load() >= want })
				ask := make(chan struct{})
				defer close(ask)
				go func() {
					for range ask { // the peer answers
						time.Sleep(parked)
						q.push(verbs.WC{ID: h.next.Load()})
					}
				}()
				// run waits for so long, and tells how long a wait took and how many spun.
				run := func(turn, d time.Duration) (each time.Duration, spins, waits int64) {
					cq.turn = turn
					before, start := c.spins.Load(), time.Now()
					for ; time.Since(start) < d; waits++ {
						want = h.next.Load() + 1
						ask <- struct{}{}
						for h.next.Load() < want {
							require.NoError(t, c.Wait(h.a))
						}
					}
					return time.Since(start) / time.Duration(waits), int64(c.spins.Load() - before), waits
				}
				run(3*time.Millisecond, time.Second) // finds out
				each, spins, _ := run(3*time.Millisecond, 2*time.Second)
				assert.Less(t, each, parked+parked/20)
				assert.Positive(t, spins)

				run(quick, time.Second)
				_, spins, waits := run(quick, 100*time.Millisecond)
				if busy > 0 {
					assert.Equal(t, waits, spins)
				} else {
					assert.Positive(t, spins)
				}
			})
		})
	}
}
