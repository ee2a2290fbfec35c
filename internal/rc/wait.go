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
	done   <-chan struct{}        // nil, or closed when the wait is over
	parked atomic.Pointer[Poller] // nil once it was signaled
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

// SetDone makes waits return when done is closed. It is called by who waits, between waits; nil lifts it.
func (s *Side) SetDone(done <-chan struct{}) { s.done = done }

// over tells whether there is no sense in waiting any more, whatever the condition.
func (s *Side) over() bool {
	if s.waiter.Err() != nil {
		return true
	}
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Close makes waits fail with err.
func (s *Side) Close(err error) { s.waiter.Close(err) }

// Signal wakes the one who waits. It is called after the condition became true.
func (s *Side) Signal() {
	if s.unpark() {
		s.waiter.Wake()
	}
}

// unpark takes back that the side is parked, once.
func (s *Side) unpark() bool {
	p := s.parked.Load()
	if p == nil || !s.parked.CompareAndSwap(p, nil) {
		return false
	}
	p.parked.Add(-1)
	return true
}

// Wait returns nil once the side's condition was seen true, perhaps by another
// who made it false again, or what SetDone has set is closed, or the side's error.
func (p *Poller) Wait(s *Side) error {
	if err := s.waiter.Err(); err != nil {
		return err
	}
	if s.ready() {
		return nil
	}
	if d := s.spin.budget(p.busy.Load(), p.longSpins()); d > 0 {
		p.spins.Add(1)
		start := now()
		met := p.spinOn(s, start, d)
		s.spin.account(met, now()-start)
		if met {
			return s.waiter.Err()
		}
	}
	return p.park(s)
}

// park sleeps until the side is signaled: where the provider's news come in, if nobody else is there.
func (p *Poller) park(s *Side) (err error) {
	sits := p.seat != nil && s.done == nil && p.seat.Take()
	p.parked.Add(1)
	s.parked.Store(p)
	p.Attend()
	if s.ready() {
		s.unpark()
		if sits {
			p.seat.Leave()
		}
		return nil
	}
	p.parks.Add(1)
	start := now()
	if sits {
		err = s.waiter.WaitAt(&p.seat)
	} else {
		err = s.waiter.WaitOr(s.done)
	}
	end := now()
	if sits {
		p.lastMet.Store(end)
	}
	s.spin.slept(end - start)
	s.unpark()
	p.wakeups.Add(1)
	return err
}

// longSpins tells whether the one who waits looks for completions itself as it spins, and does not need others to run.
func (p *Poller) longSpins() bool { return p.one != nil }

// spinOn polls until the condition holds, the side has an error or the time is up.
func (p *Poller) spinOn(s *Side, start, limit int64) (met bool) {
	if p.longSpins() {
		if n := spinners.Add(1); n == 1 || n < procs.Load() || p.busy.Load() > 0 {
			defer spinners.Add(-1)
			return p.spinInside(s, start, limit)
		}
		spinners.Add(-1)
		limit = min(limit, spinMax)
	}
	poller := p.enter()
	var b *batch
	if poller {
		b = getBatch()
	}
	last := start
	for turns := limit / shortestTurn; ; turns-- {
		if poller {
			p.look(b, 0)
		}
		if met = s.ready() || s.over(); met {
			break
		}
		runtime.Gosched()
		t := now()
		// A turn that took long went to others: the processor is wanted.
		if t-start > limit || t-last > busyTurn || turns == 0 {
			break
		}
		last = t
		if !poller && p.role.Load() == roleIdle {
			if poller = p.enter(); poller {
				b = getBatch()
			}
		}
	}
	if poller {
		p.leave(b, false)
		putBatch(b)
		met = met || s.ready()
	}
	return met
}

// spinners counts those in spinInside. Unless told to, they leave one of Go's processors to others: where all are busy,
// the network poller is not looked at, and nobody else's events are seen.
var spinners atomic.Int32

// spinInside is spinOn for a provider that looks on inside its calls. There it lets other threads run. Goroutines
// seldom: each Gosched makes the scheduler wake a thread, if there is a processor for it, which finds nothing to do.
func (p *Poller) spinInside(s *Side, start, limit int64) (met bool) {
	if !p.enter() {
		return false // the one who polls will tell
	}
	b := getBatch()
	last, yielded, still := start, start, 0
	for {
		n := p.look(b, spinStep)
		if met = s.ready() || s.over(); met {
			break
		}
		t := now()
		if t-start > limit || t-last > awayTurn && p.busy.Load() <= 0 {
			break
		}
		if still++; t != last {
			still = 0
		} else if still == stillTurns {
			break
		}
		last = t
		// Whoever was woken by what came waits for this processor.
		if n > 0 || t-yielded > yieldEvery {
			runtime.Gosched()
			yielded = t
		}
	}
	if met {
		p.lastMet.Store(now())
	}
	p.leave(b, met)
	putBatch(b)
	return met || s.ready()
}

const (
	spinMax  = int64(50 * time.Microsecond) // of one adaptive wait
	spinMin  = int64(5 * time.Microsecond)
	busyTurn = int64(30 * time.Microsecond) // a turn of the scheduler longer than this means others run

	// Where the one who waits does all that is to be done, it may spin for longer if that makes its waits
	// shorter than those that park: both ends of a connection that park make each other's waits long.
	longMax   = int64(time.Millisecond)
	longProbe = int64(100 * time.Microsecond)

	spinStep   = 16 * time.Microsecond         // how long a provider may look for completions in one call
	yieldEvery = int64(50 * time.Microsecond)  // others on this processor wait no longer
	awayTurn   = int64(600 * time.Microsecond) // a turn longer than this means that the processor went to other programs

	// A turn takes longer than this, but where time is simulated none passes.
	shortestTurn = int64(100 * time.Nanosecond)
	stillTurns   = 16

	scoreMax   = 8
	probeEvery = 32 // with a score of 0, one wait of so many spins
)

// spinner decides whether and how long the next wait spins, by how the last ones went.
type spinner struct {
	score int   // how often spinning paid lately
	typ   int64 // how long a wait that paid took, typically
	park  int64 // how long one took that parked, if not longer than longMax
	long  bool  // the last one that parked took longer
	skips int
}

func (p *spinner) budget(busyPoll int64, long bool) int64 {
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
		if long {
			return p.probe()
		}
	}
	switch {
	case !long:
		return min(spinMax, 2*p.typ+spinMin)
	case p.typ == 0:
		return longProbe
	}
	// The surer it is that it pays, the longer is an exception waited for.
	return min(longMax, max(2*p.typ+spinMin, p.park-p.park/4)<<(p.score/2))
}

// probe is how long a spin lasts that is to find out whether spinning pays.
func (p *spinner) probe() int64 {
	if p.long {
		return spinMax
	}
	return min(longMax, max(longProbe, p.park+p.park/4))
}

// account takes how a spin went. A long one paid if it made the wait a third shorter.
func (p *spinner) account(met bool, took int64) {
	if !met || took > spinMax && took > p.park*2/3 {
		p.score = max(0, p.score-1)
		return
	}
	if p.score < scoreMax {
		p.score++
	}
	p.typ += (took - p.typ) / 4
}

// slept takes how long a wait took that parked.
func (p *spinner) slept(took int64) {
	if p.long = took > 2*longMax; !p.long {
		p.park += (took - p.park) / 8
	}
}

var epoch = time.Now()

// Now is a monotonic time in nanoseconds.
func Now() int64 { return now() }

func now() int64 { return int64(time.Since(epoch)) }

// procs is GOMAXPROCS, which is dear to ask for, as of the last new connection.
var procs atomic.Int32

func refreshProcs() { procs.Store(int32(min(runtime.GOMAXPROCS(0), 1<<20))) }
