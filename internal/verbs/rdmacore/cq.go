//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

var _ verbs.ArmPoller = (*cq)(nil)

// cq is a completion queue.
type cq struct {
	dev    *device
	token  uint64
	onNote func() // CQAttr.Notify
	shard  *shard // nil without onNote
	armed  atomic.Bool
	made   leak.Mark

	mu     sync.Mutex
	h      *coreCQ // nil once closed, or its device was given up
	closed bool
	failed error
	users  int // queue pairs, once for each of their queues
	uds    int // those for datagrams

	notifying int           // calls of onNote that run
	quiet     chan struct{} // closed when there are none; made by Close
}

// CreateCQ implements [verbs.Device].
func (d *device) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) {
	if attr.Depth <= 0 || attr.Depth > d.attr.maxCQE {
		return nil, fmt.Errorf("rdmacore: completion queue of depth %d, not 1 to %d: %w", attr.Depth, d.attr.maxCQE, syscall.EINVAL)
	}
	if !d.tryRetain() {
		return nil, fmt.Errorf("rdmacore: completion queue: %w", net.ErrClosed)
	}
	if err := d.enter(); err != nil {
		d.release()
		return nil, err
	}
	defer d.leave()
	c := &cq{dev: d, token: newToken(), onNote: attr.Notify}
	err := c.create(attr.Depth)
	if err != nil {
		d.release()
		return nil, d.failure("completion queue", d.c.p.host.memlock(attr.Depth*64, err))
	}
	c.made.Made("completion queue")
	return c, nil
}

func (c *cq) create(depth int) error {
	d := c.dev
	var ch *coreChan
	vector := 0
	if c.onNote != nil {
		s, i, err := d.shard()
		if err != nil {
			return err
		}
		c.shard = s
		ch = s.ch
		vector = i % max(1, d.attr.vectors)
	}
	h, err := coreCreateCQ(d.ctx, depth, c.token, ch, vector)
	if err != nil {
		return err
	}
	c.h = h
	d.mu.Lock()
	d.cqs[c.token] = c
	d.mu.Unlock()
	if d.gone.Load() {
		c.setFailed(d.goneError()) // it may have been told to all queues but this one, which nobody has armed
	}
	return nil
}

// Poll implements [verbs.CQ].
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	n, _, failed, err := c.poll(wc, 0, false)
	for _, q := range failed {
		q.broke()
	}
	return n, err
}

// spinMax bounds the time that a call stays in C. After 20 µs there Go's scheduler gives the processor away.
const spinMax = 16 * time.Microsecond

// PollOrArm implements [verbs.ArmPoller].
func (c *cq) PollOrArm(wc []verbs.WC, spin time.Duration, arm bool) (n int, armed bool, err error) {
	n, armed, failed, err := c.poll(wc, min(spin, spinMax), arm)
	for _, q := range failed {
		q.broke()
	}
	return n, armed, err
}

func (c *cq) poll(wc []verbs.WC, spin time.Duration, arm bool) (n int, armed bool, failed []*qp, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.h == nil || c.closed:
			return 0, armed, nil, c.dev.closedError()
		case len(wc) == 0:
			return 0, armed, nil, nil
		case c.failed != nil && c.dev.gone.Load():
			return 0, armed, nil, c.failed // the queue is the device's memory
		}
		var did bool
		first := arm && c.arming()
		n, did, err = corePoll(c.h, wc, c.uds > 0, int(spin), arm)
		armed = armed || did
		if did && c.shard != nil {
			c.shard.seat.attend()
		} else if first {
			c.disarmed()
		}
		switch {
		case err != nil:
			return 0, armed, nil, c.dev.failure("polling", err)
		case n == 0:
			return 0, armed, nil, c.failed
		}
		order.Acquire()
		if n, failed = c.dev.translate(wc[:n]); n > 0 {
			return n, armed, failed, nil
		}
	}
}

// Arm implements [verbs.CQ].
func (c *cq) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.h == nil || c.closed:
		return c.dev.closedError()
	case c.failed != nil && c.dev.gone.Load():
		return c.failed
	}
	first := c.arming()
	if err := coreArm(c.h); err != nil {
		if first {
			c.disarmed()
		}
		return c.dev.failure("arming a completion queue", err)
	}
	if c.shard != nil {
		c.shard.seat.attend()
	}
	return nil
}

// fail makes Poll fail once the queue is empty.
func (c *cq) fail(err error) {
	if c.setFailed(err) {
		c.notified()
	}
}

// setFailed is fail without Notify, and tells whether the queue had not failed before.
func (c *cq) setFailed(err error) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first = c.failed == nil; first {
		c.failed = err
	}
	return first
}

// notified calls Notify, unless the queue was closed meanwhile: Close waits
// for handlers that run and not for those that are due, since it may be called by
// the handler of another queue before them. No lock is held.
func (c *cq) notified() {
	c.mu.Lock()
	if c.closed || c.onNote == nil {
		c.mu.Unlock()
		return
	}
	c.notifying++
	c.mu.Unlock()
	c.onNote()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notifying--
	if c.notifying == 0 && c.quiet != nil {
		close(c.quiet)
		c.quiet = nil
	}
}

// use counts a queue pair's queue and returns C's.
func (c *cq) use(typ verbs.QPType) (*coreCQ, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil || c.closed {
		return nil, fmt.Errorf("rdmacore: completion queue: %w", c.dev.closedError())
	}
	c.users++
	if typ == verbs.UD {
		c.uds++
	}
	return c.h, nil
}

func (c *cq) unuse(typ verbs.QPType) {
	c.mu.Lock()
	c.users--
	if typ == verbs.UD {
		c.uds--
	}
	c.mu.Unlock()
}

// Close implements [verbs.CQ].
func (c *cq) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.users > 0 {
		c.mu.Unlock()
		return fmt.Errorf("rdmacore: completion queue of a living queue pair: %w", verbs.ErrBusy)
	}
	c.closed = true
	var quiet chan struct{}
	if c.notifying > 0 {
		quiet = make(chan struct{})
		c.quiet = quiet
	}
	c.mu.Unlock()
	if quiet != nil {
		<-quiet
	}
	d := c.dev
	d.mu.Lock()
	delete(d.cqs, c.token)
	d.mu.Unlock()
	c.disarmed()
	defer d.release()
	c.made.Gone()
	if err := c.destroy(); err != nil && !d.gone.Load() {
		return d.failure("destroying a completion queue", err)
	}
	return nil
}

func (c *cq) destroy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == nil {
		return nil
	}
	h := c.h
	c.h = nil
	return coreDestroyCQ(h)
}
