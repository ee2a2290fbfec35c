package rc

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Side is what one side of a connection, its reader or its writer, waits with.
// One goroutine waits at a time.
type Side struct {
	waiter *verbs.Waiter
	ready  func() bool
	parked atomic.Bool
	spin   spinner
}

// NewSide returns a Side that waits for ready, which any goroutine may call.
func NewSide(ready func() bool) *Side {
	return &Side{waiter: verbs.NewWaiter(), ready: ready, spin: spinner{score: scoreMax / 2}}
}

// Err is what Wait returns once a deadline has passed or the side is closed.
func (s *Side) Err() error { return s.waiter.Err() }

// SetDeadline makes waits fail from t on; the zero time lifts it.
func (s *Side) SetDeadline(t time.Time) { s.waiter.SetDeadline(t) }

// Close makes waits fail with err.
func (s *Side) Close(err error) { s.waiter.Close(err) }

// Signal wakes the one who waits. It is called after the condition became true.
func (s *Side) Signal() {
	if s.parked.Load() {
		s.waiter.Wake()
	}
}

// Wait returns nil once the side's condition was seen true, perhaps by another
// who made it false again, or the side's error.
func (c *Conn) Wait(s *Side) error {
	if err := s.waiter.Err(); err != nil {
		return err
	}
	if s.ready() {
		return nil
	}
	if d := s.spin.budget(c.busy.Load()); d > 0 {
		c.spins.Add(1)
		start := now()
		met := c.spinOn(s, start, d)
		s.spin.account(met, now()-start)
		if met {
			return s.waiter.Err()
		}
	}
	s.parked.Store(true)
	if s.ready() {
		s.parked.Store(false)
		return nil
	}
	c.parks.Add(1)
	err := s.waiter.Wait()
	s.parked.Store(false)
	c.wakeups.Add(1)
	return err
}

// spinOn polls until the condition holds, the side has an error or the time is up.
func (c *Conn) spinOn(s *Side, start, limit int64) (met bool) {
	poller := c.enter()
	var b *batch
	if poller {
		b = getBatch()
	}
	last := start
	for turns := limit / shortestTurn; ; turns-- {
		if poller {
			c.look(b, spinInside)
		}
		if met = s.ready() || s.waiter.Err() != nil; met {
			break
		}
		runtime.Gosched()
		t := now()
		// A turn that took long went to others: the processor is wanted.
		if t-start > limit || t-last > busyTurn || turns == 0 {
			break
		}
		last = t
		if !poller && c.role.Load() == roleIdle {
			if poller = c.enter(); poller {
				b = getBatch()
			}
		}
	}
	if poller {
		c.leave(b)
		putBatch(b)
		met = met || s.ready()
	}
	return met
}

const (
	spinMax  = int64(50 * time.Microsecond) // of one adaptive wait
	spinMin  = int64(5 * time.Microsecond)
	busyTurn = int64(30 * time.Microsecond) // a turn of the scheduler longer than this means others run

	// spinInside is how long a provider may look for completions in one call.
	spinInside = 4 * time.Microsecond

	// A turn takes longer than this, but where time is simulated none passes.
	shortestTurn = int64(100 * time.Nanosecond)

	scoreMax   = 8
	probeEvery = 32 // with a score of 0, one wait of so many spins
)

// spinner decides whether and how long the next wait spins, by how the last ones went.
type spinner struct {
	score int   // how often spinning paid lately
	typ   int64 // how long a wait that paid took, typically
	skips int
}

func (p *spinner) budget(busyPoll int64) int64 {
	switch {
	case busyPoll < 0 || procs.Load() == 1:
		return 0
	case busyPoll > 0:
		return busyPoll
	case p.score > 0:
	case p.skips < probeEvery:
		p.skips++
		return 0
	default:
		p.skips = 0
	}
	return min(spinMax, max(spinMin, 2*p.typ+spinMin))
}

func (p *spinner) account(met bool, took int64) {
	if !met {
		p.score = max(0, p.score-1)
		return
	}
	if p.score < scoreMax {
		p.score++
	}
	p.typ += (took - p.typ) / 4
}

var epoch = time.Now()

// now is a monotonic time in nanoseconds.
func now() int64 { return int64(time.Since(epoch)) }

// procs is GOMAXPROCS, which is dear to ask for, as of the last new connection.
var procs atomic.Int32

func refreshProcs() { procs.Store(int32(min(runtime.GOMAXPROCS(0), 1<<20))) }
