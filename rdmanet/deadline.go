package rdmanet

import (
	"sync"
	"time"
)

// deadline is a channel that is closed while a point of time is past.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{}
	isset bool // past is closed
	gen   uint64
}

func (d *deadline) init() { d.past = make(chan struct{}) }

// wait returns the channel for those who begin to wait now.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

// set moves the deadline to t, for those who wait already too. The zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gen++ // a timer that already fired for an earlier deadline is void
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.isset {
		d.past, d.isset = make(chan struct{}), false
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.past)
		d.isset = true
		return
	}
	gen := d.gen
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.gen == gen {
			close(d.past)
			d.isset = true
		}
	})
}
