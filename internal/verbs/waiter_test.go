package verbs_test

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

func TestWakeBeforeWaitIsKept(t *testing.T) {
	w := verbs.NewWaiter()
	w.Wake()
	w.Wake()
	require.NoError(t, w.Wait())
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		w.Wake()
		require.NoError(t, w.Wait())
		w.SetDeadline(time.Now().Add(time.Second))
		require.ErrorIs(t, w.Wait(), os.ErrDeadlineExceeded, "one Wake lets one Wait go on")
	})
}

// TestDrop: a Wake that is kept is forgotten, and what was closed or has passed stays so.
func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		w.Drop() // nothing
		w.Wake()
		w.Drop()
		start := time.Now()
		w.SetDeadline(start.Add(time.Second))
		require.ErrorIs(t, w.Wait(), os.ErrDeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start), "it slept")
		w.Drop()
		require.ErrorIs(t, w.Wait(), os.ErrDeadlineExceeded)
		w.Close(os.ErrClosed)
		w.Drop()
		require.ErrorIs(t, w.Wait(), os.ErrClosed)
	})
}

func TestDeadlineIsExactAndMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		start := time.Now()
		w.SetDeadline(start.Add(time.Second))
		go func() {
			time.Sleep(500 * time.Millisecond)
			w.SetDeadline(start.Add(3 * time.Second))
		}()
		require.ErrorIs(t, w.Wait(), os.ErrDeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))

		require.ErrorIs(t, w.Wait(), os.ErrDeadlineExceeded, "a deadline that passed stays")
		w.SetDeadline(time.Time{})
		require.NoError(t, w.Err(), "until it is lifted")

		// An earlier one takes effect on a goroutine already parked.
		now := time.Now()
		for w.Err() == nil { // drop the wake-up that the deadline left behind
			w.SetDeadline(now.Add(time.Hour))
			go func() {
				time.Sleep(time.Second)
				w.SetDeadline(time.Now().Add(-1))
			}()
			_ = w.Wait()
		}
		require.LessOrEqual(t, time.Since(now), 2*time.Second)
	})
}

func TestLiftedDeadlineDoesNotFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		w.SetDeadline(time.Now().Add(time.Second))
		w.SetDeadline(time.Time{})
		time.Sleep(2 * time.Second)
		require.NoError(t, w.Err())
	})
}

func TestCloseEndsEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		first, second := errors.New("first"), errors.New("second")
		done := make(chan error)
		go func() { done <- w.Wait() }()
		synctest.Wait()
		w.Close(first)
		require.ErrorIs(t, <-done, first)
		w.Close(second)
		w.SetDeadline(time.Now().Add(-1))
		require.ErrorIs(t, w.Wait(), first)
	})
}

func TestWaitOrDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaiter()
		done := make(chan struct{})
		result := make(chan error)
		go func() { result <- w.WaitOr(done) }()
		synctest.Wait()
		select {
		case <-result:
			t.Fatal("nothing has happened")
		default:
		}
		close(done)
		require.NoError(t, <-result)
		w.Wake()
		require.NoError(t, w.WaitOr(make(chan struct{})))
		w.Close(os.ErrClosed)
		require.ErrorIs(t, w.WaitOr(done), os.ErrClosed)
	})
}

func TestWaiterDoesNotAllocate(t *testing.T) {
	w := verbs.NewWaiter()
	w.SetDeadline(time.Now().Add(time.Hour))
	done := make(chan struct{})
	n := testing.AllocsPerRun(100, func() {
		w.SetDeadline(time.Now().Add(time.Hour))
		w.Wake()
		_ = w.Wait()
		w.Wake()
		_ = w.WaitOr(done)
		w.SetDeadline(time.Time{})
	})
	require.Zero(t, n)
}
