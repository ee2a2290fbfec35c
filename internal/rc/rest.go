package rc

import (
	"sync"
	"sync/atomic"
	"time"
)

// Arming a queue costs a call, and the completion that follows an event, a goroutine and a thread that are woken for
// nothing: whoever waits by spinning has seen the completion long before. So one who spun and met its condition
// leaves the queue unarmed. Until it comes again nobody sees what completes, which nobody misses if nobody is parked
// and nothing is pending. That lasts for two restTimes at most; where spins follow each other, for up to twice restGrowth of
// them, since a thread that is woken to look takes the processor from who spins.

const (
	restTime   = 4 * time.Millisecond
	restGrowth = 8
)

// rest has a queue that was left unarmed looked at later.
type rest struct {
	every time.Duration // restTime

	mu     sync.Mutex
	next   time.Duration // until the timer fires
	timer  *time.Timer
	timed  atomic.Bool // it runs; set with mu held
	spins  uint64      // of the connection when it was set
	closed bool
}

// begin sets the timer unless it runs: whoever it wakes looks at the queue after it has said that it does not run any more.
func (r *rest) begin(p *Poller) {
	if r.timed.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timed.Load() || r.closed {
		return
	}
	r.timed.Store(true)
	r.spins = p.spins.Load()
	r.next = r.every
	if r.timer == nil {
		r.timer = time.AfterFunc(r.next, p.restOver)
	} else {
		r.timer.Reset(r.next)
	}
}

// over tells whether somebody has to look. If there were spins meanwhile it is too early.
func (r *rest) over(p *Poller) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := p.spins.Load(); n != r.spins && !p.armed.Load() && !r.closed {
		r.spins = n
		r.next = min(2*r.next, restGrowth*r.every)
		r.timer.Reset(r.next)
		return false
	}
	r.timed.Store(false)
	return true
}

func (r *rest) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// mayRest tells whether the queue may be left unarmed, and has somebody look at it later. What changes
// afterwards is followed by Attend.
func (p *Poller) mayRest() bool {
	if p.parked.Load() > 0 || p.h.Pending() {
		return false
	}
	p.rest.begin(p)
	return true
}

// lately tells whether somebody who waits by spinning was here a short while ago.
func (p *Poller) lately() bool {
	last := p.lastMet.Load()
	return last != 0 && now()-last < int64(p.rest.every)
}

// restOver looks at a queue that nobody has come back to.
func (p *Poller) restOver() {
	if p.rest.over(p) {
		p.Attend()
	}
}

// Attend has the queue armed if it rests. Whoever makes something pending, or parks, calls it afterwards.
func (p *Poller) Attend() {
	if !p.armed.Load() {
		p.Progress()
	}
}
