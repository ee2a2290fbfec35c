package rc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// Config says what a connection shall be able to do.
type Config struct {
	Handler        Handler
	SendWR, RecvWR int // queue depths
	Inline         int
	MinRNRTimer    uint8
	BusyPoll       time.Duration

	// Messages replaces immediates by messages of their own, as devices without immediates always do.
	Messages bool
}

// Conn is one end of a reliable connection.
type Conn struct {
	dev *Device
	id  verbs.CMID
	cq  verbs.CQ
	one verbs.ArmPoller // cq, where it spares calls; else nil
	qp  verbs.QP
	h   Handler

	sendWR, recvWR int
	inline         int
	messages       *messages // nil: there are immediates

	role    atomic.Uint32
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

// New makes the queues of a connection on an identifier, which from then on is
// the connection's. On failure it stays the caller's.
func New(id verbs.CMID, cfg *Config) (*Conn, error) {
	dev, err := OpenDevice(id)
	if err != nil {
		return nil, err
	}
	c := &Conn{dev: dev, id: id, h: cfg.Handler, sendWR: cfg.SendWR, recvWR: cfg.RecvWR, rest: rest{every: restTime}}
	c.busy.Store(int64(cfg.BusyPoll))
	refreshProcs()
	each, inline := 1, cfg.Inline // places in the send queue for each request
	if cfg.Messages || dev.iwarp {
		if c.messages, err = newMessages(dev, c.recvWR); err != nil {
			_ = dev.Release() // the first error says more
			return nil, fmt.Errorf("rc: receive buffers: %w", err)
		}
		each, inline = 2, max(inline, messageLen)
	}
	if m := dev.maxQPWR; m > 0 {
		c.sendWR, c.recvWR = min(c.sendWR, m/each), min(c.recvWR, m)
	}
	// Until Start nobody may poll.
	c.role.Store(rolePolling)
	if c.cq, err = dev.dev.CreateCQ(&verbs.CQAttr{Depth: each*c.sendWR + c.recvWR, Notify: c.notify}); err != nil {
		_, _ = c.freeMessages(), dev.Release() // the first error says more
		return nil, fmt.Errorf("rc: completion queue: %w", err)
	}
	c.one, _ = c.cq.(verbs.ArmPoller)
	c.qp, err = id.CreateQP(dev.pd, &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq,
		MaxSendWR: each * c.sendWR, MaxRecvWR: c.recvWR, MaxSendSGE: 1, MaxRecvSGE: 1,
		MaxInline: inline, MinRNRTimer: cfg.MinRNRTimer,
	})
	var limits verbs.QPCap
	if err == nil {
		limits = c.qp.Cap()
		if each > 1 && limits.MaxInline < messageLen {
			_ = c.qp.Close() // nothing was posted
			err = fmt.Errorf("device %s sends at most %d bytes inline, without immediates %d are needed: %w",
				dev.Name(), limits.MaxInline, messageLen, errors.ErrUnsupported)
		}
	}
	if err != nil {
		_, _, _ = c.cq.Close(), c.freeMessages(), dev.Release()
		return nil, fmt.Errorf("rc: queue pair: %w", err)
	}
	c.sendWR, c.recvWR = min(c.sendWR, limits.MaxSendWR/each), min(c.recvWR, limits.MaxRecvWR)
	c.inline = limits.MaxInline
	id.SetHandler(c.event)
	return c, nil
}

// Device is the device the connection runs on. It stays open until Release.
func (c *Conn) Device() *Device { return c.dev }

// ID is the connection's identifier.
func (c *Conn) ID() verbs.CMID { return c.id }

// QP is the queue pair. What is posted to it directly is the caller's to count.
func (c *Conn) QP() verbs.QP { return c.qp }

// Messages tells whether immediates are messages of their own. Completions of receives then say nothing of how many
// bytes the peer has written.
func (c *Conn) Messages() bool { return c.messages != nil }

// SetMessageOrder says which byte order such messages have, both ways: the peer's. It is little endian until then, and
// set before Start.
func (c *Conn) SetMessageOrder(o binary.ByteOrder) {
	if c.messages != nil {
		c.messages.order = o
	}
}

// freeMessages gives back what messages came in.
func (c *Conn) freeMessages() error {
	if c.messages == nil {
		return nil
	}
	return c.dev.PutRegistered(c.messages.mr, c.messages.block)
}

// SendWR, RecvWR and Inline tell the limits that the provider granted.
func (c *Conn) SendWR() int { return c.sendWR }
func (c *Conn) RecvWR() int { return c.recvWR }
func (c *Conn) Inline() int { return c.inline }

// Connect connects the active side. Completions and events wait for Start.
func (c *Conn) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	return c.id.Connect(ctx, p)
}

// Accept answers the request of the passive side.
func (c *Conn) Accept(p *verbs.ConnParam) error { return c.id.Accept(p) }

// Start lets completions and events reach the handler.
func (c *Conn) Start() {
	if c.started.Swap(true) {
		return
	}
	b := getBatch()
	c.drain(b)
	c.leave(b, false)
	putBatch(b)
}

// SetBusyPoll says how long a wait spins before it parks: 0 adaptive, negative
// never, positive that long.
func (c *Conn) SetBusyPoll(d time.Duration) { c.busy.Store(int64(d)) }

// Counts returns how often waits spun, parked and were woken.
func (c *Conn) Counts() (spins, parks, wakeups uint64) {
	return c.spins.Load(), c.parks.Load(), c.wakeups.Load()
}

// Progress handles what is there, unless another goroutine is about it.
func (c *Conn) Progress() { c.progress(false) }

func (c *Conn) progress(again bool) {
	if c.enter() {
		b := getBatch()
		c.look(b, 0)
		c.leave(b, again)
		putBatch(b)
	}
}

// notify is the completion queue's call, once for each Arm.
func (c *Conn) notify() {
	c.armed.Store(false)
	c.progress(c.lately())
}

// event is the identifier's handler.
func (c *Conn) event(ev verbs.Event) {
	c.evMu.Lock()
	c.events = append(c.events, ev)
	c.eventful.Store(true)
	c.evMu.Unlock()
	c.Progress()
}

func (c *Conn) takeEvent() (ev verbs.Event, ok bool) {
	c.evMu.Lock()
	defer c.evMu.Unlock()
	if len(c.events) == 0 {
		return ev, false
	}
	ev = c.events[0]
	c.events = c.events[1:]
	if len(c.events) == 0 {
		c.events = nil
		c.eventful.Store(false)
	}
	return ev, true
}

// enter takes the role of poller, or leaves a mark for who has it.
func (c *Conn) enter() bool {
	for {
		switch c.role.Load() {
		case roleIdle:
			if c.role.CompareAndSwap(roleIdle, rolePolling) {
				return true
			}
		case rolePolling:
			if c.role.CompareAndSwap(rolePolling, roleAgain) {
				return false
			}
		default:
			return false
		}
	}
}

// leave gives the role up. Armed first and polled afterwards, the queue calls for
// what comes from now on. It may rest unarmed if its caller expects to come again soon.
func (c *Conn) leave(b *batch, again bool) {
	for {
		if !c.armed.Load() && (!again || !c.mayRest()) {
			c.arm(b)
		}
		if c.role.CompareAndSwap(rolePolling, roleIdle) {
			return
		}
		c.role.Store(rolePolling)
		c.drain(b)
	}
}

// arm arms the queue and handles what came before.
func (c *Conn) arm(b *batch) {
	for c.one != nil {
		c.armed.Store(true)
		n, armed, err := c.one.PollOrArm(b.wc[:], 0, true)
		if !armed {
			c.armed.Store(false)
		}
		switch {
		case c.handle(b, n, err) == 0:
			return
		case armed:
			c.drain(b)
			return
		}
	}
	c.armed.Store(true)
	if err := c.cq.Arm(); err != nil {
		c.h.HandleFailure(err)
	}
	c.drain(b)
}

// look is drain, but where polls are dear only one, which looks on for a time.
// Before the role is given up, the queue is looked at once more anyway.
// It tells how many completions there were, if it was one.
func (c *Conn) look(b *batch, spin time.Duration) int {
	if c.one == nil || c.eventful.Load() {
		c.drain(b)
		return 0
	}
	n, _, err := c.one.PollOrArm(b.wc[:], spin, false)
	return c.handle(b, n, err)
}

// handle handles what a poll has returned, and tells how many completions that were.
func (c *Conn) handle(b *batch, n int, err error) int {
	if c.messages != nil {
		c.messages.translate(b.wc[:n])
	}
	if n > 0 {
		c.h.HandleCompletions(b.wc[:n])
	}
	if err != nil {
		c.h.HandleFailure(err)
		return 0
	}
	return n
}

// drain handles completions and events until there are none.
func (c *Conn) drain(b *batch) {
	for {
		// An event is taken first and handled last: what completed before it comes before it.
		ev, ok := c.takeEvent()
		for {
			if n, err := c.cq.Poll(b.wc[:]); c.handle(b, n, err) == 0 {
				break
			}
		}
		if !ok {
			return
		}
		c.h.HandleEvent(ev)
	}
}

// batch is a poller's buffer of completions.
type batch struct{ wc [32]verbs.WC }

var batches = sync.Pool{New: func() any { return new(batch) }}

func getBatch() *batch  { return batches.Get().(*batch) }
func putBatch(b *batch) { batches.Put(b) }

// receives are work requests without buffers, which only immediates consume.
var receives [64]verbs.RecvWR

// RecvBit is set in the ID of every receive that PostReceives posted.
const RecvBit = 1 << 63

func init() {
	for i := range receives {
		receives[i].ID = RecvBit
	}
}

// PostReceives posts n receives without buffers of the caller's, and returns how many were taken.
func (c *Conn) PostReceives(n int) (int, error) {
	if c.messages != nil {
		return c.messages.post(c.qp, n)
	}
	for done := 0; done < n; {
		k, err := c.qp.PostRecv(receives[:min(n-done, len(receives))])
		done += k
		if err != nil || k == 0 {
			return done, err
		}
	}
	return n, nil
}

// ToError stops all transfer; every outstanding request completes as flushed.
func (c *Conn) ToError() error { return c.qp.ToError() }

// Abort disconnects so that the peer sees a failure, where the provider can.
func (c *Conn) Abort() {
	_ = c.qp.ToError() // it may be there already
	if a, ok := c.id.(verbs.Aborter); ok {
		_ = a.Abort() // an error means that there is nothing to disconnect
	}
}

// Close disconnects if need be, and destroys the queue pair, the completion queue
// and the identifier. Once it returns the handler does not run and no memory is touched
// any more. It must not be called from a handler, nor twice.
func (c *Conn) Close() error {
	// An error of Disconnect means that there is nothing to disconnect.
	_, _ = c.id.Disconnect(), c.qp.ToError()
	if c.started.Swap(true) {
		for !c.role.CompareAndSwap(roleIdle, roleClosed) {
			runtime.Gosched() // a poller is at work, for microseconds
		}
	} else {
		c.role.Store(roleClosed)
	}
	c.rest.close()
	err := c.qp.Close()
	if e := c.cq.Close(); err == nil {
		err = e
	}
	if e := c.id.Close(); err == nil {
		err = e
	}
	if e := c.freeMessages(); err == nil {
		err = e
	}
	return err
}

// Release gives the device up, after the memory that came from it.
func (c *Conn) Release() error { return c.dev.Release() }
