package softroce

import (
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	// sendWindow bounds the packets of a queue pair that are not acknowledged.
	sendWindow = 1024

	// ackEvery is how many packets at most go without asking for an acknowledgement.
	// A small window asks more often: when its end is lost, the answers to
	// what came before let more packets go, which show the loss.
	ackEvery = 16

	// burst is what one queue pair may take of the path's room at once, in packets.
	burst = 32

	// maxTurn bounds the packets of one turn, since others may wait for the
	// queue pair's lock, the reader of the network among them. Answers let it go on.
	maxTurn = 2 * netio.MaxBatch

	// probePackets are sent after a loss, until an answer comes.
	probePackets = 3

	// Retransmission timeouts, until and once there is an estimate (RFC 6298). They
	// are below the local ACK timeout, which counts whole seconds.
	firstRTO = int64(50 * time.Millisecond)
	minRTO   = int64(5 * time.Millisecond)
	maxRTO   = int64(2 * time.Second)
	maxShift = 10

	// minRTT is taken for a round trip where losses closer together count as one.
	minRTT = int64(100 * time.Microsecond)
)

// requester is the sending half of a connection.
//
// Requests have their PSNs from the moment they are posted. Four of them move:
//
//	una   the oldest not acknowledged
//	nxt   the next to send; after a loss it goes back to una
//	max   the one after the highest ever sent
//	end   the one after the last request posted
//
// una <= nxt <= max <= end, modulo 2^24.
type requester struct {
	una, nxt, max, end uint32

	cur       uint32 // position in the send queue of the request nxt belongs to
	curPacket uint32 // and the packet in it
	sinceAck  uint32 // packets since one that asked for an acknowledgement
	askEvery  uint32 // how many there may be; set by congestion.take

	ramp     uint32 // how far nxt may be from una after a loss; grows with progress; 0: no limit
	rampNext uint32 // what it grows to at least with the first progress
	kicked   bool   // responses may have opened the window

	// The connection is dead when giveUp passes without progress.
	ackTimeout, giveUp int64 // 0: never
	progress           int64 // time of the last, or of the first packet after silence
	rtoAt              int64 // when the oldest packet is taken for lost
	timeouts           uint  // in a row
	blamed             bool  // the path was taken for lossy at the first of them

	rttPSN       uint32 // the packet whose round trip is being measured
	rttStart     int64  // 0: none
	srtt, rttvar int64

	nakPSN uint32 // of the last sequence NAK obeyed
	nakAt  int64  // 0: none yet

	rnrRetry, rnrLeft uint8
	rnrUntil          int64 // 0: the peer is ready

	inflight int64  // cost of what is between paid and nxt
	paid     uint32 // between una and paid are probes, which take no room from others
	granted  int64  // under congestion.mu, as are the next two
	waiting  bool
	waitNext *rc

	timer lazyTimer
	fire  func()
}

// queued gives a posted request its PSNs.
func (r *rc) queued(e *sendWQE) {
	e.psn = r.end
	e.packets = max(1, (e.length+r.mtu-1)/r.mtu)
	r.end = wire.PSNAdd(r.end, e.packets)
}

// size returns the payload of a request's packet.
func (r *rc) size(e *sendWQE, packet uint32) uint32 {
	return min(r.mtu, e.length-packet*r.mtu)
}

// cost returns what packets from to to-1 of a request count for in the window.
func (r *rc) cost(e *sendWQE, from, to uint32) int64 {
	if to <= from {
		return 0
	}
	n := int64(to-from) * packetOverhead
	if to == e.packets {
		n += int64(r.size(e, to-1))
		to--
	}
	return n + int64(to-from)*int64(r.mtu)
}

// transmit sends what the window, the peer and the path allow.
func (r *rc) transmit(w *work) {
	if r.q.state != stateRTS {
		return
	}
	var credit int64
	sent := 0
	for more := r.maySend(&credit); more; {
		e, packet := r.q.sq.at(r.cur), r.curPacket
		if !r.begin(w, e) {
			e.status = verbs.LocProtErr
			break
		}
		psn := r.nxt
		r.nxt = wire.PSNAdd(r.nxt, 1)
		if r.timeouts == 0 {
			cost := r.cost(e, packet, packet+1)
			credit -= cost
			r.inflight += cost
		} else {
			r.paid = r.nxt
		}
		if r.curPacket++; r.curPacket == e.packets {
			r.cur, r.curPacket = r.cur+1, 0
		}
		sent++
		more = sent < maxTurn && r.maySend(&credit)
		r.sinceAck++
		// What ends a message asks for an acknowledgement, and so does what is
		// followed by a pause that only an acknowledgement ends.
		ask := packet+1 == e.packets || !more || r.sinceAck >= r.askEvery
		r.send(w, e, packet, psn, ask)
	}
	if credit > 0 {
		r.cc.give(w, credit)
	}
	if sent > 0 {
		// The payload is the consumer's again as soon as an acknowledgement of
		// these packets, or of the ones they repeat, is processed.
		w.flush()
	}
	r.failHead(w)
	r.arm(w)
}

// maySend tells whether the packet at nxt may be sent now. credit is what is left
// of the room the path granted.
func (r *rc) maySend(credit *int64) bool {
	switch {
	case r.cur == r.q.sq.tail, r.rnrUntil != 0:
		return false
	case wire.PSNDiff(r.nxt, r.una) >= sendWindow:
		return false
	case r.ramp != 0 && wire.PSNDiff(r.nxt, r.una) >= int32(r.ramp):
		return false
	}
	e := r.q.sq.at(r.cur)
	if e.status != verbs.Success {
		return false
	}
	need := r.cost(e, r.curPacket, r.curPacket+1)
	if *credit >= need || r.timeouts > 0 {
		return true
	}
	most := need
	if r.curPacket+1 < e.packets || r.cur+1 != r.q.sq.tail {
		most = burst * (int64(r.mtu) + packetOverhead)
	}
	// What is left is too little for this packet, and added to.
	n := r.cc.take(r, need-*credit, most-*credit)
	*credit += n
	return n > 0
}

// begin makes room for a packet of a request and holds its regions.
func (r *rc) begin(w *work, e *sendWQE) bool {
	if w.tx.Full() {
		w.flush()
	}
	for i := range e.sgl {
		if !w.hold(e.sgl[i].m) {
			return false
		}
	}
	return true
}

// send puts one packet of a request into the batch.
func (r *rc) send(w *work, e *sendWQE, packet, psn uint32, ask bool) {
	first, last := packet == 0, packet+1 == e.packets
	h := r.header(w, requestOpcode(e.op, first, last), psn)
	n := r.size(e, packet)
	h.Pad = wire.PadFor(int(n))
	h.AckReq = ask
	h.Solicited = last && e.flags&verbs.Solicited != 0 && e.op != verbs.OpWrite
	h.RETH = wire.RETH{VA: e.raddr, RKey: e.rkey, Length: e.length}
	h.Imm = e.imm
	r.add(w, h)
	r.gather(w, e, uint64(packet)*uint64(r.mtu), uint64(n))
	if ask {
		r.sinceAck = 0
	}

	if wire.PSNDiff(psn, r.max) < 0 {
		r.q.stats.Retransmits++
		r.q.dev.stats.retransmits.Add(1)
		return
	}
	if r.max == r.una { // nothing was outstanding
		r.progress = w.now()
		r.rtoAt = r.progress + r.rto()
	}
	r.max = wire.PSNAdd(psn, 1)
	if ask && r.rttStart == 0 {
		r.rttPSN, r.rttStart = psn, w.now()
	}
}

// gather adds bytes off to off+n of a request's message to the last packet of the batch.
func (r *rc) gather(w *work, e *sendWQE, off, n uint64) {
	if e.inlined {
		w.tx.Payload(e.inline[off : off+n])
		return
	}
	for i := range e.sgl {
		if n == 0 {
			return
		}
		s := &e.sgl[i]
		if off >= uint64(s.n) {
			off -= uint64(s.n)
			continue
		}
		k := min(n, uint64(s.n)-off)
		w.tx.Payload(s.m.mem[s.off+off : s.off+off+k])
		off, n = 0, n-k
	}
}

func requestOpcode(op verbs.Opcode, first, last bool) wire.Opcode {
	c := wire.RCSendFirst
	if op == verbs.OpWrite || op == verbs.OpWriteWithImm {
		c = wire.RCWriteFirst
	}
	switch {
	case first && last:
		c += wire.RCSendOnly
	case last:
		c += wire.RCSendLast
	case !first:
		c += wire.RCSendMiddle
	}
	if last && (op == verbs.OpSendWithImm || op == verbs.OpWriteWithImm) {
		c++
	}
	return c
}

// response takes an acknowledgement of the peer (IBTA 9.7.5.1, 9.9).
func (r *rc) response(w *work, h *wire.Packet) {
	psn := h.PSN
	if h.Opcode != wire.RCAck || wire.PSNDiff(psn, r.una) < 0 || wire.PSNDiff(psn, r.max) >= 0 {
		// No READ or atomic is outstanding, and what is acknowledged twice is stale.
		r.q.dev.stats.staleAcks.Add(1)
		return
	}
	r.kicked = true
	switch h.AETH.Kind() {
	case wire.KindACK:
		r.advance(w, wire.PSNAdd(psn, 1))
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
			r.q.complete(w, r.q.sendCQ, e.id, verbs.Success, sendWCOpcode(e.op))
		}
		sq.head++
	}
	if r.ramp != 0 {
		r.ramp = max(r.ramp+uint32(wire.PSNDiff(psn, r.una)), r.rampNext)
		if r.rampNext = 0; r.ramp >= sendWindow {
			r.ramp = 0
		}
	}
	r.una = psn
	if wire.PSNDiff(r.paid, psn) < 0 {
		r.paid = psn
	}
	now := w.now()
	if r.timeouts > 0 && wire.PSNDiff(psn, r.nxt) > 0 {
		// More than was repeated: nothing was lost, the answer was late (RFC 3522).
		r.measured(now - r.progress)
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
		r.advance(w, psn)
		r.lostAt(w, psn)
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
	r.advance(w, psn)
	r.q.fail(w, status)
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
	r.advance(w, psn)
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
	r.rnrUntil = w.now() + nanos(wire.RNRTimer(code))
	r.arm(w)
}

// failHead fails the oldest request if it could not be sent: those before it
// are done by then, so that outcomes come in order.
func (r *rc) failHead(w *work) {
	sq := &r.q.sq
	if r.q.state != stateRTS || sq.head == sq.tail {
		return
	}
	if s := sq.at(sq.head).status; s != verbs.Success {
		r.q.fail(w, s)
	}
}

// measured takes a round trip time (RFC 6298).
func (r *rc) measured(rtt int64) {
	if r.srtt == 0 {
		r.srtt, r.rttvar = rtt, rtt/2
		return
	}
	d := r.srtt - rtt
	if d < 0 {
		d = -d
	}
	r.rttvar += (d - r.rttvar) / 4
	r.srtt += (rtt - r.srtt) / 8
}

// rto returns the retransmission timeout, which doubles with each in a row.
func (r *rc) rto() int64 {
	t := firstRTO
	if r.srtt != 0 {
		t = max(minRTO, r.srtt+4*r.rttvar)
	}
	t = min(t<<min(r.timeouts, maxShift), maxRTO)
	if r.ackTimeout != 0 {
		t = min(t, r.ackTimeout)
	}
	return t
}

// arm sets the timer for what is outstanding; there is none otherwise.
func (r *rc) arm(w *work) {
	if r.q.state != stateRTS {
		return
	}
	var at int64
	switch {
	case r.rnrUntil != 0:
		at = r.rnrUntil
	case r.una != r.max:
		at = r.rtoAt
		if r.giveUp != 0 {
			at = min(at, r.progress+r.giveUp)
		}
	}
	r.timer.set(w, at, r.fire)
}

func (r *rc) onTimer() {
	w := r.q.dev.begin()
	r.q.mu.Lock()
	if r.q.state == stateRTS && r.timer.fired(w.now()) {
		r.timeout(w)
	}
	r.q.mu.Unlock()
	w.end(true)
}

func (r *rc) timeout(w *work) {
	now := w.now()
	switch {
	case r.rnrUntil != 0:
		// The message that was refused goes alone, until it is taken.
		r.rnrUntil = 0
		e := r.q.sq.at(r.q.sq.head)
		r.ramp, r.rampNext = e.packets-uint32(wire.PSNDiff(r.una, e.psn)), 0
		r.progress = now
		r.rtoAt = now + r.rto()
	case r.giveUp != 0 && now >= r.progress+r.giveUp:
		r.q.fail(w, verbs.RetryExcErr)
		return
	default:
		r.timeouts++
		r.q.dev.stats.timeouts.Add(1)
		if r.timeouts == 1 {
			// Further ones tell of the connection, not of the path it shares.
			r.blamed = r.cc.lost(now, max(r.srtt, minRTT))
		}
		if r.timeouts%2 == 0 {
			// Another way, in case this one leads to a process that does not listen.
			r.path.SetFlow(uint32(r.q.dev.cfg.random64()))
		} else if r.timeouts > 2 {
			r.path.SetSingle(true)
		}
		r.goBack(w)
		r.ramp, r.rampNext = probePackets, 0
		r.rtoAt = now + r.rto()
	}
	r.transmit(w)
}
