package softroce

import (
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// open is the kind of message whose packets are arriving.
type open uint8

const (
	openNone open = iota
	openSend
	openWrite
)

// due is the answer a run of packets asks for. A higher one replaces a lower: each
// NAK also acknowledges what comes before its PSN.
type due uint8

const (
	dueNothing due = iota
	dueAck
	dueSequence
	dueNotReady
	dueRefusal
)

// responder is the receiving half of a connection.
type responder struct {
	exp  uint32 // expected PSN
	msn  uint32 // messages completed
	open open

	region *mr    // openWrite
	off    uint64 // openWrite: where the next packet goes; openSend: bytes received
	left   uint32 // openWrite: bytes to come
	total  uint32 // openWrite: bytes of the message

	// After a gap one NAK is sent, and nothing more until the expected packet
	// arrives or the requester visibly starts over without it.
	nakSent bool
	ahead   uint32 // the last packet beyond the gap

	due         due
	syndrome    uint8 // of the refusal that ended the connection; 0: none did
	accepted    bool  // the connection ended with the request before the expected one, which was not refused
	refusedPSN  uint32
	notReadyPSN uint32
	aheadMost   uint32

	// READs, atomics, FLUSHes and ATOMIC WRITEs, see responder_read.go.
	resources    []resource // as many as the peer may have outstanding
	nextResource int        // the oldest
	replies      int        // how many of them are being answered
	replying     bool       // by device.replier

	// FLUSHes that make memory persistent, see flush.go.
	unflushed  int            // how many of the resources are not done
	persisting bool           // by device.persister
	flushing   sync.WaitGroup // it is at memory
	stalled    bool           // the expected request came before its time

	// Runs of nothing but duplicates: the answers do not arrive.
	repeat   bool // the run at hand is one so far
	repeats  uint8
	repeated int64 // time of the last one that counted
}

// A requester that repeats what was answered so often has not got the answers. Runs closer
// together than repeatPause are of one attempt.
const (
	maxRepeats  = 2
	repeatPause = int64(time.Millisecond)
)

// request takes a request packet (IBTA 9.7.4.1): PSN, order, access, resources,
// length, key and range, in this order.
func (r *rc) request(w *work, h *wire.Packet) {
	if d := wire.PSNDiff(h.PSN, r.exp); d > 0 {
		r.gap(h.PSN)
		return
	} else if d < 0 {
		r.q.dev.stats.duplicates.Add(1)
		r.repeat = true
		r.duplicate(w, h)
		return
	}
	r.nakSent = false
	r.repeat, r.repeats = false, 0

	op := h.Opcode
	switch {
	case op.Begins() != (r.open == openNone),
		!op.Begins() && op.IsSend() != (r.open == openSend):
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	case op == wire.RCReadRequest:
		r.takeRead(w, h)
		return
	case op.IsAtomic():
		r.takeAtomic(w, h)
		return
	case op == wire.RCFlush:
		r.takeFlush(w, h)
		return
	case op == wire.RCAtomicWrite:
		r.takeAtomicWrite(w, h)
		return
	case !op.IsSend() && !op.IsWrite():
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	if op.IsSend() && op.Begins() || op.IsWrite() && op.HasImm() {
		if !r.q.ready() {
			r.q.dev.stats.notReady.Add(1)
			r.answerWith(dueNotReady)
			r.notReadyPSN = h.PSN
			// The requester sends all of it again without being asked.
			r.nakSent, r.ahead = true, h.PSN
			return
		}
	}
	n := uint32(len(h.Payload))
	if !op.Ends() && (n != r.mtu || h.Pad != 0) || n > r.mtu || !op.Begins() && n == 0 {
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	var ok bool
	if op.IsSend() {
		ok = r.takeSend(w, h)
	} else {
		ok = r.takeWrite(w, h)
	}
	if !ok {
		return
	}
	r.exp = wire.PSNAdd(r.exp, 1)
	if op.Ends() {
		r.msn = wire.PSNAdd(r.msn, 1)
		r.open = openNone
	}
	if h.AckReq {
		r.answerWith(dueAck)
	}
}

// duplicate takes a request that was done before: the answer may be lost.
func (r *rc) duplicate(w *work, h *wire.Packet) {
	if h.Opcode.IsSend() || h.Opcode.IsWrite() {
		r.answerWith(dueAck)
	} else {
		r.again(w, h)
	}
}

// gap takes a packet ahead of the expected one.
func (r *rc) gap(psn uint32) {
	r.q.dev.stats.outOfOrder.Add(1)
	// What an earlier run left behind may be anywhere, seen from here.
	if r.due < dueSequence || wire.PSNDiff(psn, r.aheadMost) > 0 {
		r.aheadMost = psn
	}
	// A step back means that the requester has started over, and that the expected packet was lost once more.
	if !r.nakSent || wire.PSNDiff(psn, r.ahead) < 0 {
		r.answerWith(dueSequence)
		r.nakSent = true
	}
	r.ahead = psn
}

// takeSend scatters a packet of a SEND into the oldest receive.
func (r *rc) takeSend(w *work, h *wire.Packet) bool {
	e := r.q.rq.at(r.q.rq.head)
	if h.Opcode.Begins() {
		r.open, r.off = openSend, 0
	}
	status := verbs.LocProtErr
	if !e.bad {
		status = scatter(e.sgl, r.off, h.Payload)
	}
	switch status {
	case verbs.Success:
	case verbs.LocLenErr:
		r.failRecv(w, status, wire.SyndromeInvalidReq)
		return false
	default:
		r.failRecv(w, status, wire.SyndromeRemoteOp)
		return false
	}
	r.off += uint64(len(h.Payload))
	if r.off > maxMsgSize {
		r.failRecv(w, verbs.LocLenErr, wire.SyndromeInvalidReq)
		return false
	}
	if h.Opcode.Ends() {
		if h.Opcode.HasInv() && !r.invalidate(h.InvKey) {
			r.failInvalidate(w, h)
			return false
		}
		r.completeRecv(w, h, verbs.WCRecv, uint32(r.off))
	}
	return true
}

// scatter copies p to bytes off and following of what a list names.
func scatter(sgl []sge, off uint64, p []byte) verbs.Status {
	for i := range sgl {
		if len(p) == 0 {
			break
		}
		s := &sgl[i]
		if off >= uint64(s.n) {
			off -= uint64(s.n)
			continue
		}
		if !s.m.hold() {
			return verbs.LocProtErr
		}
		n := copy(s.m.mem[s.off+off:s.off+uint64(s.n)], p)
		s.m.release()
		off, p = 0, p[n:]
	}
	if len(p) > 0 {
		return verbs.LocLenErr
	}
	return verbs.Success
}

// takeWrite copies a packet of an RDMA WRITE to where it belongs.
func (r *rc) takeWrite(w *work, h *wire.Packet) bool {
	n := uint32(len(h.Payload))
	if h.Opcode.Begins() {
		r.total, r.left = h.RETH.Length, h.RETH.Length
		r.region, r.off = nil, 0
	}
	// All but the last packet leave something to come, and the last leaves nothing.
	if r.total > maxMsgSize || h.Opcode.Ends() && n != r.left || !h.Opcode.Ends() && n >= r.left {
		r.refuse(w, wire.SyndromeInvalidReq)
		return false
	}
	if h.Opcode.Begins() && r.total > 0 {
		// A WRITE of no bytes may name any key and address.
		m := r.q.find(h.RETH.RKey)
		ok := m != nil && m.access&verbs.RemoteWrite != 0
		if ok {
			r.off, ok = m.offset(h.RETH.VA, uint64(r.total))
		}
		if !ok {
			r.refuse(w, wire.SyndromeRemoteAccess)
			return false
		}
		r.region = m
	}
	if n > 0 {
		if !r.region.hold() {
			r.refuse(w, wire.SyndromeRemoteAccess)
			return false
		}
		copy(r.region.mem[r.off:], h.Payload)
		r.region.release()
	}
	r.off += uint64(n)
	r.left -= n
	r.open = openWrite
	if h.Opcode.HasImm() {
		r.completeRecv(w, h, verbs.WCRecvWithImm, r.total)
	}
	return true
}

// completeRecv completes the oldest receive.
func (r *rc) completeRecv(w *work, h *wire.Packet, op verbs.WCOpcode, n uint32) {
	wc := verbs.WC{ID: r.q.rq.at(r.q.rq.head).id, Op: op, ByteLen: n, QPN: r.q.num}
	if h.Opcode.HasImm() {
		wc.Imm, wc.Flags = h.Imm, verbs.WCWithImm
	} else if h.Opcode.HasInv() {
		wc.Imm, wc.Flags = h.InvKey, verbs.WCWithInv
	}
	r.q.rq.head++
	r.q.recvCQ.push(w, &wc)
	r.hold.told = true
}

// failRecv fails the oldest receive, and with it the connection.
func (r *rc) failRecv(w *work, status verbs.Status, syndrome uint8) {
	r.q.complete(w, r.q.recvCQ, r.q.rq.at(r.q.rq.head).id, status, verbs.WCRecv)
	r.q.rq.head++
	r.refuse(w, syndrome)
}

// refuse answers the expected packet by a NAK that ends the connection.
func (r *rc) refuse(w *work, syndrome uint8) { r.refuseAt(w, r.exp, syndrome) }

// refuseAt is refuse for a packet that came before.
func (r *rc) refuseAt(w *work, psn uint32, syndrome uint8) {
	r.q.dev.stats.refused.Add(1)
	r.answerWith(dueRefusal)
	r.syndrome, r.refusedPSN, r.accepted = syndrome, psn, false
	r.q.fail(w, verbs.Success)
}

func (r *rc) answerWith(d due) { r.due = max(r.due, d) }

// countRepeats takes another way for the answers, in case theirs leads to a
// process that does not listen.
func (r *rc) countRepeats(w *work) {
	if !r.repeat {
		return
	}
	r.repeat = false
	now := w.now()
	if r.repeats > 0 && now-r.repeated < repeatPause {
		return
	}
	r.repeated = now
	if r.repeats++; r.repeats == 0 {
		r.repeats -= sureTries // without end
	}
	if r.repeats >= maxRepeats {
		r.anotherWay(int(r.repeats-maxRepeats) + 1)
	}
}

// answer sends the one answer that a run of packets asks for.
func (r *rc) answer(w *work) {
	d := r.due
	r.due = dueNothing
	r.countRepeats(w)
	psn := r.exp
	var aeth wire.AETH
	switch d {
	case dueNothing:
		return
	case dueSequence:
		if wire.PSNDiff(r.exp, r.aheadMost) <= 0 {
			aeth = wire.NAK(wire.SyndromePSNSequence, r.msn)
			r.nakSent = true
			break
		}
		d = dueAck // the gap was filled, and what came ahead came again
	case dueNotReady:
		if r.notReadyPSN == r.exp {
			aeth = wire.RNRNAK(r.q.minRNRTimer, r.msn)
			break
		}
		d = dueAck // it came again while earlier READs were being answered
	case dueRefusal:
		aeth = wire.NAK(r.syndrome, r.msn)
		psn = r.refusedPSN
	}
	if d == dueAck {
		if r.mayHold() {
			r.holdAck(w)
			return
		}
		aeth = wire.ACK(r.msn)
		psn = wire.PSNAdd(r.exp, psnMask)
	}
	r.dropHeld(false)
	h := r.header(w, wire.RCAck, psn)
	h.AETH = aeth
	r.add(w, h)
}
