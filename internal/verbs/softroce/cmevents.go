package softroce

import (
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// eventQueue delivers the events of an identifier to its handler, one at a
// time and in order, on a goroutine that lives while there are any. Events often arise inside
// a consumer's call, whose locks a handler may want.
type eventQueue struct {
	mu      sync.Mutex
	cond    sync.Cond // running became false
	handler func(verbs.Event)
	queue   []verbs.Event
	running bool
	closed  bool
}

func (q *eventQueue) post(e verbs.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.queue = append(q.queue, e)
	if q.handler != nil && !q.running {
		q.running = true
		go q.run()
	}
}

// setHandler replaces the handler. What waited for one is delivered at once.
func (q *eventQueue) setHandler(h func(verbs.Event)) {
	q.mu.Lock()
	q.handler = h
	run := h != nil && !q.running && len(q.queue) > 0
	if run {
		q.running = true
	}
	q.mu.Unlock()
	if run {
		q.run()
	}
}

func (q *eventQueue) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) > 0 && q.handler != nil {
		e, h := q.queue[0], q.handler
		q.queue = q.queue[1:]
		q.mu.Unlock()
		h(e)
		q.mu.Lock()
	}
	if len(q.queue) == 0 {
		q.queue = nil
	}
	q.running = false
	if q.cond.L != nil {
		q.cond.Broadcast()
	}
}

// close drops what was not delivered. No handler runs once it returns.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.queue, q.handler = true, nil, nil
	q.cond.L = &q.mu
	for q.running {
		q.cond.Wait()
	}
}
