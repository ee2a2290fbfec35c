//go:build linux && cgo

package rdmacore

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// seat is the place of one who waits at a completion channel in the channel's goroutine's stead: who sits takes the notifications,
// also others', and goes on with what it waited for without another goroutine being woken. The channel's goroutine stays away afterwards as long as
// no queue of the channel is armed. So one sits only where no other queue is: else that goroutine would have to come and go each time.
type seat struct {
	drain *drainer
	take  func() error // of the drainer's goroutine
	armed atomic.Int32 // queues whose notification is to come

	left, back chan struct{} // the channel's goroutine has gone away; may come again
	closing    chan struct{}

	mu          sync.Mutex
	taken, away bool
	closed      bool
	unwatched   atomic.Bool // away and not taken

	// Of who sits.
	read    func(uintptr) bool // tryRead
	done    func() bool
	fresh   bool // nothing was looked at yet
	fds     [1]unix.PollFd
	reading atomic.Bool // about to ask done
	sitMu   sync.Mutex
	sits    bool
	stood   bool // the deadline has been set
}

func (t *seat) init(d *drainer, take func() error) {
	t.drain, t.take = d, take
	d.aside, t.read = t.aside, t.tryRead
	t.left, t.back, t.closing = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
}

// cqSeat is the seat at the channel of a completion queue.
type cqSeat cq

var (
	_ verbs.Seater = (*cq)(nil)
	_ verbs.Seat   = (*cqSeat)(nil)
)

// Seat implements [verbs.Seater].
func (c *cq) Seat() verbs.Seat {
	if c.shard == nil {
		return nil
	}
	return (*cqSeat)(c)
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// Take implements [verbs.Seat].
func (c *cqSeat) Take() bool {
	t := &c.shard.seat
	others := t.armed.Load()
	if c.armed.Load() {
		others--
	}
	if others > 0 || !c.dev.tryRetain() {
		return false
	}
	t.mu.Lock()
	free, away := !t.taken && !t.closed, t.away
	if free {
		t.taken, t.away = true, true
		t.unwatched.Store(false)
	}
	t.mu.Unlock()
	if free && !away {
		free = t.drain.f.SetReadDeadline(longAgo) == nil
		if free {
			select {
			case <-t.left:
			case <-t.drain.done:
				free = false
			}
		}
		if !free { // closed
			t.mu.Lock()
			t.taken = false
			t.mu.Unlock()
		}
	}
	if !free {
		c.dev.release()
	}
	return free
}

// aside is called on the channel's goroutine when it cannot read. It returns true when it may again.
func (t *seat) aside() bool {
	t.mu.Lock()
	away := t.away
	t.mu.Unlock()
	if t.drain.f.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	if !away {
		return true
	}
	t.left <- struct{}{}
	select {
	case <-t.back:
		return true
	case <-t.closing:
		return false
	}
}

// attend has the channel's goroutine come again if somebody has to.
func (t *seat) attend() {
	if !t.unwatched.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recall()
}

// recall is attend with mu held.
func (t *seat) recall() {
	if t.away && !t.taken && t.armed.Load() > 0 {
		t.away = false
		t.unwatched.Store(false)
		t.back <- struct{}{}
	}
}

// close lets the channel's goroutine end, wherever it is.
func (t *seat) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	close(t.closing)
}

// Leave implements [verbs.Seat].
func (c *cqSeat) Leave() {
	t := &c.shard.seat
	t.mu.Lock()
	t.taken = false
	t.unwatched.Store(true)
	t.recall() // of those who arm, either sees the other
	t.mu.Unlock()
	c.dev.release()
}

// Sit implements [verbs.Seat].
func (c *cqSeat) Sit(done func() bool) {
	t := &c.shard.seat
	d := t.drain
	if done() {
		return
	}
	t.done = done
	t.sitMu.Lock()
	t.sits = true
	t.sitMu.Unlock()
	for again := true; again; {
		t.fresh = true
		err := d.raw.Read(t.read)
		t.sitMu.Lock()
		if again = t.stood && !done() && !errors.Is(err, os.ErrClosed); !again {
			t.sits = false
		}
		if t.stood {
			t.stood = false
			_ = d.f.SetReadDeadline(time.Time{}) // it may be closed
		}
		t.sitMu.Unlock()
	}
	t.done = nil
}

// tryRead is called whenever the channel may have something. It returns false to sleep. When the caller has just sat down there is seldom
// something, which is found out without C.
func (t *seat) tryRead(fd uintptr) bool {
	if t.fresh {
		t.fresh = false
		t.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		if n, err := unix.Poll(t.fds[:], 0); n == 0 && err == nil && !t.done() {
			return false
		}
	}
	for !t.done() {
		t.reading.Store(true)
		err := t.take()
		t.reading.Store(false)
		switch {
		case t.done():
			return true
		case errors.Is(err, syscall.EAGAIN):
			return false
		case err != nil:
			return true // the channel's goroutine comes and finds it too
		}
	}
	return true
}

// Stand implements [verbs.Seat].
func (c *cqSeat) Stand() {
	t := &c.shard.seat
	if t.reading.Load() {
		return
	}
	t.sitMu.Lock()
	defer t.sitMu.Unlock()
	if t.sits && !t.stood {
		t.stood = t.drain.f.SetReadDeadline(longAgo) == nil
	}
}

// arming counts the queue among those that are armed, and tells whether it was not.
func (c *cq) arming() bool {
	if c.shard == nil || c.armed.Swap(true) {
		return false
	}
	c.shard.seat.armed.Add(1)
	return true
}

// disarmed is told that the notification has come, or that there will be none.
func (c *cq) disarmed() {
	if c.shard != nil && c.armed.Swap(false) {
		c.shard.seat.armed.Add(-1)
	}
}
