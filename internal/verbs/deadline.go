package verbs

import (
	"sync"
	"time"
)

// Deadline is a channel that is closed while a point of time is past, for waits that a [Waiter] is not made for. The zero value is
// no deadline, ready for use.
type Deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{} // nil: not asked for
	isset bool          // the point is past
	gen   uint64
}

// Past returns the channel for those who begin to wait now.
func (d *Deadline) Past() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.past == nil {
		d.past = make(chan struct{})
		if d.isset {
			close(d.past)
		}
	}
	return d.past
}

// Set moves the deadline to t, for those who wait already too. The zero time is none.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gen++ // a timer that already fired for an earlier deadline is void
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.isset {
		d.past, d.isset = nil, false
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.expire()
		return
	}
	gen := d.gen
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.gen == gen {
			d.expire()
		}
	})
}

// expire closes the channel. d.mu is held.
func (d *Deadline) expire() {
	d.isset = true
	if d.past != nil {
		close(d.past)
	}
}
