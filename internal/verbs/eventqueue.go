package verbs

import "sync"

// EventQueue is for providers: it delivers the events of an identifier to its handler, one at a
// time and in order, on a goroutine that lives while there are any. Events often arise inside
// a consumer's call, whose locks a handler may want, and the handler of one connection
// holds up no other's. The zero value is ready for use.
type EventQueue struct {
	mu      sync.Mutex
	cond    sync.Cond // running became false
	handler func(Event)
	queue   []Event
	running bool
	closed  bool
}

// Post adds an event, unless the queue is closed.
func (q *EventQueue) Post(e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.queue = append(q.queue, e)
	q.start()
}

// start sees to it that what there is is delivered. q.mu is held.
func (q *EventQueue) start() {
	if q.handler != nil && !q.running && len(q.queue) > 0 {
		q.running = true
		go q.run()
	}
}

// SetHandler replaces the handler. What waited for one is delivered to it.
func (q *EventQueue) SetHandler(h func(Event)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler = h
	q.start()
}

func (q *EventQueue) run() {
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

// Close drops what was not delivered. No handler runs once it returns.
func (q *EventQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.queue, q.handler = true, nil, nil
	q.cond.L = &q.mu
	for q.running {
		q.cond.Wait()
	}
}
