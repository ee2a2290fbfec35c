package rc

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Side is what one side of a connection, its reader or its writer, waits with.
// One goroutine waits at a time.
type Side struct {
	waiter *verbs.Waiter
	ready  func() bool
	done   <-chan struct{} // nil, or closed when the wait is over
	ctx    context.Context // whose done that is, or nil
	heeded <-chan struct{} // done of the context that signals when it ends
	unheed func() bool
	parked atomic.Pointer[Poller] // nil once it was signaled
	spin   Spinner
	yields yields
}

// NewSide returns a Side that waits for ready, which any goroutine may call.
func NewSide(ready func() bool) *Side {
	return &Side{waiter: verbs.NewWaiter(), ready: ready, spin: Spinner{score: scoreMax / 2}}
}

// Err is what Wait returns once a deadline has passed or the side is closed.
func (s *Side) Err() error { return s.waiter.Err() }

// SetDeadline makes waits fail from t on; the zero time lifts it.
func (s *Side) SetDeadline(t time.Time) { s.waiter.SetDeadline(t) }

// SetDone makes waits return when done is closed. It is called by who waits, between waits; nil lifts it.
func (s *Side) SetDone(done <-chan struct{}) { s.ctx, s.done = nil, done }

// SetContext is SetDone for the end of ctx. Of the context of a wait that slept something is kept until Forget, so that the next one with it
// costs nothing.
func (s *Side) SetContext(ctx context.Context) { s.ctx, s.done = ctx, ctx.Done() }

// Forget lets go of contexts. Nobody waits.
func (s *Side) Forget() {
	if s.unheed != nil {
		s.unheed()
	}
	s.ctx, s.done, s.heeded, s.unheed = nil, nil, nil, nil
}

// heed sees to it that the side is signaled when the wait is over, and tells whether it is.
func (s *Side) heed() bool {
	if s.done == s.heeded || s.done == nil {
		return true
	}
	if s.ctx == nil {
		return false
	}
	if s.unheed != nil {
		s.unheed()
	}
	s.heeded, s.unheed = s.done, context.AfterFunc(s.ctx, s.Signal)
	return true
}

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
	if p.spin(s) {
		return s.waiter.Err()
	}
	return p.park(s)
}

// Spin waits as Wait does before it parks, and tells whether that was enough.
func (p *Poller) Spin(s *Side) bool { return s.ready() || p.spin(s) }

func (p *Poller) spin(s *Side) (met bool) {
	d := s.spin.Budget(p.busy.Load(), p.longSpins())
	if d <= 0 {
		return false
	}
	p.spins.Add(1)
	met, took, lost := p.spinOn(s, now(), d)
	if lost > 0 {
		s.spin.Lost(lost)
	}
	s.spin.Account(met, took)
	return met
}

// park sleeps until the side is signaled: where the provider's news come in, if nobody else is there.
func (p *Poller) park(s *Side) (err error) {
	sits := p.seat != nil && p.seat.Take()
	if sits && !s.heed() {
		p.seat.Leave()
		sits = false
	}
	p.parked.Add(1)
	s.parked.Store(p)
	p.Attend()
	if s.ready() || s.over() {
		if !s.unpark() {
			s.waiter.Drop() // of what was found by looking; the next wait would end at once
		}
		if sits {
			p.seat.Leave()
		}
		return s.waiter.Err()
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
	s.spin.Slept(end - start)
	s.unpark()
	p.wakeups.Add(1)
	return err
}

// longSpins tells whether the one who waits looks for completions itself as it spins, and does not need others to run.
func (p *Poller) longSpins() bool { return p.one != nil }

// spinOn polls until the condition holds, the side has an error or the time is up. lost is how long another program had the processor
// in the end.
func (p *Poller) spinOn(s *Side, start, limit int64) (met bool, took, lost int64) {
	if p.longSpins() {
		n, busy := spinners.Add(1), p.busy.Load() > 0
		if one := n == 1 || n < procs.Load(); one || busy {
			defer spinners.Add(-1)
			if !one {
				limit = min(limit, spinMax)
			}
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
	for turns := NewTurns(limit); ; {
		if poller {
			p.look(b, 0)
		}
		if met = s.ready() || s.over(); met || !turns.Next() {
			break
		}
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
	return met, now() - start, 0
}

// spinners counts those in spinInside. They leave one of Go's processors to others: where all are busy,
// the network poller is not looked at, and nobody else's events are seen.
var spinners atomic.Int32

// spinInside is spinOn for a provider that looks on inside its calls. There it lets other threads run; goroutines
// where some want to, and seldom otherwise, see yields.
func (p *Poller) spinInside(s *Side, start, limit int64) (met bool, took, lost int64) {
	if !p.enter() {
		return false, 0, 0 // the one who polls will tell
	}
	b := getBatch()
	var t, turn int64
	for last, still, step := s.yields.begin(start), 0, firstStep; ; step = spinStep {
		parked := p.parked.Load()
		p.at = last
		p.look(b, step)
		t = now()
		turn = t - last
		if met = s.ready() || s.over(); met {
			break
		}
		whatever := p.busy.Load() > 0
		if t-start > limit || turn > awayTurn && !whatever {
			break
		}
		if still++; turn != 0 {
			still = 0
		} else if still == stillTurns {
			break
		}
		// Whoever was woken by what came waits for this processor.
		var over bool
		if last, over = s.yields.letRun(t, p.parked.Load() < parked); over || last-t > awayTurn && !whatever {
			turn = 0
			break
		}
	}
	s.yields.end = t
	p.at = 0
	if met {
		p.lastMet.Store(t)
	}
	if turn > awayTurn {
		lost = turn
	}
	p.leave(b, met)
	putBatch(b)
	return met || s.ready(), t - start, lost
}

const (
	firstStep  = 2 * time.Microsecond          // before others are asked for
	spinStep   = 16 * time.Microsecond         // how long a provider may look for completions in one call
	awayTurn   = int64(600 * time.Microsecond) // a turn longer than this means that the processor went to other programs
	stillTurns = 16                            // turns in which no time passes, where it is simulated
)

var epoch = time.Now()

// Now is a monotonic time in nanoseconds.
func Now() int64 { return now() }

// Now is the time when the poller began to look, or nearly, for what it calls: where that is known it costs nothing.
func (p *Poller) Now() int64 {
	if p.at != 0 {
		return p.at
	}
	return now()
}

func now() int64 { return int64(time.Since(epoch)) }
