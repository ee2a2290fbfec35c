package softroce

import "sync"

// replier sends the responses to READs that take long, on a goroutine of its own, so that whoever reads the network
// goes on reading. Queue pairs have their turns one after the other.
type replier struct {
	start sync.Once
	wake  chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*rc
	next   []*rc
	closed bool
}

// add lets r have turns until it has nothing to send. r.replying is set.
func (p *replier) add(r *rc) {
	p.start.Do(func() { go p.run(r.q.dev) })
	p.mu.Lock()
	p.next = append(p.next, r)
	p.mu.Unlock()
	p.ring()
}

func (p *replier) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// close lets run return. It does not wait: a handler may be the caller.
func (p *replier) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.ring()
}

func (p *replier) run(d *device) {
	for range p.wake {
		for {
			p.mu.Lock()
			p.queue, p.next = p.next, p.queue[:0]
			closed := p.closed
			p.mu.Unlock()
			if closed {
				return
			}
			if len(p.queue) == 0 {
				break
			}
			for i, r := range p.queue {
				p.queue[i] = nil
				if !r.turn(d) {
					p.mu.Lock()
					p.next = append(p.next, r)
					p.mu.Unlock()
				}
			}
		}
	}
}

// turn sends some of what is due and tells whether that was all.
func (r *rc) turn(d *device) bool {
	w := d.begin()
	r.q.mu.Lock()
	done := r.respond(w, replyTurn)
	r.replying = !done
	r.giveHeld(w, false) // nobody else sees to it
	w.flush()            // before what another goroutine may send next
	r.q.mu.Unlock()
	w.end(true)
	return done
}
