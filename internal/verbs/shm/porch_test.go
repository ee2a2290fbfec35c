//go:build linux

package shm

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// sitter waits on a side's queue as rc does: it takes the seat if it can, arms, and polls before it sleeps.
type sitter struct {
	t      *testing.T
	s      *side
	seat   verbs.Seat
	waiter *verbs.Waiter
	sat    int
}

func newSitter(t *testing.T, s *side) *sitter {
	return &sitter{t, s, s.cq.(verbs.Seater).Seat(), verbs.NewWaiter(), 0}
}

// next waits for one completion.
func (w *sitter) next() (wc verbs.WC) {
	var one [1]verbs.WC
	for {
		sits := w.seat.Take()
		require.NoError(w.t, w.s.cq.Arm())
		n, err := w.s.cq.Poll(one[:])
		require.NoError(w.t, err)
		switch {
		case n > 0:
			if sits {
				w.seat.Leave()
			}
			return one[0]
		case sits:
			w.sat++
			err = w.waiter.WaitAt(&w.seat)
		default:
			err = w.waiter.Wait()
		}
		require.NoError(w.t, err)
	}
}

// sitting makes a connection whose y end has a sitter that Notify itself wakes, as rc's does.
func sitting(t *testing.T) (x, y *side, w *sitter) {
	_, before := heldAtRest(t)
	a, b := New(), New()
	x, y = connected(t, a, b)
	w = newSitter(t, y)
	y.cq.(*cq).notify = w.waiter.Wake // before anything is armed
	t.Cleanup(func() {
		_, err := x.close()
		require.NoError(t, err)
		_, err = y.close()
		require.NoError(t, err)
		requireNothingHeld(t, before)
	})
	for _, s := range []*side{x, y} {
		l := s.cq.(*cq).dev.link
		require.NotNil(t, l.porch)
		require.Eventually(t, func() bool {
			l.knocker.mu.Lock()
			defer l.knocker.mu.Unlock()
			return l.knocker.fd >= 0
		}, 10*time.Second, time.Millisecond)
	}
	return x, y, w
}

// postEmpty sends a message, also from a goroutine of a test's.
func (s *side) postEmpty(t *testing.T, id uint64) {
	n, err := s.qp.PostSend([]verbs.SendWR{{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled}})
	assert.NoError(t, err)
	assert.Equal(t, 1, n)
	_, err = s.cq.Poll(make([]verbs.WC, 8)) // so that there is room for the next
	assert.NoError(t, err)
}

func (s *side) postReceives(t *testing.T, n int) {
	for range n {
		k, err := s.qp.PostRecv([]verbs.RecvWR{{}})
		require.NoError(t, err)
		require.Equal(t, 1, k)
	}
}

// TestPorch: who sits is woken by the peer's knock, and the goroutine that reads the link has nothing to do with it.
func TestPorch(t *testing.T) {
	x, y, w := sitting(t)
	y.postReceives(t, 20)
	var posts sync.WaitGroup
	defer posts.Wait() // before x is closed
	for i := range 20 {
		posts.Go(func() {
			time.Sleep(time.Millisecond)
			x.postEmpty(t, uint64(i))
		})
		require.Equal(t, verbs.WCRecv, w.next().Op)
	}
	require.Positive(t, w.sat)
}

// TestPorchRaces: whoever sits down and gets up while messages come, by whatever is the reason, misses none.
func TestPorchRaces(t *testing.T) {
	x, y, w := sitting(t)
	const messages = 20_000
	var called atomic.Bool
	stop := make(chan struct{})
	go func() { // calls it away, for nothing
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			w.waiter.Wake()
			called.Store(true)
			time.Sleep(time.Duration(rand.N(50)) * time.Microsecond)
		}
	}()
	defer close(stop)
	const depth = 32
	y.postReceives(t, depth)
	room := make(chan struct{}, messages)
	for range depth {
		room <- struct{}{}
	}
	var posts sync.WaitGroup
	posts.Go(func() {
		for i := range messages {
			<-room
			if i%16 == 0 {
				time.Sleep(time.Duration(rand.N(80)) * time.Microsecond)
			}
			x.postEmpty(t, uint64(i))
		}
	})
	alarm := time.AfterFunc(20*time.Second, func() { w.waiter.Close(syscall.ETIMEDOUT) })
	defer alarm.Stop()
	for range messages {
		require.Equal(t, verbs.WCRecv, w.next().Op)
		y.postReceives(t, 1)
		room <- struct{}{}
	}
	posts.Wait() // before x is closed
	require.Positive(t, w.sat)
	require.True(t, called.Load())
}

// TestPorchEvicts: one who hears nothing for long makes room for another, and is woken all the same.
func TestPorchEvicts(t *testing.T) {
	x, y, w := sitting(t)
	y.postReceives(t, 1)
	got := make(chan verbs.WC, 1)
	go func() { got <- w.next() }()
	other, err := y.cq.(*cq).dev.CreateCQ(&verbs.CQAttr{Depth: 1})
	require.NoError(t, err)
	seat := other.(verbs.Seater).Seat()
	for end := time.Now().Add(10 * time.Second); !seat.Take(); {
		require.True(t, time.Now().Before(end), "the place is not free")
		time.Sleep(time.Millisecond)
	}
	x.postEmpty(t, 1)
	require.Equal(t, verbs.WCRecv, (<-got).Op)
	seat.Leave()
	require.NoError(t, other.Close())
}

// TestPorchEnds: the end of the link, or of a wait, gets who sits up.
func TestPorchEnds(t *testing.T) {
	x, y, w := sitting(t)
	y.postReceives(t, 1)
	w.waiter.SetDeadline(time.Now().Add(10 * time.Millisecond))
	require.True(t, w.seat.Take())
	require.ErrorIs(t, w.waiter.WaitAt(&w.seat), os.ErrDeadlineExceeded)
	w.waiter.SetDeadline(time.Time{})
	go func() {
		time.Sleep(10 * time.Millisecond)
		x.cq.(*cq).dev.link.close()
	}()
	require.Equal(t, verbs.WRFlushErr, w.next().Status)
}

// TestStrangePorch: what is no pipe is nothing to knock with, and breaks the link; nor is a second one.
func TestStrangePorch(t *testing.T) {
	l := &link{}
	l.knocker.fd = -1
	require.ErrorIs(t, l.gotPorch(-1), errMessage)
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(s)
	require.ErrorIs(t, l.gotPorch(s), errMessage)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC)) // it would block
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	require.NoError(t, l.gotPorch(pipe[1]))
	defer l.closePorch()
	require.ErrorIs(t, l.gotPorch(pipe[1]), errMessage)

	// One that nobody reads is full at some time, and bells are rung.
	_, err = unix.FcntlInt(uintptr(pipe[1]), unix.F_SETPIPE_SZ, 4096)
	require.NoError(t, err)
	n := 0
	for l.knock() {
		n++
		require.Less(t, n, 1<<17)
	}
	require.Positive(t, n)
}
