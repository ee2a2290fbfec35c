package softroce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// What a message brings its receiver often draws a message back within microseconds. Then the acknowledgement that is
// due goes with it: alone it costs both sides as much as the message. It is held only where that has paid lately, and
// only for a message that a consumer is told of; and not longer than until the consumer waits again.

const (
	// holdTime is how long one is held at most if there is a consumer that spins, and holdTimeout otherwise.
	holdTime    = int64(25 * time.Microsecond)
	holdTimeout = 500 * time.Microsecond

	holdScoreMax = 8
	// With a score of 0 one acknowledgement of so many is held, of twice as many each time that it did not pay.
	holdProbe    = 32
	holdProbeMax = 4096
)

// heldAck is the acknowledgement that a responder holds, under the queue pair's lock.
type heldAck struct {
	held     bool
	told     bool // the run of packets at hand completes a receive
	psn, msn uint32

	score        int
	skips, every int
	at           int // place in holding.list; under its lock
}

// holding is all that hold an acknowledgement, on one device.
type holding struct {
	n     atomic.Int32 // len(list)
	since atomic.Int64 // when it stopped being empty

	mu    sync.Mutex
	list  []*rc
	timer Timer
	timed bool // it is pending
}

func (h *holding) add(w *work, r *rc) {
	d := w.dev
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == 0 {
		h.since.Store(w.now())
	}
	r.hold.at = len(h.list)
	h.list = append(h.list, r)
	h.n.Store(int32(len(h.list)))
	if d.polling.Load() > 0 {
		h.start(d)
	} // else the one who reads the network is about to be idle, or sees to it otherwise
}

// limit sees to it that what is held now is not held for long.
func (h *holding) limit(d *device) {
	if h.n.Load() > 0 {
		h.mu.Lock()
		h.start(d)
		h.mu.Unlock()
	}
}

// start starts the timer, if it is not pending. h.mu is held.
func (h *holding) start(d *device) {
	if h.timed {
		return
	}
	h.timed = true
	if h.timer == nil {
		h.timer = d.clock.AfterFunc(holdTimeout, func() { h.timeout(d) })
	} else {
		h.timer.Reset(holdTimeout)
	}
}

func (h *holding) remove(r *rc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.list) - 1
	moved := h.list[last]
	h.list[r.hold.at], moved.hold.at = moved, r.hold.at
	h.list[last] = nil
	h.list = h.list[:last]
	h.n.Store(int32(last))
}

// timeout lets nothing be held for longer than two holdTimeouts, and fires no more often than every one of them while
// acknowledgements are held for moments.
func (h *holding) timeout(d *device) {
	h.mu.Lock()
	h.timed = false
	if len(h.list) > 0 {
		if left := time.Duration(h.since.Load()-d.now()) + holdTimeout/2; left > 0 {
			h.timed = true
			h.timer.Reset(left)
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	h.giveAll(d)
}

// giveOld sends all that are held if one of them is for long.
func (h *holding) giveOld(d *device) {
	if h.n.Load() > 0 && d.now()-h.since.Load() >= int64(holdTimeout/2) {
		h.giveAll(d)
	}
}

// giveAll sends all that are held.
func (h *holding) giveAll(d *device) {
	if h.n.Load() == 0 {
		return
	}
	w := d.begin()
	for {
		h.mu.Lock()
		if len(h.list) == 0 {
			h.mu.Unlock()
			break
		}
		r := h.list[0]
		h.mu.Unlock()
		r.q.mu.Lock()
		r.giveHeld(w, false)
		r.q.mu.Unlock()
	}
	w.end(false)
}

// HandleIdle is called by the network's goroutine when it has read everything. What it made runnable may answer now.
func (d *device) HandleIdle() {
	if d.holds.n.Load() == 0 {
		return
	}
	runtime.Gosched()
	d.holds.giveAll(d)
}

// mayHold tells whether somebody will see to what is held: a consumer that spins, or the network's goroutine when it is idle.
func (d *device) mayHold() bool {
	return d.spins.net != nil && (d.polling.Load() == 0 || d.spins.active.Load() > 0)
}

// mayHold tells whether to hold the acknowledgement that is due.
func (r *rc) mayHold() bool {
	h := &r.hold
	told := h.told
	h.told = false
	switch {
	case !told || h.held || r.q.state != stateRTS || !r.q.dev.mayHold():
		return false
	case h.score > 0:
		return true
	}
	h.every = max(h.every, holdProbe)
	if h.skips++; h.skips < h.every {
		return false
	}
	h.skips = 0
	return true
}

// holdAck holds the acknowledgement of all before the expected packet.
func (r *rc) holdAck(w *work) {
	h := &r.hold
	h.held, h.psn, h.msn = true, wire.PSNAdd(r.exp, psnMask), r.msn
	w.dev.holds.add(w, r)
}

// giveHeld sends what is held, if anything. paid tells that it goes with something else.
func (r *rc) giveHeld(w *work, paid bool) {
	h := &r.hold
	if !h.held {
		return
	}
	r.dropHeld(paid)
	p := r.header(w, wire.RCAck, h.psn)
	p.AETH = wire.ACK(h.msn)
	r.add(w, p)
}

// dropHeld forgets what is held, since another answer says it too.
func (r *rc) dropHeld(paid bool) {
	h := &r.hold
	if !h.held {
		return
	}
	h.held = false
	r.q.dev.holds.remove(r)
	if paid {
		h.score, h.every = min(h.score+1, holdScoreMax), 0
		return
	}
	if h.score == 0 {
		h.every = min(2*h.every, holdProbeMax)
	}
	h.score = max(h.score-2, 0)
}
