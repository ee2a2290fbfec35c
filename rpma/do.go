package rpma

import (
	"context"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// doing is one call of Do. All but flag is guarded by the connection's lock.
type doing struct {
	c    *Conn
	side *rc.Side
	flag atomic.Bool // go on: there is room, or all has completed

	pending   int  // requests on their way
	final     bool // no more will be posted
	abandoned bool // the call has returned
	waiting   bool // in the list of those that wait for room
	failed    bool
	op        OpCode
	id        uint64
	status    verbs.Status
	vendor    uint32

	next *doing
}

// Do posts operations in order, waiting for room where there is none, and waits until all have succeeded. The first failure is its error, which wraps
// a [*CompletionError]; what was posted behind it was not done, or is not known to be. Their Flags do not matter, and no completion queue tells of them.
//
// A read or write that is longer than the device can do at once is done in several parts. When ctx ends Do returns at
// once, but what it has posted may still be under way: its memory is not free before the connection is closed.
func (c *Conn) Do(ctx context.Context, ops ...Op) error {
	for i := range ops {
		if err := ops[i].check(c, true); err != nil {
			return err
		}
	}
	if len(ops) == 0 {
		return nil
	}
	switch {
	case c.limit == 0:
		return invalid("do", "a connection without room for operations (SQSize)")
	case ctx.Err() != nil:
		return waitError("do", ErrNoCompletion, ctx)
	}
	c.mu.Lock()
	d := c.getDoing()
	var at cursor
	var err error
	for {
		if c.first == nil || c.first == d {
			if err = c.post(ops, &at, d); err != nil || at.op == len(ops) || d.failed {
				break
			}
		}
		c.enqueue(d)
		d.flag.Store(false)
		c.mu.Unlock()
		err = c.await(ctx, d)
		c.mu.Lock()
		if err != nil {
			break
		}
	}
	c.dequeue(d)
	d.final = true
	if err == nil && d.pending > 0 {
		d.flag.Store(false)
		c.mu.Unlock()
		err = c.await(ctx, d)
		c.mu.Lock()
	}
	if err == nil && d.failed {
		err = d.failure()
	}
	d.abandoned = true
	if d.pending == 0 {
		c.putDoing(d)
	}
	c.mu.Unlock()
	return err
}

// await waits until the doing is told to go on.
func (c *Conn) await(ctx context.Context, d *doing) error {
	d.side.SetContext(ctx)
	for !d.flag.Load() {
		if ctx.Err() != nil {
			return waitError("do", ErrNoCompletion, ctx)
		}
		if err := c.poller.Wait(d.side); err != nil {
			return opError("do", err)
		}
	}
	return nil
}

// tell lets the doing go on.
func (d *doing) tell() {
	d.flag.Store(true)
	d.side.Signal()
}

// completed takes the outcome of one of its requests.
func (d *doing) completed(s *slot, status verbs.Status, vendor uint32) {
	d.pending--
	if status != verbs.Success && !d.failed {
		d.failed, d.op, d.id, d.status, d.vendor = true, s.op, s.id, status, vendor
	}
	switch {
	case d.pending > 0:
	case d.abandoned:
		d.c.putDoing(d)
	case d.final:
		d.tell()
	}
}

// failure is the error of the first request that failed.
func (d *doing) failure() error {
	e := &Error{
		Op: d.op.String(), Code: ErrProvider,
		Err: &CompletionError{ID: d.id, Status: Status(d.status), QPNum: d.c.qp.Num(), VendorErr: d.vendor},
	}
	if d.status == verbs.WRFlushErr {
		e.cause = d.c.Err()
		if e.cause == nil && d.c.closed {
			e.cause = errClosed
		}
	}
	return e
}

// enqueue puts the doing behind those that wait for room.
func (c *Conn) enqueue(d *doing) {
	if d.waiting {
		return
	}
	d.waiting = true
	if c.first == nil {
		c.first = d
	} else {
		c.last.next = d
	}
	c.last = d
}

// dequeue takes it out, and lets the next one look.
func (c *Conn) dequeue(d *doing) {
	if !d.waiting {
		return
	}
	d.waiting = false
	var before *doing
	for p := &c.first; *p != nil; p = &(*p).next {
		if *p == d {
			*p = d.next
			break
		}
		before = *p
	}
	if c.last == d {
		c.last = before
	}
	d.next = nil
	c.admit()
}

// admit lets the first one that waits for room go on, if there is some.
func (c *Conn) admit() {
	if c.first != nil && c.outstanding() < c.limit {
		c.first.tell()
	}
}

// admitAll lets all that wait see that the connection is over.
func (c *Conn) admitAll() {
	for d := c.first; d != nil; d = d.next {
		d.tell()
	}
}

// maxFreeDoings bounds what is kept for later calls.
const maxFreeDoings = 64

func (c *Conn) getDoing() *doing {
	d := c.free
	if d == nil {
		d = &doing{c: c}
		d.side = rc.NewSide(d.flag.Load)
		return d
	}
	c.free = d.next
	c.frees--
	d.next = nil
	d.final, d.abandoned, d.failed = false, false, false
	d.flag.Store(false)
	return d
}

func (c *Conn) putDoing(d *doing) {
	if c.closed {
		d.side.Forget()
	}
	if c.frees == maxFreeDoings {
		return
	}
	d.next = c.free
	c.free = d
	c.frees++
}
