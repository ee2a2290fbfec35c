package softroce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
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

// attended is a network whose own goroutine need not be woken for what consumers find by Poll or read where they wait, and which
// tells when it is idle. Yield lets other threads run: the one to answer may want this very processor.
type attended interface {
	Attend(who netio.Attention)
	Yield()
	Sit(done func() bool)
	Stand()
}

// spinning is what a device's consumers do that spin or sit: while there are some they read the network. That its goroutine
// is woken for each packet, too, would cost a thread that finds nothing and takes a processor from who has to answer.
type spinning struct {
	net   attended     // nil: its goroutine is needed always
	armed atomic.Int32 // completion queues: somebody wants to be told

	active atomic.Int32 // n

	mu    sync.Mutex
	n     int   // who spin
	sits  bool  // somebody sits, see seat
	away  bool  // the network's goroutine sleeps on
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
	s.came(now)
	s.n++
	s.net.Attend(netio.ByNobody)
	s.mu.Unlock()
}

// sit is begin for who is going to sit.
func (s *spinning) sit(now int64) {
	s.mu.Lock()
	s.came(now)
	s.sits = true
	if s.n == 0 {
		s.net.Attend(netio.BySitter)
	}
	s.mu.Unlock()
}

// came is called with the lock held.
func (s *spinning) came(now int64) {
	if s.n == 0 && !s.sits {
		s.soon = now-s.ended < soonAgain
	}
	s.away = true
}

// end ends a spin. back tells that the caller is sure to come again unless it arms its queue.
func (s *spinning) end(d *device, back bool) {
	if s.net == nil {
		return
	}
	s.mu.Lock()
	s.active.Add(-1)
	s.n--
	s.went(d, back)
	s.mu.Unlock()
	s.attend()
}

// rise ends what sit began. It tells whether restOver sees to what is held.
func (s *spinning) rise(d *device) (rests bool) {
	s.mu.Lock()
	s.sits = false
	s.went(d, false)
	rests = s.away && s.timed
	s.mu.Unlock()
	return s.attend() && rests
}

// went is called with the lock held.
func (s *spinning) went(d *device, back bool) {
	s.ended = d.now()
	switch {
	case s.n > 0:
	case s.sits:
		s.net.Attend(netio.BySitter)
	case !back && !s.soon:
		s.loud()
	case !s.timed:
		s.timed = true
		if s.timer == nil {
			s.timer = d.clock.AfterFunc(restTime, func() { s.restOver(d) })
		} else {
			s.timer.Reset(restTime)
		}
	}
}

// loud has the network's goroutine woken again.
func (s *spinning) loud() {
	if s.away {
		s.away = false
		s.net.Attend(netio.ByOwn)
	}
}

// attend follows what may have been the last end while a queue is armed, and the arming of one. It tells whether none is.
func (s *spinning) attend() (none bool) {
	if s.net == nil || s.armed.Load() == 0 {
		return true
	}
	s.mu.Lock()
	if s.n == 0 && !s.sits {
		s.loud()
	}
	s.mu.Unlock()
	return false
}

// restOver ends a rest that nobody has interrupted. Who is there now sets the timer again in the end.
func (s *spinning) restOver(d *device) {
	defer d.holds.giveOld(d) // later, without the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timed = false
	if !s.away || s.n > 0 || s.sits {
		return
	}
	left := time.Duration(s.ended-d.now()) + restTime
	if left <= 0 {
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
	told := d.seat.told.Load()
	for range spinTurns {
		if n, err = c.Poll(wc); n > 0 || err != nil {
			break
		}
		// What was read may have woken others, whose answer may be what is waited for.
		if t := d.seat.told.Load(); t != told {
			told = t
			runtime.Gosched()
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
