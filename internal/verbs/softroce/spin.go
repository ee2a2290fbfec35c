package softroce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	// spinStep bounds the spin of one call.
	spinStep = 16 * time.Microsecond

	// spinTurns bounds it where time stands still.
	spinTurns = 64

	// Consumers that begin to spin again within soonAgain are expected to go on so, and the network stays theirs
	// in between; restTime at most, since packets may want an answer that no consumer waits for.
	soonAgain = int64(100 * time.Microsecond)
	restTime  = time.Millisecond
)

// quieter is a network whose own goroutine need not be woken for what consumers find by Poll, and which tells when it
// is idle. Yield lets other threads run: the one to answer may want this very processor.
type quieter interface {
	Quiet(on bool)
	Yield()
}

// spinning is what a device's consumers do that spin: while there are some they read the network. That its goroutine
// is woken for each packet, too, would cost a thread that finds nothing and takes a processor from who has to answer.
type spinning struct {
	net   quieter      // nil: it cannot be quiet
	armed atomic.Int32 // completion queues: somebody wants to be told

	active atomic.Int32 // n

	mu    sync.Mutex
	n     int
	quiet bool
	soon  bool  // the one at hand came soon after the last
	ended int64 // when the last one ended
	timer Timer // of rest
	timed bool  // it is pending
}

func (s *spinning) begin(now int64) {
	if s.net == nil {
		return
	}
	s.mu.Lock()
	s.active.Add(1)
	if s.n++; s.n == 1 {
		s.soon = now-s.ended < soonAgain
	}
	s.quiet = true
	s.net.Quiet(true) // the socket with the traffic may be another one by now
	s.mu.Unlock()
}

// end ends a spin. back tells that the caller is sure to come again unless it arms its queue.
func (s *spinning) end(d *device, back bool) {
	if s.net == nil {
		return
	}
	now := d.now()
	s.mu.Lock()
	s.ended = now
	s.active.Add(-1)
	if s.n--; s.n == 0 {
		if !back && !s.soon {
			s.loud()
		} else if !s.timed {
			s.timed = true
			if s.timer == nil {
				s.timer = d.clock.AfterFunc(restTime, func() { s.restOver(d) })
			} else {
				s.timer.Reset(restTime)
			}
		}
	}
	s.mu.Unlock()
	s.attend()
}

// loud has the network's goroutine woken again.
func (s *spinning) loud() {
	if s.quiet {
		s.quiet = false
		s.net.Quiet(false)
	}
}

// attend follows what may have been the last end while a queue is armed, and the arming of one.
func (s *spinning) attend() {
	if s.net == nil || s.armed.Load() == 0 {
		return
	}
	s.mu.Lock()
	if s.n == 0 {
		s.loud()
	}
	s.mu.Unlock()
}

// restOver ends a rest that nobody has interrupted.
func (s *spinning) restOver(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timed = false
	if !s.quiet {
		return
	}
	left := time.Duration(s.ended-d.now()) + restTime
	if s.n == 0 && left <= 0 {
		s.loud()
		return
	}
	s.timed = true
	s.timer.Reset(max(left, restTime/4))
}

// PollOrArm implements [verbs.ArmPoller]. Who spins reads the network, so that no other goroutine is needed.
func (c *cq) PollOrArm(wc []verbs.WC, spin time.Duration, arm bool) (n int, armed bool, err error) {
	if len(wc) == 0 {
		return 0, false, nil
	}
	if n, err = c.take(wc); n > 0 || err != nil {
		return n, false, err
	}
	if spin > 0 {
		if n, err = c.spin(wc, int64(min(spin, spinStep)), !arm); n > 0 || err != nil {
			return n, false, err
		}
	}
	if !arm {
		return 0, false, nil
	}
	if err = c.Arm(); err != nil {
		return 0, false, err
	}
	// The network need not be read any more: what comes from now on notifies.
	n, err = c.take(wc)
	return n, true, err
}

// spin polls for a time.
func (c *cq) spin(wc []verbs.WC, limit int64, back bool) (n int, err error) {
	d := c.dev
	start := d.now()
	d.spins.begin(start)
	for range spinTurns {
		if n, err = c.Poll(wc); n > 0 || err != nil {
			break
		}
		now := d.now()
		if d.holds.n.Load() > 0 && now-d.holds.since.Load() >= holdTime {
			d.holds.giveAll(d)
		}
		if now-start >= limit {
			break
		}
		if d.spins.net != nil {
			d.spins.net.Yield()
		} else {
			runtime.Gosched() // to the network's goroutine
		}
	}
	d.spins.end(d, back && n == 0)
	return n, err
}
