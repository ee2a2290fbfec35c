package softroce

import "sync"

// notifier calls the consumer's handlers on a goroutine of its own, for events
// that arise while the consumer itself calls into the device and may hold locks
// that its handlers take.
type notifier struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	met    []*qp
	cqs    []*cq
	closed bool
}

// add takes copies of met and cqs.
func (n *notifier) add(met []*qp, cqs []*cq) {
	n.mu.Lock()
	n.met = append(n.met, met...)
	n.cqs = append(n.cqs, cqs...)
	n.mu.Unlock()
	n.ring()
}

func (n *notifier) ring() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// close lets run return. It does not wait: a handler may be the caller.
func (n *notifier) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.ring()
}

func (n *notifier) run() {
	var met []*qp
	var cqs []*cq
	for range n.wake {
		n.mu.Lock()
		met, n.met = n.met, met[:0]
		cqs, n.cqs = n.cqs, cqs[:0]
		closed := n.closed
		n.mu.Unlock()
		for i, q := range met {
			q.met()
			met[i] = nil
		}
		for i, c := range cqs {
			c.notified()
			cqs[i] = nil
		}
		if closed {
			return
		}
	}
}
