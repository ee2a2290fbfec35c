package verbs_test

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// chair is a Seat. Who sits stands up as often as it is told to.
type chair struct {
	stand   chan struct{} // capacity 1
	broken  bool          // nobody can sit there
	leaves  atomic.Int32
	wakeups int
}

func newChair() *chair { return &chair{stand: make(chan struct{}, 1)} }

func (c *chair) Take() bool { return true }

func (c *chair) Sit(done func() bool) {
	for !c.broken && !done() {
		<-c.stand
		c.wakeups++
	}
}

func (c *chair) Stand() {
	select {
	case c.stand <- struct{}{}:
	default:
	}
}

func (c *chair) Leave() { c.leaves.Add(1) }

// TestWaitAt: who waits at a seat is woken by what wakes who waits elsewhere, and always leaves it.
func TestWaitAt(t *testing.T) {
	for name, broken := range map[string]bool{"sits": false, "cannot sit": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, c := verbs.NewWaiter(), newChair()
				c.broken = broken
				var seat verbs.Seat = c
				left := int32(0)
				wait := func() error {
					t.Helper()
					err := w.WaitAt(&seat)
					left++
					require.Equal(t, left, c.leaves.Load())
					return err
				}
				w.Wake() // before
				require.NoError(t, wait())
				go func() {
					time.Sleep(time.Second)
					w.Wake()
				}()
				start := time.Now()
				require.NoError(t, wait())
				require.Equal(t, time.Second, time.Since(start))
				w.SetDeadline(time.Now().Add(time.Minute))
				require.ErrorIs(t, wait(), os.ErrDeadlineExceeded)
				require.Equal(t, time.Second+time.Minute, time.Since(start))
				require.ErrorIs(t, wait(), os.ErrDeadlineExceeded)
				w.SetDeadline(time.Time{})
				go func() {
					time.Sleep(time.Second)
					w.Close(net.ErrClosed)
				}()
				require.ErrorIs(t, wait(), net.ErrClosed)
				require.ErrorIs(t, wait(), net.ErrClosed)

				if w := verbs.NewWaiter(); !broken { // nothing of a wait at the seat is left for others
					c.stand = make(chan struct{}, 1)
					require.NoError(t, func() error { w.Wake(); return w.WaitAt(&seat) }())
					go func() { time.Sleep(time.Second); w.Wake() }()
					require.NoError(t, w.Wait())
					require.Empty(t, c.stand)
				}
			})
		})
	}
}
