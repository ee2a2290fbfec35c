//go:build linux

package shm

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// cq is a completion queue. Its ring is private; what the peer does is found in the rings of its queue pairs.
type cq struct {
	dev    *device
	num    uint32
	arm    *atomic.Uint32 // on the board: armed, or seated. Who changes it has Notify called
	depth  int
	notify func()
	made   leak.Mark

	reading   sync.RWMutex // held while sources are read: their memory goes after them
	sources   []source     // by slot; nil: free
	freeSlots []int
	members   map[source]member
	looks     []look       // of an open device's: where peers leave marks
	count     atomic.Int64 // n, for those without the lock

	mu        sync.Mutex
	ring      []entry // a power of two
	head, n   int
	failed    bool
	closed    bool
	knocks    bool // somebody sits at the link's porch for it
	users     int
	seats     []cqSeat // of an open device's
	notifying int
	quiet     chan struct{}
}

// entry is a completion, and the place in the send queue that is free once it was polled.
type entry struct {
	wc  verbs.WC
	q   *qp // nil: of a receive
	pos uint64
}

// CreateCQ implements [verbs.Device].
func (d *device) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) {
	if attr.Depth < 1 || attr.Depth > maxCQE {
		return nil, fmt.Errorf("shm: completion queue of %d entries, the limits are 1 and %d: %w", attr.Depth, maxCQE, syscall.EINVAL)
	}
	if !d.tryRetain() {
		return nil, fmt.Errorf("shm: completion queue: %w", net.ErrClosed)
	}
	c := &cq{dev: d, depth: attr.Depth, notify: attr.Notify, members: make(map[source]member)}
	if err := d.addCQ(c); err != nil {
		d.release()
		return nil, err
	}
	c.made.Made("completion queue")
	return c, nil
}

var errClosedCQ = fmt.Errorf("shm: completion queue: %w", net.ErrClosed)

// Poll implements [verbs.CQ].
func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.gather()
	return c.take(wc)
}

func (c *cq) take(wc []verbs.WC) (int, error) {
	if c.count.Load() == 0 && len(wc) > 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case c.closed:
			return 0, errClosedCQ
		case c.failed:
			return 0, fmt.Errorf("shm: completion queue of %d entries overran: %w", c.depth, syscall.ENOSPC)
		}
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(wc), c.n)
	for i := range n {
		e := &c.ring[c.head]
		wc[i] = e.wc
		if e.q != nil {
			e.q.polled.Store(e.pos)
			e.q = nil
		}
		c.head = (c.head + 1) & (len(c.ring) - 1)
	}
	c.n -= n
	c.count.Store(int64(c.n))
	return n, nil
}

// Arm implements [verbs.CQ]. The word is set first and rings are looked at afterwards, by the consumer's Poll; the peer
// moves a ring first and looks at the word afterwards.
func (c *cq) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosedCQ
	}
	if c.knocks {
		c.arm.Store(seated)
	} else {
		c.arm.Store(armed)
	}
	c.armSeats()
	return nil
}

const (
	spinStep  = int64(16 * time.Microsecond)
	spinTight = int64(2 * time.Microsecond) // before other threads are let run
	spinTurns = 16
)

// PollOrArm implements [verbs.ArmPoller].
func (c *cq) PollOrArm(wc []verbs.WC, spin time.Duration, arm bool) (n int, armed bool, err error) {
	n, err = c.Poll(wc)
	if n > 0 || err != nil {
		return n, false, err
	}
	if spin > 0 && len(wc) > 0 {
		limit := min(int64(spin), spinStep)
		for start := nanoseconds(); ; {
			for range spinTurns {
				if c.gather() || c.count.Load() > 0 {
					if n, err = c.take(wc); n > 0 || err != nil {
						return n, false, err
					}
				}
			}
			t := nanoseconds()
			if t-start > spinTight || crowded() {
				t = yield(t)
			}
			if t-start > limit {
				break
			}
		}
	}
	if !arm {
		return 0, false, nil
	}
	if err := c.Arm(); err != nil {
		return 0, false, err
	}
	n, err = c.Poll(wc)
	return n, true, err
}

// push adds a completion.
func (c *cq) push(wc *verbs.WC, q *qp, pos uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || c.closed {
		return
	}
	if c.n == c.depth {
		c.failed = true
		go c.failUsers() // their locks are held here
	} else {
		if c.n == len(c.ring) {
			c.grow()
		}
		c.ring[(c.head+c.n)&(len(c.ring)-1)] = entry{*wc, q, pos}
		c.n++
		c.count.Store(int64(c.n))
	}
	if a := c.arm.Load(); (a == armed || a == seated) && c.arm.CompareAndSwap(a, unarmed) && c.notify != nil {
		c.dev.notifier.add(c)
	}
}

func (c *cq) grow() {
	ring := make([]entry, max(16, 2*len(c.ring)))
	for i := range c.n {
		ring[i] = c.ring[(c.head+i)&(len(c.ring)-1)]
	}
	c.ring, c.head = ring, 0
}

// failUsers moves the queue pairs of a queue that overran to the error state.
func (c *cq) failUsers() {
	c.reading.RLock()
	sources := slices.Clone(c.sources)
	c.reading.RUnlock()
	for _, s := range sources {
		if q, ok := s.(*qp); ok {
			q.fail()
		}
	}
}

// notified calls Notify, unless the queue was closed meanwhile. No lock is held.
func (c *cq) notified() {
	c.mu.Lock()
	if c.closed || c.notify == nil {
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

// Close implements [verbs.CQ].
func (c *cq) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.users > 0 {
		c.mu.Unlock()
		return fmt.Errorf("shm: completion queue of a living queue pair: %w", verbs.ErrBusy)
	}
	c.closed = true
	c.arm.Store(0)
	c.ring, c.head, c.n = nil, 0, 0
	c.count.Store(0)
	var quiet chan struct{}
	if c.notifying > 0 {
		quiet = make(chan struct{})
		c.quiet = quiet
	}
	c.mu.Unlock()
	if quiet != nil {
		<-quiet
	}
	c.dev.removeCQ(c.num)
	c.made.Gone()
	c.dev.release()
	return nil
}

var _ verbs.ArmPoller = (*cq)(nil)
