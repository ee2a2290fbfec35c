package rpma

import (
	"context"
	"iter"
	"net"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/rc"
)

// CQ is a completion queue. A connection has one for its operations and receives; one for its receives alone if
// [ConnConfig].RCQSize says so; a shared receive queue has one unless its configuration says otherwise.
//
// The operations of [Conn.Do] and those that succeed with [CompletionOnError] do not appear in it. It
// does not overrun: what has not been polled keeps its place in the send or receive queue.
type CQ struct {
	bell   *bell
	shared bool
	over   func() bool // nothing will come any more
	closed func() bool
	ended  func() error // why
	polled func(sends, recvs int)
	ready  func() bool

	n    atomic.Int32 // len of ring used
	mu   sync.Mutex
	ring []Completion // a power of two
	head int
}

func (q *CQ) init(b *bell) {
	q.bell = b
	q.ready = func() bool { return q.n.Load() > 0 || q.over() }
}

// push adds a completion. The bell is to be rung afterwards, with no lock held.
func (q *CQ) push(c *Completion) {
	q.mu.Lock()
	n := int(q.n.Load())
	if n == len(q.ring) {
		ring := make([]Completion, max(16, 2*n))
		for i := range n {
			ring[i] = q.ring[(q.head+i)&(n-1)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+n)&(len(q.ring)-1)] = *c
	q.n.Store(int32(n + 1))
	q.mu.Unlock()
}

// take moves completions into wc.
func (q *CQ) take(wc []Completion) int {
	if q.n.Load() == 0 {
		return 0
	}
	q.mu.Lock()
	have := int(q.n.Load())
	n := min(len(wc), have)
	recvs := 0
	for i := range n {
		wc[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		if wc[i].recv {
			recvs++
		}
	}
	q.head = (q.head + n) & (len(q.ring) - 1)
	q.n.Store(int32(have - n))
	q.mu.Unlock()
	if n > 0 {
		q.polled(n-recvs, recvs)
	}
	return n
}

// Poll moves completions into wc, oldest first, and returns their number. It never waits: an empty queue gives 0. It
// fails once the connection is closed and its last completion was polled.
func (q *CQ) Poll(wc []Completion) (int, error) {
	if len(wc) == 0 {
		return 0, invalid("poll", "no room for completions")
	}
	if n := q.take(wc); n > 0 {
		return n, nil
	}
	q.bell.poller.Poll()
	if n := q.take(wc); n > 0 {
		return n, nil
	}
	if q.closed() {
		if n := q.take(wc); n > 0 { // those of the end itself
			return n, nil
		}
		return 0, &Error{Op: "poll", Code: ErrProvider, Err: net.ErrClosed}
	}
	return 0, nil
}

// Wait waits until Poll may find something. Another goroutine may be faster: finding nothing then is no error. It fails with
// [ErrNoCompletion] when ctx ends, or when the connection is over and nothing will complete any more.
func (q *CQ) Wait(ctx context.Context) error {
	const op = "wait"
	if q.shared {
		return &Error{Op: op, Code: ErrSharedChannel}
	}
	if err := q.bell.wait(ctx, op, q.ready); err != nil {
		return err
	}
	if q.n.Load() == 0 && q.over() && q.n.Load() == 0 {
		return &Error{Op: op, Code: ErrNoCompletion, Err: q.ended()}
	}
	return nil
}

// Completions polls, and waits where there is nothing, until ctx ends or the connection is over, which the last pair
// tells with an error.
func (q *CQ) Completions(ctx context.Context) iter.Seq2[Completion, error] {
	return func(yield func(Completion, error) bool) {
		var wc [1]Completion // what is taken is seen, also by one who stops
		for {
			n, err := q.Poll(wc[:])
			switch {
			case n > 0:
				if !yield(wc[0], nil) {
					return
				}
				continue
			case err == nil:
				err = q.Wait(ctx)
			}
			if err != nil {
				yield(Completion{}, err)
				return
			}
		}
	}
}

// bell tells those who wait for the completions of a poller.
type bell struct {
	poller *rc.Poller

	n       atomic.Int32 // len(waiting)
	mu      sync.Mutex
	waiting []*ear
	free    []*ear
	closed  bool
}

// ear is one who waits.
type ear struct {
	side  *rc.Side
	ready func() bool
}

// maxFree bounds what is kept for the next one who waits.
const maxFree = 16

// wait waits until ready.
func (b *bell) wait(ctx context.Context, op string, ready func() bool) error {
	if ready() {
		return nil
	}
	b.mu.Lock()
	var e *ear
	if n := len(b.free); n > 0 {
		e = b.free[n-1]
		b.free = b.free[:n-1]
	} else {
		e = new(ear)
		e.side = rc.NewSide(func() bool { return e.ready() })
	}
	e.ready = ready
	b.waiting = append(b.waiting, e)
	b.n.Store(int32(len(b.waiting)))
	b.mu.Unlock()

	e.side.SetContext(ctx)
	var err error
	for !ready() {
		if ctx.Err() != nil {
			err = waitError(op, ErrNoCompletion, ctx)
			break
		}
		if err = b.poller.Wait(e.side); err != nil {
			break
		}
	}

	b.mu.Lock()
	for i, o := range b.waiting {
		if o == e {
			last := len(b.waiting) - 1
			b.waiting[i] = b.waiting[last]
			b.waiting[last] = nil
			b.waiting = b.waiting[:last]
			break
		}
	}
	b.n.Store(int32(len(b.waiting)))
	if b.closed || len(b.free) == maxFree {
		e.side.Forget()
	} else {
		b.free = append(b.free, e)
	}
	b.mu.Unlock()
	return err
}

// close lets go of what is kept for the next one who waits.
func (b *bell) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, e := range b.free {
		e.side.Forget()
	}
	b.free = nil
}

// ring wakes those who have something to see. No lock of a connection is held.
func (b *bell) ring() {
	if b.n.Load() == 0 {
		return
	}
	b.mu.Lock()
	for _, e := range b.waiting {
		if e.ready() {
			e.side.Signal()
		}
	}
	b.mu.Unlock()
}
