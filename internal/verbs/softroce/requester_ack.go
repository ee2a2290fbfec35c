package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// response takes what the peer's responder sends (IBTA 9.7.5.1, 9.9).
func (r *rc) response(w *work, h *wire.Packet) {
	psn := h.PSN
	if wire.PSNDiff(psn, r.seen) < 0 || wire.PSNDiff(psn, r.max) >= 0 {
		r.q.dev.stats.staleAcks.Add(1)
		return
	}
	r.kicked = true
	if h.Opcode != wire.RCAck {
		r.answered(w, h)
		return
	}
	switch h.AETH.Kind() {
	case wire.KindACK:
		if next := wire.PSNAdd(psn, 1); r.acknowledge(w, next) != next {
			r.lostAt(w, r.una)
		}
	case wire.KindRNR:
		r.notReady(w, psn, h.AETH.Code())
	case wire.KindNAK:
		r.refused(w, psn, h.AETH.Syndrome)
	default:
		r.q.dev.stats.malformed.Add(1)
	}
}

// advance takes everything before psn for acknowledged.
func (r *rc) advance(w *work, psn uint32) {
	if psn == r.una {
		return
	}
	r.seen, r.denied = psn, 0
	if since := r.asked.done(psn); since != 0 {
		r.flushTook(w.now() - since)
	}
	sq := &r.q.sq
	var freed int64
	for sq.head != sq.tail {
		e := sq.at(sq.head)
		done := wire.PSNDiff(psn, e.psn)
		if done <= 0 {
			break
		}
		from := max(0, wire.PSNDiff(r.paid, e.psn))
		to := min(done, int32(e.packets), max(0, wire.PSNDiff(r.nxt, e.psn)))
		if to > from {
			freed += r.cost(e, uint32(from), uint32(to))
		}
		if done < int32(e.packets) {
			break
		}
		if e.flags&verbs.Signaled != 0 {
			wc := verbs.WC{ID: e.id, Op: e.op.Completion(), QPN: r.q.num}
			if fetches(e.op) {
				wc.ByteLen = e.length
			}
			r.q.sendCQ.push(w, &wc)
		}
		sq.head++
	}
	if sq.head == sq.tail {
		sq.emptied()
	}
	if r.ramp != 0 {
		r.ramp = max(r.ramp+uint32(wire.PSNDiff(psn, r.una)), r.rampNext)
		if r.rampNext = 0; r.ramp >= sendWindow {
			r.ramp = 0
		}
	}
	r.una = psn
	r.joins.acknowledged(psn)
	if wire.PSNDiff(r.paid, psn) < 0 {
		r.paid = psn
	}
	now := w.now()
	if r.timeouts > 0 && wire.PSNDiff(psn, r.nxt) > 0 {
		// More than was repeated: only the answer was lost, or late (RFC 3522).
		if r.blamed {
			r.cc.acquit()
		}
	}
	if wire.PSNDiff(r.nxt, psn) < 0 {
		r.rewind()
	}
	if r.rttStart != 0 && wire.PSNDiff(psn, r.rttPSN) > 0 {
		r.measured(now - r.rttStart)
		r.cc.measured(now - r.rttStart)
		r.rttStart = 0
	}
	r.inflight -= freed
	r.cc.acked(w, freed)
	r.progress, r.timeouts = now, 0
	r.rnrLeft, r.rnrUntil = r.rnrRetry, 0
	r.rtoAt = now + r.rto()
}

// rewind moves nxt to una.
func (r *rc) rewind() {
	r.nxt, r.cur, r.curPacket = r.una, r.q.sq.head, 0
	if r.cur != r.q.sq.tail {
		r.curPacket = uint32(wire.PSNDiff(r.una, r.q.sq.at(r.cur).psn))
	}
}

// goBack takes everything that is not acknowledged for lost, to be sent again.
func (r *rc) goBack(w *work) {
	r.rttStart = 0 // an answer could be to either copy (Karn)
	r.sinceAck = 0
	r.rewind()
	n := r.inflight
	r.inflight, r.paid = 0, r.una
	r.cc.give(w, n)
}

// refused takes a NAK: what comes before psn has arrived.
func (r *rc) refused(w *work, psn uint32, syndrome uint8) {
	var status verbs.Status
	switch syndrome {
	case wire.SyndromePSNSequence:
		r.q.dev.stats.sequence.Add(1)
		r.lostAt(w, r.acknowledge(w, psn))
		return
	case wire.SyndromeInvalidReq:
		status = verbs.RemInvReqErr
	case wire.SyndromeRemoteAccess:
		status = verbs.RemAccessErr
	case wire.SyndromeRemoteOp:
		status = verbs.RemOpErr
	default:
		r.q.dev.stats.malformed.Add(1)
		return
	}
	if at := r.acknowledge(w, psn); at != psn && !r.deniedAgain(w, at) {
		return
	}
	// What is before it, if anything, will not be answered any more.
	pos := r.q.sq.head
	for ; pos+1 != r.q.sq.tail && wire.PSNDiff(r.q.sq.at(pos+1).psn, psn) <= 0; pos++ {
	}
	r.q.failAt(w, pos, status)
}

// maxDenials is how often responses are asked for that a refusal has overtaken.
const maxDenials = 4

// deniedAgain is asked about a refusal that came while responses from at on are missing. The peer sent them
// first, so they are lost and are asked for again. Most responders are silent then, softroce gives them; one that only
// repeats the refusal will not.
func (r *rc) deniedAgain(w *work, at uint32) bool {
	if r.denied == 0 || w.now()-r.nakAt >= max(r.srtt, minRTT) {
		if r.denied++; r.denied > maxDenials {
			return true
		}
		r.lostAt(w, at)
	}
	return false
}

// lostAt repeats everything from psn, which is una. Further NAKs of the round that
// is being repeated, and those that follow an RNR NAK, say nothing new.
func (r *rc) lostAt(w *work, psn uint32) {
	now := w.now()
	rtt := max(r.srtt, minRTT)
	if r.rnrUntil != 0 || r.nakAt != 0 && r.nakPSN == psn && now-r.nakAt < rtt {
		return
	}
	r.nakPSN, r.nakAt, r.timeouts = psn, now, 0
	r.cc.lost(now, rtt)
	r.goBack(w)
	// What was sent beyond the loss still fills the path: it is given a round trip to drain.
	r.ramp, r.rampNext = probePackets, uint32(wire.PSNDiff(r.max, r.una))/4
	r.rtoAt = now + r.rto()
}

// notReady takes an RNR NAK: the message of psn must be sent again, later.
func (r *rc) notReady(w *work, psn uint32, code uint8) {
	if at := r.acknowledge(w, psn); at != psn {
		r.lostAt(w, at)
		return
	}
	if r.rnrUntil != 0 {
		return // another copy of the NAK
	}
	r.q.stats.RNRs++
	r.q.dev.stats.rnrs.Add(1)
	if r.rnrRetry != 7 {
		if r.rnrLeft == 0 {
			r.q.fail(w, verbs.RNRRetryExcErr)
			return
		}
		r.rnrLeft--
	}
	r.goBack(w)
	r.timeouts = 0
	r.rnrUntil = w.now() + nanos(verbs.RNRTimer(code))
	r.arm(w)
}
