package verbs

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
)

// DefaultBacklog is the number of requests that wait for GetRequest where [ListenAttr] says nothing.
const DefaultBacklog = 1024

// ErrBacklog means that as many requests wait for GetRequest as may.
var ErrBacklog = errors.New("verbs: the listener's backlog is full")

// RequestQueue is for providers: the requests of a listener that wait for [Listener] GetRequest.
type RequestQueue struct {
	limit int
	wake  chan struct{} // capacity 1: there is something for one who waits
	room  chan struct{} // capacity 1: the queue is shorter than it was
	gone  chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool
	failed  error // why no more will come
	queue   []CMID
	taken   uint64
	dropped uint64
}

// NewRequestQueue makes a queue for a backlog, which is [DefaultBacklog] if it is not positive.
func NewRequestQueue(backlog int) *RequestQueue {
	if backlog <= 0 {
		backlog = DefaultBacklog
	}
	return &RequestQueue{limit: backlog, wake: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{})}
}

// Backlog is the number of requests that may wait.
func (q *RequestQueue) Backlog() int { return q.limit }

// Room is nil where Put may succeed, or what it would return. A request that meets [ErrBacklog] counts as dropped.
func (q *RequestQueue) Room() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.check()
}

func (q *RequestQueue) check() error {
	switch {
	case q.closed:
		return net.ErrClosed
	case len(q.queue) >= q.limit:
		q.dropped++
		return ErrBacklog
	}
	return nil
}

// Drop counts a request that is dropped for another reason.
func (q *RequestQueue) Drop() {
	q.mu.Lock()
	q.dropped++
	q.mu.Unlock()
}

// Put adds a request. What has to be done before anybody can take it, and only if it is added, does ready, which may be nil; it
// must not call the queue.
func (q *RequestQueue) Put(c CMID, ready func()) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(); err != nil {
		return err
	}
	if ready != nil {
		ready()
	}
	q.queue = append(q.queue, c)
	notify(q.wake)
	return nil
}

// Remove takes a request out of the queue, if it is still there.
func (q *RequestQueue) Remove(c CMID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.queue, c)
	if i < 0 {
		return false
	}
	q.queue = slices.Delete(q.queue, i, i+1)
	notify(q.room)
	return true
}

// Get waits for a request.
func (q *RequestQueue) Get(ctx context.Context) (CMID, error) {
	for {
		c, err := q.next(ctx.Err())
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-q.wake:
		case <-q.gone:
		case <-ctx.Done():
		}
	}
}

// next takes a request, unless whoever wants it has given up.
func (q *RequestQueue) next(gaveUp error) (CMID, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case gaveUp != nil:
		if len(q.queue) > 0 || q.failed != nil {
			notify(q.wake) // the wake-up that came with the end of ctx is another's
		}
		return nil, gaveUp
	case q.closed:
		return nil, net.ErrClosed
	case len(q.queue) == 0 && q.failed != nil:
		notify(q.wake) // for the next who waits
		return nil, q.failed
	case len(q.queue) == 0:
		return nil, nil
	}
	c := q.queue[0]
	q.queue[0] = nil
	q.queue = q.queue[1:]
	q.taken++
	if len(q.queue) > 0 {
		notify(q.wake) // for the next who waits
	}
	notify(q.room)
	return c, nil
}

// WaitForRoom waits until a request may be put, or the queue is closed.
func (q *RequestQueue) WaitForRoom() {
	for q.full() {
		select {
		case <-q.room:
		case <-q.gone:
		}
	}
}

func (q *RequestQueue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.closed && len(q.queue) >= q.limit
}

// Fail makes Get return an error once it has returned what is there.
func (q *RequestQueue) Fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = err
	notify(q.wake)
}

// Close wakes whoever waits, and returns the requests that nobody took, for their owner to reject. The second
// time it returns false.
func (q *RequestQueue) Close() (rest []CMID, first bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, false
	}
	q.closed = true
	rest, q.queue = q.queue, nil
	close(q.gone)
	return rest, true
}

// Gone is closed when the queue is.
func (q *RequestQueue) Gone() <-chan struct{} { return q.gone }

// Stats counts requests.
func (q *RequestQueue) Stats() ListenerStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return ListenerStats{Requests: q.taken + uint64(len(q.queue)), Dropped: q.dropped}
}

// notify leaves a mark in a channel of capacity 1.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
