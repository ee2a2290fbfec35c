//go:build cgo

package rdmacore

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// bellRope is a completion channel that is a pipe: a byte is the notification of the queue of that number.
type bellRope struct {
	shard shard
	in    *os.File
	cqs   []*cq
	wake  []*verbs.Waiter
	takes atomic.Int32 // by the channel's goroutine
}

func newBellRope(t *testing.T, queues int) *bellRope {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	r := &bellRope{in: os.NewFile(uintptr(fds[1]), "in")}
	d := &device{name: "fake0"}
	d.refs.Store(1)
	for range queues {
		r.cqs = append(r.cqs, &cq{dev: d, shard: &r.shard})
		r.wake = append(r.wake, verbs.NewWaiter())
	}
	drain, err := newDrainer(fds[0], "pipe")
	require.NoError(t, err)
	r.shard.drain = drain
	take := func() error {
		var b [1]byte
		switch n, err := syscall.Read(fds[0], b[:]); {
		case err != nil:
			return err
		case n == 0:
			return syscall.EIO
		}
		r.cqs[b[0]].disarmed()
		r.wake[b[0]].Wake()
		return nil
	}
	r.shard.seat.init(drain, take)
	go drain.run(func() error { err := take(); r.takes.Add(1); return err }, func() {}, nil)
	t.Cleanup(func() {
		r.close()
		require.EqualValues(t, 1, d.refs.Load())
		require.NoError(t, r.in.Close())
	})
	return r
}

func (r *bellRope) close() {
	select {
	case <-r.shard.seat.closing:
	default:
		r.shard.seat.close()
		r.shard.drain.close()
		r.shard.drain.wait()
	}
}

// arm is what Arm does.
func (r *bellRope) arm(i int) {
	r.cqs[i].arming()
	r.shard.seat.attend()
}

func (r *bellRope) ring(i int) { _, _ = r.in.Write([]byte{byte(i)}) }

// wait waits for queue i's notification, at the seat if it is free.
func (r *bellRope) wait(i int) (sat bool) {
	seat := r.cqs[i].Seat()
	sat = seat.Take()
	r.arm(i)
	go r.ring(i)
	if sat {
		_ = r.wake[i].WaitAt(&seat)
	} else {
		_ = r.wake[i].Wait()
	}
	return sat
}

// TestSeat: one who sits is told without the channel's goroutine, which comes again when a queue is armed and nobody sits.
func TestSeat(t *testing.T) {
	r := newBellRope(t, 2)
	require.True(t, r.wait(0))
	before := r.takes.Load()
	for range 100 {
		require.True(t, r.wait(0))
	}
	require.Equal(t, before, r.takes.Load())
	seat := r.cqs[0].Seat()
	var met bool
	done := func() bool { met = !met; return met } // at the second look
	if !race.Enabled {
		require.Zero(t, testing.AllocsPerRun(10, func() {
			met = true
			seat.Take()
			seat.Sit(done)
			seat.Leave()
		}))
	}

	r.arm(1)
	r.ring(1)
	require.NoError(t, r.wake[1].Wait())
	require.Greater(t, r.takes.Load(), before)
	require.True(t, r.wait(0))
	r.arm(1)
	require.False(t, r.wait(0), "another queue is armed: the goroutine would come and go")
	r.ring(1)
	require.NoError(t, r.wake[1].Wait())

	// One that is armed while somebody sits, and rung afterwards.
	require.True(t, seat.Take())
	require.False(t, r.cqs[1].Seat().Take(), "it is taken")
	r.arm(0)
	r.arm(1)
	sat := make(chan error)
	go func() { sat <- r.wake[0].WaitAt(&seat) }()
	r.ring(1)
	require.NoError(t, r.wake[1].Wait())
	r.arm(1)
	r.wake[0].Wake() // it is called away
	require.NoError(t, <-sat)
	r.ring(1)
	require.NoError(t, r.wake[1].Wait())
	r.ring(0)
	require.NoError(t, r.wake[0].Wait())

	// A deadline, and the end.
	require.True(t, seat.Take())
	r.wake[0].SetDeadline(time.Now().Add(20 * time.Millisecond))
	require.ErrorIs(t, r.wake[0].WaitAt(&seat), os.ErrDeadlineExceeded)
	r.wake[0].SetDeadline(time.Time{})
	require.True(t, seat.Take())
	go func() { sat <- r.wake[0].WaitAt(&seat) }()
	time.Sleep(10 * time.Millisecond)
	r.close()
	r.wake[0].Close(os.ErrClosed)
	require.ErrorIs(t, <-sat, os.ErrClosed)
	require.False(t, seat.Take())
}

// TestSeatStrandsNobody: whoever arms a queue is told, whoever sits meanwhile, comes and goes.
func TestSeatStrandsNobody(t *testing.T) {
	const queues, times = 3, 2000
	r := newBellRope(t, queues)
	var wg sync.WaitGroup
	var sits atomic.Int32
	for i := range queues {
		wg.Go(func() {
			for n := range times {
				if r.wait(i) {
					sits.Add(1)
				}
				if n%(100*(i+1)) == 0 {
					time.Sleep(time.Millisecond) // leave the others alone
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
		require.NotZero(t, sits.Load())
	case <-time.After(time.Minute):
		require.Fail(t, "somebody is not told")
	}
}
