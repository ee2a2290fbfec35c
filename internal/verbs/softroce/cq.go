package softroce

import (
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

var errOverrun = fmt.Errorf("softroce: completion queue overrun: %w", syscall.ENOSPC)

const maxCQE = 1 << 20

var _ verbs.ArmPoller = (*cq)(nil)

// cq is a completion queue.
type cq struct {
	dev    *device
	depth  int
	notify func()
	made   leak.Mark

	mu      sync.Mutex
	ring    []verbs.WC // a power of two; grows up to depth
	head, n int
	armed   bool
	failed  bool // overrun
	closed  bool
	users   int // queue pairs, once for each of their queues

	notifying int           // Notify calls running
	quiet     chan struct{} // closed when there are none; made by Close
}

func (d *device) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) {
	if attr.Depth <= 0 || attr.Depth > maxCQE {
		return nil, fmt.Errorf("softroce: completion queue of depth %d, not 1 to %d: %w", attr.Depth, maxCQE, syscall.EINVAL)
	}
	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: completion queue: %w", net.ErrClosed)
	}
	c := &cq{dev: d, depth: attr.Depth, notify: attr.Notify}
	c.made.Made("completion queue")
	return c, nil
}

// Poll also reads the network when the queue is empty, so that a caller who
// spins needs no other goroutine to make progress.
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	n, err := c.take(wc)
	if n > 0 || err != nil || len(wc) == 0 {
		return n, err
	}
	if c.dev.poll() == 0 {
		return 0, nil
	}
	return c.take(wc)
}

func (c *cq) take(wc []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wc), c.n)
	for i := range n {
		wc[i] = c.ring[(c.head+i)&(len(c.ring)-1)]
	}
	if c.n -= n; c.n == 0 {
		c.head = 0 // a queue that keeps up stays in the same cache lines
	} else {
		c.head = (c.head + n) & (len(c.ring) - 1)
	}
	switch {
	case n == 0 && c.failed:
		return 0, errOverrun
	case n == 0 && c.closed:
		return 0, net.ErrClosed
	}
	return n, nil
}

func (c *cq) Arm() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	before := c.armed
	c.setArmed(true)
	c.mu.Unlock()
	if !before {
		c.dev.spins.attend()
	}
	return nil
}

// setArmed sets armed, of which the device knows the number.
func (c *cq) setArmed(on bool) {
	switch {
	case on && !c.armed:
		c.dev.spins.armed.Add(1)
	case !on && c.armed:
		c.dev.spins.armed.Add(-1)
	}
	c.armed = on
}

// push adds a completion. The queue pair that adds it is locked.
func (c *cq) push(w *work, wc *verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return
	}
	if c.n == c.depth {
		c.failed = true
		c.dev.stats.overruns.Add(1)
		w.overrun = append(w.overrun, c)
	} else {
		if c.n == len(c.ring) {
			c.grow()
		}
		c.ring[(c.head+c.n)&(len(c.ring)-1)] = *wc
		c.n++
	}
	if c.armed {
		c.setArmed(false)
		if c.notify != nil {
			w.notify = append(w.notify, c)
		}
	}
}

func (c *cq) grow() {
	ring := make([]verbs.WC, max(16, 2*len(c.ring)))
	for i := range c.n {
		ring[i] = c.ring[(c.head+i)&(len(c.ring)-1)]
	}
	c.ring, c.head = ring, 0
}

// notified calls Notify as push promised, unless the queue was closed meanwhile: Close waits
// for handlers that run and not for those that are due, since it may be called by
// the handler of another queue before them. No lock is held.
func (c *cq) notified() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.notifying++
	c.mu.Unlock()
	c.notify()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notifying--
	if c.notifying == 0 && c.quiet != nil {
		close(c.quiet)
		c.quiet = nil
	}
}

// use counts a queue pair's queue.
func (c *cq) use() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("softroce: completion queue: %w", net.ErrClosed)
	}
	c.users++
	return nil
}

func (c *cq) unuse() {
	c.mu.Lock()
	c.users--
	c.mu.Unlock()
}

func (c *cq) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.users > 0 {
		c.mu.Unlock()
		return fmt.Errorf("softroce: completion queue of a living queue pair: %w", verbs.ErrBusy)
	}
	c.closed = true
	c.setArmed(false)
	c.ring, c.head, c.n = nil, 0, 0
	var quiet chan struct{}
	if c.notifying > 0 {
		quiet = make(chan struct{})
		c.quiet = quiet
	}
	c.mu.Unlock()
	if quiet != nil {
		<-quiet
	}
	c.made.Gone()
	c.dev.release()
	return nil
}
