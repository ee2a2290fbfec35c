package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	// replyHere is how many READ responses leave at once, while others wait for the goroutine that reads
	// the network, and replyTurn how many when its turn comes round again on one that has time.
	replyHere = 16
	replyTurn = 32
)

// replyState says whether a READ or atomic is being answered.
type replyState uint8

const (
	replyNone  replyState = iota
	replyFirst            // for the first time
	replyAgain
)

// resource is a READ, atomic, FLUSH or ATOMIC WRITE that was taken. It is kept as long as the request may come again, because its
// response was lost: a READ is then executed again, of the others the old result is told (IBTA 9.7.5.1.4, 9.4.5 and annex A19).
type resource struct {
	psn, packets uint32
	msn          uint32
	op           wire.Opcode
	refusal      uint8  // the syndrome, if executing it failed
	original     uint64 // atomic

	rkey   uint32 // READ
	length uint32
	va     uint64
	region *mr // FLUSH, too
	off    uint64
	flush  uint64 // bytes that a FLUSH has still to make persistent

	// Of a reply, packets cur to end-1 are due. It began with packet start.
	reply           replyState
	start, cur, end uint32
	sent            uint32 // packets before it have been sent at least once
}

// takeRead takes a READ request.
func (r *rc) takeRead(w *work, h *wire.Packet) {
	if uint64(h.RETH.Length) > r.q.maxMessage() {
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	if !r.admit(w, h) {
		return
	}
	m, off, ok := r.readable(&h.RETH)
	if !ok {
		r.refuse(w, wire.SyndromeRemoteAccess)
		return
	}
	e := r.take(h.Opcode, max(1, (h.RETH.Length+r.mtu-1)/r.mtu))
	e.rkey, e.length, e.va, e.region, e.off = h.RETH.RKey, h.RETH.Length, h.RETH.VA, m, off
}

// readable finds what a READ asks for. Of no bytes it may name any key and address.
func (r *rc) readable(h *wire.RETH) (m *mr, off uint64, ok bool) {
	if h.Length == 0 {
		return nil, 0, true
	}
	if m = r.q.find(h.RKey); m == nil || m.access&verbs.RemoteRead == 0 {
		return nil, 0, false
	}
	off, ok = m.offset(h.VA, uint64(h.Length))
	return m, off, ok
}

// takeAtomic takes and executes a CmpSwap or FetchAdd.
func (r *rc) takeAtomic(w *work, h *wire.Packet) {
	a := &h.Atomic
	if a.VA%atomicSize != 0 {
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	if !r.admit(w, h) {
		return
	}
	m := r.q.find(a.RKey)
	ok := m != nil && m.access&verbs.RemoteAtomic != 0
	var off uint64
	if ok {
		off, ok = m.offset(a.VA, atomicSize)
	}
	if ok && r.unflushed > 0 {
		r.stall(h)
		return
	}
	if !ok || !m.hold() {
		r.refuse(w, wire.SyndromeRemoteAccess)
		return
	}
	var original uint64
	if word := m.mem[off : off+atomicSize]; h.Opcode == wire.RCFetchAdd {
		original = fetchAdd(word, a.SwapAdd)
	} else {
		original = compareSwap(word, a.Compare, a.SwapAdd)
	}
	m.release()
	r.take(h.Opcode, 1).original = original
}

// take makes a resource of the expected packet, whose answer takes n PSNs, in place of the oldest.
func (r *rc) take(op wire.Opcode, n uint32) *resource {
	e := &r.resources[r.nextResource]
	if r.nextResource++; r.nextResource == len(r.resources) {
		r.nextResource = 0
	}
	if e.reply != replyNone {
		r.replies-- // a repetition that nobody waits for any more
	}
	r.msn = wire.PSNAdd(r.msn, 1)
	*e = resource{op: op, psn: r.exp, packets: n, msn: r.msn, reply: replyFirst, end: n}
	r.replies++
	r.exp = wire.PSNAdd(r.exp, n)
	if r.due == dueAck {
		r.due = dueNothing // the response says it
	}
	r.dropHeld(false)
	return e
}

// again takes a request that was taken before and has a response. What is not known, or is not what was asked then,
// draws no answer.
func (r *rc) again(w *work, h *wire.Packet) {
	var e *resource
	var from uint32
	for i := range r.resources {
		c := &r.resources[i]
		if d := wire.PSNDiff(h.PSN, c.psn); d >= 0 && uint32(d) < c.packets {
			e, from = c, uint32(d)
			break
		}
	}
	if e == nil || e.op != h.Opcode {
		return
	}
	to := e.packets
	if e.op == wire.RCReadRequest {
		// It may ask for a part: from a packet on, and up to one.
		off := from * r.mtu
		switch n := h.RETH.Length; {
		case h.RETH.RKey != e.rkey || h.RETH.VA != e.va+uint64(off) || n > e.length-off:
			return
		case n < e.length-off:
			if n == 0 || n%r.mtu != 0 {
				return
			}
			to = from + n/r.mtu
		}
		m, off64, ok := r.readable(&h.RETH)
		if !ok {
			r.deny(w, h.PSN)
			return
		}
		e.region, e.off = m, off64-uint64(off)
	}
	switch {
	case e.reply == replyNone:
		e.reply, e.start, e.cur, e.end = replyAgain, from, from, to
		r.replies++
	case from < e.cur:
		e.start, e.cur, e.end = from, from, max(e.end, to)
	default:
		e.end = max(e.end, to) // it is about to be sent
	}
}

// respond sends what is due: at most limit READ responses and, once there are none left, the answer to what came
// behind them. It tells whether that is all.
func (r *rc) respond(w *work, limit int) bool {
	for r.replies > 0 {
		e := r.oldestReply()
		if e.flush > 0 {
			return true // it is made persistent, see persistOne
		}
		for ; e.cur < e.end; e.cur++ {
			if limit == 0 {
				return false
			}
			limit--
			if r.sendReply(w, e) {
				e.sent = max(e.sent, e.cur+1)
				continue
			}
			if e.reply == replyAgain {
				r.deny(w, wire.PSNAdd(e.psn, e.cur))
				break
			}
			syndrome := wire.SyndromeRemoteAccess
			if e.refusal != 0 {
				syndrome = e.refusal
			}
			r.dropReplies()
			r.refuseAt(w, wire.PSNAdd(e.psn, max(e.cur, e.sent)), syndrome)
			r.answer(w)
			return true
		}
		e.reply = replyNone
		r.replies--
	}
	r.unstall()
	r.answer(w)
	return true
}

// reply sends what is due, and leaves to other goroutines what takes longer: others wait for this one.
func (r *rc) reply(w *work) {
	switch {
	case r.replying:
	case !r.respond(w, replyHere):
		w.flush() // before what the other sends
		r.replying = true
		w.dev.replier.add(r)
	case r.unflushed > 0:
		w.flush()
	}
}

// oldestReply returns the first reply that is due. There is one.
func (r *rc) oldestReply() *resource {
	i := r.nextResource
	for r.resources[i].reply == replyNone {
		if i++; i == len(r.resources) {
			i = 0
		}
	}
	return &r.resources[i]
}

// sendReply puts the next packet of a reply into the batch, unless the region is closed. The bytes are copied: they
// may change while they are sent, and then the ICRC would be wrong.
func (r *rc) sendReply(w *work, e *resource) bool {
	psn := wire.PSNAdd(e.psn, e.cur)
	switch e.op {
	case wire.RCCompareSwap, wire.RCFetchAdd:
		h := r.header(w, wire.RCAtomicAck, psn)
		h.AETH, h.AtomicAck.Original = wire.ACK(e.msn), e.original
		r.add(w, h)
		return true
	case wire.RCFlush, wire.RCAtomicWrite:
		if e.refusal != 0 {
			return false
		}
		h := r.header(w, wire.RCReadResponseOnly, psn)
		h.AETH = wire.ACK(e.msn)
		r.add(w, h)
		return true
	}
	op := wire.RCReadResponseMid
	switch first, last := e.cur == e.start, e.cur+1 == e.end; {
	case first && last:
		op = wire.RCReadResponseOnly
	case first:
		op = wire.RCReadResponseFirst
	case last:
		op = wire.RCReadResponseLast
	}
	off := e.cur * r.mtu
	n := min(r.mtu, e.length-off)
	w.room(int(n))
	var payload []byte
	if n > 0 {
		if !e.region.hold() {
			return false
		}
		at := e.off + uint64(off)
		payload = w.copied(e.region.mem[at : at+uint64(n)])
		e.region.release()
	}
	h := r.header(w, op, psn)
	h.Pad = wire.PadFor(int(n))
	h.AETH = wire.ACK(e.msn)
	r.add(w, h)
	w.tx.Payload(payload)
	return true
}

// deny refuses to execute a READ again whose region is closed since, without ending the connection: the requester does that
// if it still waits. If it does not, the request is a copy that was late, and so is the refusal.
func (r *rc) deny(w *work, psn uint32) {
	r.q.dev.stats.refused.Add(1)
	h := r.header(w, wire.RCAck, psn)
	h.AETH = wire.NAK(wire.SyndromeRemoteAccess, r.msn)
	r.add(w, h)
}

// dropReplies gives up what is due of READs and atomics, and what was to follow it.
func (r *rc) dropReplies() {
	if r.replies == 0 {
		return
	}
	for i := range r.resources {
		r.resources[i].reply = replyNone
		r.forgetFlush(&r.resources[i])
	}
	r.replies, r.stalled = 0, false
	r.due = dueNothing
}
