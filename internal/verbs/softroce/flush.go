package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// FLUSH and ATOMIC WRITE, the memory placement extensions (IBTA annex A19). Both take a PSN, count as READs and atomics do, and are
// answered by an RDMA READ Response Only without data. What they did is not done again when they are repeated.

// places tells whether a request is one of the two.
func places(op verbs.Opcode) bool { return op == verbs.OpFlush || op == verbs.OpAtomicWrite }

// responds tells whether a request has a response of its own, and not only an acknowledgement.
func responds(op verbs.Opcode) bool { return fetches(op) || places(op) }

// setFlush fills in what only a FLUSH has.
func (e *sendWQE) setFlush(wr *verbs.SendWR) {
	var placement uint8
	if wr.FlushType&verbs.FlushGlobal != 0 {
		placement |= wire.PlacementGlobal
	}
	if wr.FlushType&verbs.FlushPersistent != 0 {
		placement |= wire.PlacementPersistent
	}
	e.feth = uint8(wire.NewFETH(placement, uint8(wr.FlushLevel)))
	if e.flushLength = wr.FlushLength; wr.FlushLevel == verbs.FlushMR {
		e.flushLength = 0
	}
}

// slow tells whether a request may take as long as a disk does.
func (e *sendWQE) slow() bool {
	return e.op == verbs.OpFlush && wire.FETH(e.feth).Placement()&wire.PlacementPersistent != 0
}

// followsFlush tells whether a request has to wait for a FLUSH that is outstanding. What reads or changes memory as a whole
// comes after what earlier FLUSHes do. A responder sees to that by itself; where making memory persistent takes time, sending
// such a request early is sending it twice.
func (r *rc) followsFlush(e *sendWQE) bool {
	return (e.op == verbs.OpAtomicWrite || isAtomic(e.op)) && r.asked.slowBefore(e.psn)
}

// slowBefore tells whether a FLUSH before psn is outstanding that may take long.
func (q *askedQueue) slowBefore(psn uint32) bool {
	for i := range q.n {
		if a := q.at(i); a.since != 0 && wire.PSNDiff(a.psn, psn) < 0 {
			return true
		}
	}
	return false
}

// again notes that a FLUSH was asked for once more.
func (q *askedQueue) again(a asked) {
	for i := range q.n {
		if b := q.at(i); b.psn == a.psn {
			b.since = a.since
		}
	}
}

// flushTook takes how long a FLUSH took from the last time it was asked for. The disk began with the first copy that arrived, so this is too
// little where a copy was sent too early; the next timeout is longer then. Counted from the first, each loss would make it
// longer, and with it the next one.
func (r *rc) flushTook(t int64) { smooth(&r.flushMean, &r.flushVar, t) }

// flushRTO is the timeout while a FLUSH is outstanding that may take long: its response says nothing about the path.
func (r *rc) flushRTO() int64 {
	if r.flushMean == 0 {
		return firstRTO
	}
	return r.flushMean + 4*r.flushVar
}

// takeFlush takes a FLUSH request. What was written before it is in memory; making that persistent is another goroutine's work.
func (r *rc) takeFlush(w *work, h *wire.Packet) {
	placement, level := h.FETH.Placement(), h.FETH.Level()
	const known = wire.PlacementGlobal | wire.PlacementPersistent
	if placement&known == 0 || placement&^known != 0 || level > wire.FlushMR ||
		level == wire.FlushRange && h.RETH.Length > maxMsgSize {
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	if !r.admit(w, h) {
		return
	}
	var access verbs.Access
	if placement&wire.PlacementGlobal != 0 {
		access |= verbs.FlushGlobal
	}
	if placement&wire.PlacementPersistent != 0 {
		access |= verbs.FlushPersistent
	}
	m := r.q.find(h.RETH.RKey)
	ok := m != nil && m.access&access == access
	var off uint64
	n := uint64(h.RETH.Length)
	if ok {
		if level == wire.FlushMR {
			n = m.size
		} else {
			off, ok = m.offset(h.RETH.VA, n)
		}
	}
	if !ok {
		r.refuse(w, wire.SyndromeRemoteAccess)
		return
	}
	pending := access&verbs.FlushPersistent != 0 && n > 0
	if pending && r.replies == 0 {
		r.acknowledgeNow(w) // what was written need not wait for the answer to the FLUSH
	}
	e := r.take(h.Opcode, 1)
	if pending {
		e.region, e.off, e.flush = m, off, n
		r.unflushed++
		r.persist()
	}
}

// acknowledgeNow gives an acknowledgement that is due or held, if there is one. No replies are due before it.
func (r *rc) acknowledgeNow(w *work) {
	if r.due != dueAck {
		r.giveHeld(w, false)
		return
	}
	h := r.header(w, wire.RCAck, wire.PSNAdd(r.exp, psnMask))
	h.AETH = wire.ACK(r.msn)
	r.add(w, h)
	r.due = dueNothing
}

// admit makes sure that there is room for one more READ, atomic, FLUSH or ATOMIC WRITE than are being answered.
func (r *rc) admit(w *work, h *wire.Packet) bool {
	if len(r.resources) > 0 {
		if r.resources[r.nextResource].reply != replyFirst {
			return true
		}
		for i := range r.resources {
			// rdma_rxe counts all of these but FLUSHes.
			if e := &r.resources[i]; e.op == wire.RCFlush && e.reply == replyFirst {
				r.stall(h)
				return false
			}
		}
	}
	r.refuse(w, wire.SyndromeInvalidReq)
	return false
}

// stall leaves the expected request until what comes before it is answered. It is lost; the requester is told then, and not before.
func (r *rc) stall(h *wire.Packet) {
	r.stalled = true
	r.nakSent, r.ahead = true, h.PSN
}

// unstall asks for a request that was left.
func (r *rc) unstall() {
	if !r.stalled {
		return
	}
	r.stalled = false
	if r.due != dueRefusal {
		r.due, r.aheadMost = dueSequence, r.exp
	}
}
