package softroce

import (
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
)

// requester is the sending half of a connection.
//
// Requests have their PSNs from the moment they are posted. Four of them move:
//
//	una   the oldest not acknowledged, or whose response has not come
//	nxt   the next to send; after a loss it goes back to una
//	max   the one after the highest ever sent
//	end   the one after the last request posted
//
// una <= nxt <= max <= end, modulo 2^24. A READ has the PSNs of its responses.
type requester struct {
	una, nxt, max, end uint32

	// READs, atomics, FLUSHes and ATOMIC WRITEs that are outstanding. seen is una, or ahead of it by what came of a READ
	// in the run of packets at hand.
	asked  askedQueue
	seen   uint32
	denied uint8 // how often the peer refused a later request, see deniedAgain

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

	flushMean, flushVar int64 // how long FLUSHes take, see flushRTO

	nakPSN uint32 // of the last sequence NAK obeyed
	nakAt  int64  // 0: none yet

	rnrRetry, rnrLeft uint8
	rnrUntil          int64 // 0: the peer is ready

	inflight int64  // cost of what is between paid and nxt
	paid     uint32 // between una and paid are probes, which take no room from others
	granted  int64  // under congestion.mu, as are the next four
	need     int64  // at least
	want     int64  // what it could send
	waiting  bool
	waitNext *rc

	joins joins

	timer lazyTimer
	fire  func()
}

// queued gives a posted request its PSNs.
func (r *rc) queued(e *sendWQE, wr *verbs.SendWR) {
	switch e.op {
	case verbs.OpFlush:
		e.setFlush(wr)
	case verbs.OpAtomicWrite:
		e.setAtomicWrite()
	}
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
	for n := r.maySend(&credit); n > 0; {
		e, packet := r.q.sq.at(r.cur), r.curPacket
		if !r.begin(w, e) {
			e.status = verbs.LocProtErr
			break
		}
		psn := r.nxt
		r.nxt = wire.PSNAdd(r.nxt, n)
		if r.timeouts == 0 {
			cost := r.cost(e, packet, packet+n)
			credit -= cost
			r.inflight += cost
		} else {
			r.paid = r.nxt
		}
		if r.curPacket += n; r.curPacket == e.packets {
			r.cur, r.curPacket = r.cur+1, 0
		}
		if responds(e.op) {
			r.ask(w, e, packet, n, psn)
		}
		sent++
		if n = 0; sent < maxTurn {
			n = r.maySend(&credit)
		}
		if responds(e.op) {
			continue
		}
		r.sinceAck++
		// What ends a message asks for an acknowledgement, and so does what is
		// followed by a pause that only an acknowledgement ends.
		ask := packet+1 == e.packets || n == 0 || r.sinceAck >= r.askEvery
		r.send(w, e, packet, psn, ask)
		if packet >= 2 && sent >= 3 && packet+1 < e.packets && r.timeouts == 0 {
			r.joins.watch(psn)
		}
	}
	// A request that is repeated may have been larger than the room for it.
	r.cc.give(w, credit)
	if sent > 0 {
		r.giveHeld(w, true)
		// The payload is the consumer's again as soon as an acknowledgement of
		// these packets, or of the ones they repeat, is processed.
		w.flush()
	}
	r.failLong(w)
	r.failHead(w)
	r.arm(w)
}

// failLong fails the connection if its packets have become too long for the way to the peer. Their
// length was agreed on for as long as it lasts: sending them again is in vain.
func (r *rc) failLong(w *work) {
	if r.q.state == stateRTS && r.path.TooLong() {
		r.q.fail(w, verbs.LocLenErr)
	}
}

// maySend tells whether the packet at nxt may be sent now, by the number of PSNs it takes: 0 if not, and
// more than one for a READ. credit is what is left of the room the path granted.
func (r *rc) maySend(credit *int64) uint32 {
	if r.cur == r.q.sq.tail || r.rnrUntil != 0 {
		return 0
	}
	room := int32(sendWindow)
	if r.ramp != 0 {
		room = min(room, int32(r.ramp))
	}
	if room -= wire.PSNDiff(r.nxt, r.una); room <= 0 {
		return 0
	}
	e := r.q.sq.at(r.cur)
	if e.status != verbs.Success || e.flags&verbs.Fence != 0 && r.asked.before(e.psn) || r.asked.slow > 0 && r.followsFlush(e) {
		return 0
	}
	if responds(e.op) {
		return r.mayAsk(e, uint32(room), credit)
	}
	need := r.cost(e, r.curPacket, r.curPacket+1)
	if *credit >= need || r.timeouts > 0 {
		return 1
	}
	most := need
	if r.curPacket+1 < e.packets || r.cur+1 != r.q.sq.tail {
		most = burst * (int64(r.mtu) + packetOverhead)
	}
	// What is left is too little for this packet, and added to.
	n := r.cc.take(r, need-*credit, most-*credit)
	if n == 0 {
		return 0
	}
	*credit += n
	return 1
}

// begin makes room for a packet of a request and holds its regions.
func (r *rc) begin(w *work, e *sendWQE) bool {
	if w.tx.Full() {
		w.flush()
	}
	if responds(e.op) {
		return true // what the SGL names is written to when the responses come
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
	h.Imm, h.InvKey = e.imm, e.imm
	r.add(w, h)
	gather(w, e, uint64(packet)*uint64(r.mtu), uint64(n))
	r.launched(w, psn, 1, ask)
}

// launched notes that a packet was sent that takes n PSNs. ask says that an answer will tell of the first.
func (r *rc) launched(w *work, psn, n uint32, ask bool) {
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
	r.max = wire.PSNAdd(psn, n)
	if ask && r.rttStart == 0 && r.asked.slow == 0 {
		r.rttPSN, r.rttStart = psn, w.now()
	}
}

// gather adds bytes off to off+n of a request's message to the last packet of the batch.
func gather(w *work, e *sendWQE, off, n uint64) {
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
	case last && op == verbs.OpSendWithInv && first:
		return wire.RCSendOnlyInv
	case last && op == verbs.OpSendWithInv:
		return wire.RCSendLastInv
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
