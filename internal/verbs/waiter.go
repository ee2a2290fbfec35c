package verbs

import (
	"os"
	"sync"
	"time"
)

// Waiter parks one goroutine at a time until it is woken, its deadline passes
// or it is closed. It is made once and used for every wait; none allocates.
//
// The one who waits checks its condition after each return of Wait; the one
// who wakes makes the condition true first. A Wake with nobody parked is kept
// for the next Wait.
type Waiter struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	timer   *time.Timer
	gen     uint64 // of the deadline in force; a timer of another generation is void
	expired bool
	err     error
}

// NewWaiter returns a Waiter without deadline.
func NewWaiter() *Waiter { return &Waiter{wake: make(chan struct{}, 1)} }

// Wake lets the parked goroutine, or the next one to park, go on.
func (w *Waiter) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Err returns what Wait would return without waiting: the error of Close,
// os.ErrDeadlineExceeded, or nil.
func (w *Waiter) Err() error {
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
func (w *Waiter) Wait() error {
	if err := w.Err(); err != nil {
		return err
	}
	<-w.wake
	return w.Err()
}

// SetDeadline makes Wait fail from t on, also one that is already parked. The
// zero time means no deadline; one that passed is lifted by setting another.
func (w *Waiter) SetDeadline(t time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gen++
	w.expired = false
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if t.IsZero() || w.err != nil {
		return
	}
	d := time.Until(t)
	if d <= 0 {
		w.expired = true
		w.Wake()
		return
	}
	gen := w.gen
	w.timer = time.AfterFunc(d, func() {
		w.mu.Lock()
		if w.gen == gen {
			w.expired = true
			w.Wake()
		}
		w.mu.Unlock()
	})
}

// Close makes every Wait fail with err, now and from now on. The first error stays.
func (w *Waiter) Close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.Wake()
}
