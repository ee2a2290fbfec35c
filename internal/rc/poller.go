package rc

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Handler is told what happens on a connection: serially, in order, and on any
// goroutine. Its methods must not block and not close the connection.
type Handler interface {
	// HandleCompletions takes completions; wcs is valid until it returns.
	HandleCompletions(wcs []verbs.WC)

	// HandleEvent takes an event of the connection, after every completion that
	// was in the queue when the event came.
	HandleEvent(ev verbs.Event)

	// HandleFailure says that no completion will come any more.
	HandleFailure(err error)

	// Pending tells whether something is to be done at the next completion though nobody waits for it.
	Pending() bool
}

// Poller is a completion queue with those who wait for it, and the role of poller. It
// must not be copied.
type Poller struct {
	cq   verbs.CQ
	one  verbs.ArmPoller // cq, where it spares calls; else nil
	seat verbs.Seat      // where cq has news, or nil
	h    Handler

	translate func(wcs []verbs.WC) // nil: completions are what they are

	role    atomic.Uint32
	at      int64       // when who has the role began to look, if it knows, else 0
	armed   atomic.Bool // a Notify is to come
	started atomic.Bool

	// At rest the queue is not armed, since the one who waits comes again and again.
	parked  atomic.Int32 // sides that nobody has signaled yet
	lastMet atomic.Int64 // when one that spun met its condition
	rest    rest

	evMu     sync.Mutex
	events   []verbs.Event
	eventful atomic.Bool // there are some

	busy                  atomic.Int64
	spins, parks, wakeups atomic.Uint64
}

// States of the role of poller.
const (
	roleIdle    = iota // nobody polls, the queue is armed
	rolePolling        // somebody does
	roleAgain          // and shall look once more before going
	roleClosed         // nobody may any more
)

// Open makes a completion queue of dev. Completions and events wait for Start.
func (p *Poller) Open(dev verbs.Device, depth int, h Handler, busyPoll time.Duration) (err error) {
	p.h = h
	p.rest.every = restTime
	p.busy.Store(int64(busyPoll))
	refreshProcs()
	// Until Start nobody may poll.
	p.role.Store(rolePolling)
	if p.cq, err = dev.CreateCQ(&verbs.CQAttr{Depth: depth, Notify: p.notify}); err == nil {
		p.one, _ = p.cq.(verbs.ArmPoller)
		if s, ok := p.cq.(verbs.Seater); ok {
			p.seat = s.Seat()
		}
	}
	return err
}

// CQ is the queue. Nobody but the Poller polls or arms it.
func (p *Poller) CQ() verbs.CQ { return p.cq }

// Start lets completions and events reach the handler.
func (p *Poller) Start() {
	if p.started.Swap(true) {
		return
	}
	b := getBatch()
	p.drain(b)
	p.leave(b, false)
	putBatch(b)
}

// SetBusyPoll says how long a wait spins before it parks: 0 adaptive, negative
// never, positive that long, unless it is in others' way.
func (p *Poller) SetBusyPoll(d time.Duration) { p.busy.Store(int64(d)) }

// Counts returns how often waits spun, parked and were woken.
func (p *Poller) Counts() (spins, parks, wakeups uint64) {
	return p.spins.Load(), p.parks.Load(), p.wakeups.Load()
}

// Progress handles what is there, unless another goroutine is about it.
func (p *Poller) Progress() { p.progress(false) }

// Poll is Progress of one who comes again soon, so that the queue need not be armed meanwhile.
func (p *Poller) Poll() {
	if !p.enter() {
		return
	}
	p.spins.Add(1)
	b := getBatch()
	if p.look(b, 0) > 0 {
		p.lastMet.Store(now())
	}
	p.leave(b, true)
	putBatch(b)
}

func (p *Poller) progress(again bool) {
	if p.enter() {
		b := getBatch()
		if again || p.one == nil || p.armed.Load() || p.eventful.Load() {
			p.look(b, 0)
		} // else the arming looks first
		p.leave(b, again)
		putBatch(b)
	}
}

// notify is the completion queue's call, once for each Arm.
func (p *Poller) notify() {
	p.armed.Store(false)
	p.progress(p.lately())
}

// Event adds an event, which comes after the completions that are in the queue. An identifier's handler may be it.
func (p *Poller) Event(ev verbs.Event) {
	p.evMu.Lock()
	p.events = append(p.events, ev)
	p.eventful.Store(true)
	p.evMu.Unlock()
	p.Progress()
}

func (p *Poller) takeEvent() (ev verbs.Event, ok bool) {
	p.evMu.Lock()
	defer p.evMu.Unlock()
	if len(p.events) == 0 {
		return ev, false
	}
	ev = p.events[0]
	p.events = p.events[1:]
	if len(p.events) == 0 {
		p.events = nil
		p.eventful.Store(false)
	}
	return ev, true
}

// enter takes the role of poller, or leaves a mark for who has it.
func (p *Poller) enter() bool {
	for {
		switch p.role.Load() {
		case roleIdle:
			if p.role.CompareAndSwap(roleIdle, rolePolling) {
				return true
			}
		case rolePolling:
			if p.role.CompareAndSwap(rolePolling, roleAgain) {
				return false
			}
		default:
			return false
		}
	}
}

// leave gives the role up. Armed first and polled afterwards, the queue calls for
// what comes from now on. It may rest unarmed if its caller expects to come again soon.
func (p *Poller) leave(b *batch, again bool) {
	for {
		if !p.armed.Load() && (!again || !p.mayRest()) {
			p.arm(b)
		}
		if p.role.CompareAndSwap(rolePolling, roleIdle) {
			return
		}
		p.role.Store(rolePolling)
		p.drain(b)
	}
}

// arm arms the queue and handles what came before.
func (p *Poller) arm(b *batch) {
	for p.one != nil {
		p.armed.Store(true)
		n, armed, err := p.one.PollOrArm(b.wc[:], 0, true)
		if !armed {
			p.armed.Store(false)
		}
		switch {
		case p.handle(b, n, err) == 0:
			return
		case armed:
			p.drain(b)
			return
		}
	}
	p.armed.Store(true)
	if err := p.cq.Arm(); err != nil {
		p.h.HandleFailure(err)
	}
	p.drain(b)
}

// look is drain, but where polls are dear only one, which looks on for a time.
// Before the role is given up, the queue is looked at once more anyway.
// It tells how many completions there were, if it was one.
func (p *Poller) look(b *batch, spin time.Duration) int {
	if p.one == nil || p.eventful.Load() {
		p.drain(b)
		return 0
	}
	n, _, err := p.one.PollOrArm(b.wc[:], spin, false)
	return p.handle(b, n, err)
}

// handle handles what a poll has returned, and tells how many completions that were.
func (p *Poller) handle(b *batch, n int, err error) int {
	if p.translate != nil {
		p.translate(b.wc[:n])
	}
	if n > 0 {
		p.h.HandleCompletions(b.wc[:n])
	}
	if err != nil {
		p.h.HandleFailure(err)
		return 0
	}
	return n
}

// drain handles completions and events until there are none.
func (p *Poller) drain(b *batch) {
	for {
		// An event is taken first and handled last: what completed before it comes before it.
		ev, ok := p.takeEvent()
		for {
			if n, err := p.cq.Poll(b.wc[:]); p.handle(b, n, err) == 0 {
				break
			}
		}
		if !ok {
			return
		}
		p.h.HandleEvent(ev)
	}
}

// Stop waits for who polls, and lets nobody poll any more. It must not be called from a handler.
func (p *Poller) Stop() {
	if p.started.Swap(true) {
		for !p.role.CompareAndSwap(roleIdle, roleClosed) && p.role.Load() != roleClosed {
			runtime.Gosched() // a poller is at work, for microseconds
		}
	} else {
		p.role.Store(roleClosed)
	}
	p.rest.close()
}

// batch is a poller's buffer of completions.
type batch struct{ wc [32]verbs.WC }

var batches = sync.Pool{New: func() any { return new(batch) }}

func getBatch() *batch  { return batches.Get().(*batch) }
func putBatch(b *batch) { batches.Put(b) }
