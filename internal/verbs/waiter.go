package verbs

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Waiter parks one goroutine at a time until it is woken, its deadline passes
// or it is closed. It is made once and used for every wait; neither waiting nor moving the
// deadline allocates.
//
// The one who waits checks its condition after each return of Wait; the one
// who wakes makes the condition true first. A Wake with nobody parked is kept
// for the next Wait.
type Waiter struct {
	wake  chan struct{} // capacity 1
	woken func() bool   // a Wake is kept
	at    atomic.Pointer[Seat]

	bad      atomic.Bool // Err is not nil
	mu       sync.Mutex
	timer    *time.Timer
	deadline time.Time // zero: none. A timer that fires before it is an older one's
	expired  bool
	err      error
}

// NewWaiter returns a Waiter without deadline.
func NewWaiter() *Waiter {
	w := &Waiter{wake: make(chan struct{}, 1)}
	w.woken = func() bool { return len(w.wake) > 0 }
	return w
}

// Wake lets the parked goroutine, or the next one to park, go on.
func (w *Waiter) Wake() {
	select {
	case w.wake <- struct{}{}:
		if seat := w.at.Load(); seat != nil {
			(*seat).Stand()
		}
	default:
	}
}

// Drop forgets a Wake that is kept. The one who waits calls it when it has seen its condition true without waiting.
func (w *Waiter) Drop() {
	select {
	case <-w.wake:
	default:
	}
}

// Err returns what Wait would return without waiting: the error of Close,
// os.ErrDeadlineExceeded, or nil.
func (w *Waiter) Err() error {
	if !w.bad.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Wait parks until Wake and returns nil, or returns what Err says.
func (w *Waiter) Wait() error { return w.WaitOr(nil) }

// WaitOr is Wait, and returns as well when done is closed.
func (w *Waiter) WaitOr(done <-chan struct{}) error {
	if err := w.Err(); err != nil {
		return err
	}
	if done == nil {
		<-w.wake
		return w.Err()
	}
	select {
	case <-w.wake:
	case <-done:
	}
	return w.Err()
}

// WaitAt is Wait at a seat that was taken, and leaves it.
func (w *Waiter) WaitAt(seat *Seat) error {
	if err := w.Err(); err != nil {
		(*seat).Leave()
		return err
	}
	w.at.Store(seat)
	(*seat).Sit(w.woken)
	w.at.Store(nil)
	(*seat).Leave()
	<-w.wake
	return w.Err()
}

// SetDeadline makes Wait fail from t on, also one that is already parked. The
// zero time means no deadline; one that passed is lifted by setting another.
func (w *Waiter) SetDeadline(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline, w.expired = t, false
	w.bad.Store(w.err != nil)
	if t.IsZero() || w.err != nil {
		w.stop()
		return
	}
	d := time.Until(t)
	switch {
	case d <= 0:
		w.stop()
		w.expire()
	case w.timer == nil:
		w.timer = time.AfterFunc(d, w.fire)
	default:
		w.timer.Reset(d)
	}
}

// fire runs when a timer has. Since a deadline may move while the function is
// on its way, it looks at the one in force.
func (w *Waiter) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deadline.IsZero() || w.expired || w.err != nil {
		return
	}
	if d := time.Until(w.deadline); d > 0 {
		w.timer.Reset(d)
		return
	}
	w.expire()
}

func (w *Waiter) expire() {
	w.expired = true
	w.bad.Store(true)
	w.Wake()
}

func (w *Waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Close makes every Wait fail with err, now and from now on. The first error stays.
func (w *Waiter) Close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
		w.bad.Store(err != nil)
	}
	w.stop()
	w.Wake()
}
