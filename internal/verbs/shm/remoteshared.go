//go:build linux

package shm

import "slices"

// A shared receive queue of the peer's has a ring for this process, and lends it receives. What is lent may be withdrawn until it is taken.
// Where the ring is empty the owner is asked whether it has one, which the process does at once, whatever its consumer does.

// sharedSlot is slot of a shared ring.
func (r *remoteRing) sharedSlot(q *qp) ([]byte, stall) {
	r.mu.Lock()
	switch r.reserved {
	case nil:
	case q:
		return r.oldest(), notStalled
	default:
		return nil, r.await(q, stallShare)
	}
	for range r.slots { // it could lend and withdraw for ever
		if r.tail.Load() == r.taken {
			r.waits.Store(1)
			if r.tail.Load() == r.taken {
				break
			}
			r.waits.Store(0)
		}
		slot := r.oldest()
		w := word64(slot, slotSGEs)
		switch n := w.Load(); n & whose {
		case lent:
			if w.CompareAndSwap(n, n&^whose|taken) {
				return slot, notStalled
			}
		case withdrawn:
			r.taken++
			r.head.Store(r.taken)
		}
	}
	if q.waitsFor != q.head+1 {
		q.waitsFor, q.asks = q.head+1, r.wants // it begins to wait
	}
	// The owner told the ones who asked then. Who comes later asks again, since a receive may have been lent to somebody else meanwhile,
	// who does not need it any more.
	if r.none && int16(r.refused-q.asks) > 0 {
		return nil, r.await(q, stallRecv)
	}
	if !r.asked {
		r.asked = true
		q.asks = r.wants
		r.wants++
		r.l.tell(header{Kind: msgWant, Extra: r.wants, ID: r.id})
	}
	return nil, r.await(q, stallShare)
}

// await notes that a queue pair waits, and unlocks.
func (r *remoteRing) await(q *qp, why stall) stall {
	if !slices.Contains(r.waiters, q) {
		r.waiters = append(r.waiters, q)
	}
	r.mu.Unlock()
	return why
}

// giveBack leaves the oldest receive to whoever comes next. It is locked.
func (r *remoteRing) giveBack() {
	if !r.gone {
		w := word64(r.oldest(), slotSGEs)
		w.Store(w.Load()&^whose | lent)
	}
	r.endTurn()
}

// endTurn lets others come to the receives. It is locked.
func (r *remoteRing) endTurn() {
	r.asked, r.none = false, false
	if r.reserved == nil {
		return
	}
	r.reserved = nil
	if len(r.waiters) > 0 {
		go r.l.resumeShared(r.id) // their locks come before this one
	}
}

// reserve keeps the oldest receive for a queue pair until a question of it has been answered, and unlocks.
func (r *remoteRing) reserve(q *qp, question uint64) {
	if r.l == nil {
		return
	}
	r.reserved, r.question = q, question
	r.mu.Unlock()
}

// answered is told that a question has been. Where nothing came of it the receive is free.
func (r *remoteRing) answered(q *qp, question uint64) {
	r.mu.Lock()
	if r.reserved == q && r.question == question {
		r.giveBack()
	}
	r.mu.Unlock()
	r.unuse()
}

// unuse is the end of a queue pair, or of a question.
func (r *remoteRing) unuse() {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.refs--; r.refs == 0 {
		if r.l.shared[r.id] == r {
			delete(r.l.shared, r.id)
		}
		r.m.release()
	}
}

// sharedRing finds the ring of a shared receive queue; nil: there is none.
func (l *link) sharedRing(id uint32) *remoteRing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shared[id]
}

// gotShared is told that a shared receive queue has receives, or none. That is no answer any more where receives came in between.
func (l *link) gotShared(h header) {
	r := l.sharedRing(h.ID)
	if r == nil {
		return
	}
	none := h.Kind == msgNone
	r.mu.Lock()
	stale := none && (!r.asked || h.Extra != r.wants)
	if !stale {
		r.asked, r.none, r.refused = false, none, h.Extra
	}
	r.mu.Unlock()
	if !stale {
		l.resumeShared(h.ID)
	}
}

// resumeShared lets those go on that wait for a shared receive queue.
func (l *link) resumeShared(id uint32) {
	r := l.sharedRing(id)
	if r == nil {
		return
	}
	r.mu.Lock()
	qs := r.waiters
	r.waiters = nil
	r.mu.Unlock()
	for _, q := range qs {
		q.resume()
	}
}

// forgetShared is told that nobody takes receives from a ring any more.
func (l *link) forgetShared(id uint32) {
	if r := l.sharedRing(id); r != nil {
		r.mu.Lock()
		r.gone = true
		r.mu.Unlock()
	}
}
