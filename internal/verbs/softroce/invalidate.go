package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// invalidate ends a region's keys: from now on they are those of no region, for its owner too.
// What is in the middle of an access may finish it.
func (m *mr) invalidate() { m.invalid.Store(true) }

// invalidate does what a SEND with invalidate asks for, whose data are in place. Only a region that was
// registered for it can be invalidated: that of a program that never heard of this must not vanish under it
// (as with ibv_reg_mr: hardware and rdma_rxe invalidate memory windows and what a work request registered).
func (r *rc) invalidate(key uint32) bool {
	m := r.q.find(key)
	if m == nil || m.access&verbs.RemoteInvalidate == 0 {
		return false
	}
	m.invalidate()
	return true
}

// failInvalidate ends the connection with a message that has arrived, but names a key that cannot be invalidated. This
// side's consumer learns it (fault class J of IBTA 9.9.3). The peer does not: there is no NAK for it, and the message is acknowledged
// as any other, by rdma_rxe too.
func (r *rc) failInvalidate(w *work, h *wire.Packet) {
	q := r.q
	q.complete(w, q.recvCQ, q.rq.at(q.rq.head).id, verbs.RemInvReqErr, verbs.WCRecv)
	q.rq.head++
	r.exp = wire.PSNAdd(r.exp, 1)
	r.msn = wire.PSNAdd(r.msn, 1)
	r.open = openNone
	if h.AckReq {
		r.answerWith(dueAck)
	}
	r.accepted = true
	q.dev.stats.refused.Add(1)
	q.fail(w, verbs.Success)
}
