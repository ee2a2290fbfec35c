package softroce

import (
	"encoding/binary"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	// maxRDAtomic is how many READs and atomics of a queue pair may be outstanding.
	maxRDAtomic = 16

	// readBytes is the most that one READ request on the wire asks for. A longer READ becomes several: nothing
	// but the asking keeps a responder from sending all of it at once, whatever the room here.
	readBytes = 128 << 10

	atomicSize = 8
)

// fetches tells whether the response to a request carries data: READs and atomics.
func fetches(op verbs.Opcode) bool { return op == verbs.OpRead || isAtomic(op) }

func isAtomic(op verbs.Opcode) bool { return op == verbs.OpCompareSwap || op == verbs.OpFetchAdd }

// asked is a READ, atomic, FLUSH or ATOMIC WRITE request on the wire: the PSNs of its responses.
type asked struct {
	psn, end uint32
	since    int64 // of a FLUSH that may take long: when it was asked for last; otherwise 0
}

// askedQueue holds the requests whose responses have not all come, oldest first.
type askedQueue struct {
	ring    []asked // as many as may be outstanding
	head, n int
	slow    int // how many of them may take long
}

func newAskedQueue(limit uint8) (q askedQueue) {
	if limit > 0 {
		q.ring = make([]asked, limit)
	}
	return q
}

func (q *askedQueue) full() bool { return q.n == len(q.ring) }

func (q *askedQueue) at(i int) *asked {
	if i += q.head; i >= len(q.ring) {
		i -= len(q.ring)
	}
	return &q.ring[i]
}

func (q *askedQueue) push(a asked) {
	q.n++
	*q.at(q.n - 1) = a
	if a.since != 0 {
		q.slow++
	}
}

// done takes out what has been answered: everything before psn. It returns since when the last of it was asked for that may take long,
// if any.
func (q *askedQueue) done(psn uint32) (since int64) {
	for q.n > 0 && wire.PSNDiff(q.ring[q.head].end, psn) <= 0 {
		if s := q.ring[q.head].since; s != 0 {
			since = s
			q.slow--
		}
		q.head = (q.head + 1) % len(q.ring)
		q.n--
	}
	return since
}

// before tells whether a request before psn is outstanding.
func (q *askedQueue) before(psn uint32) bool {
	return q.n > 0 && wire.PSNDiff(q.ring[q.head].psn, psn) < 0
}

// end returns where the responses end that psn is one of.
func (q *askedQueue) end(psn uint32) (end uint32, ok bool) {
	for i := range q.n {
		if a := q.at(i); wire.PSNDiff(a.psn, psn) <= 0 && wire.PSNDiff(a.end, psn) > 0 {
			return a.end, true
		}
	}
	return 0, false
}

// mayAsk is maySend for a READ or atomic at nxt. Its responses take room as if this side sent them: what
// bounds them is the path to the peer, and the buffers at this end of it.
func (r *rc) mayAsk(e *sendWQE, room uint32, credit *int64) uint32 {
	if end, ok := r.asked.end(r.nxt); ok {
		// Asked for before, as far as end and no further: the responder knows a repetition by that.
		n := uint32(wire.PSNDiff(end, r.nxt))
		need := r.cost(e, r.curPacket, r.curPacket+n)
		if *credit >= need || r.timeouts > 0 {
			return n
		}
		got := r.cc.take(r, need-*credit, need-*credit)
		if got == 0 {
			return 0
		}
		*credit += got
		return n
	}
	if r.asked.full() {
		return 0
	}
	left := e.packets - r.curPacket
	n := min(left, max(readBytes/r.mtu, 1), room)
	// Little requests one after the other would use up the depth: while more is on its way
	// it is worth waiting for.
	least := min(left, readBytes/r.mtu/2)
	switch {
	case n < least && r.nxt != r.una:
		return 0
	case r.timeouts > 0:
		return n
	}
	all := r.cost(e, r.curPacket, r.curPacket+n)
	if *credit >= all {
		return n
	}
	if need := r.cost(e, r.curPacket, r.curPacket+min(n, least)); *credit < need {
		got := r.cc.take(r, need-*credit, all-*credit)
		if got == 0 {
			return 0
		}
		*credit += got
	}
	if *credit >= all {
		return n
	}
	return uint32(min(max(*credit/(int64(r.mtu)+packetOverhead), 1), int64(n)))
}

// ask puts a READ request for n packets, the first of which is given, or another request that has a response into the batch.
func (r *rc) ask(w *work, e *sendWQE, packet, n, psn uint32) {
	var h *wire.Packet
	switch e.op {
	case verbs.OpRead:
		h = r.header(w, wire.RCReadRequest, psn)
		off := packet * r.mtu
		h.RETH = wire.RETH{VA: e.raddr + uint64(off), RKey: e.rkey, Length: min(n*r.mtu, e.length-off)}
	case verbs.OpCompareSwap:
		h = r.header(w, wire.RCCompareSwap, psn)
		h.Atomic = wire.AtomicETH{VA: e.raddr, RKey: e.rkey, SwapAdd: e.swapAdd, Compare: e.compare}
	case verbs.OpFetchAdd:
		h = r.header(w, wire.RCFetchAdd, psn)
		h.Atomic = wire.AtomicETH{VA: e.raddr, RKey: e.rkey, SwapAdd: e.swapAdd}
	case verbs.OpFlush:
		h = r.header(w, wire.RCFlush, psn)
		h.FETH = wire.FETH(e.feth)
		h.RETH = wire.RETH{VA: e.raddr, RKey: e.rkey, Length: e.flushLength}
	default:
		h = r.header(w, wire.RCAtomicWrite, psn)
		h.RETH = wire.RETH{VA: e.raddr, RKey: e.rkey, Length: atomicSize}
	}
	h.AckReq = true
	r.add(w, h)
	if e.op == verbs.OpAtomicWrite {
		w.tx.Payload(e.inline)
	}
	a := asked{psn: psn, end: wire.PSNAdd(psn, n)}
	if e.slow() {
		a.since = w.now()
	}
	if wire.PSNDiff(psn, r.max) >= 0 {
		r.asked.push(a)
	} else if a.since != 0 {
		r.asked.again(a)
	}
	r.launched(w, psn, n, true)
}

// reach returns how far a packet about psn acknowledges what comes before it: up to the first READ or
// atomic without a response. Responses come in order, so if that is before psn, one is lost (IBTA 9.7.5.1.1: an implied NAK).
func (r *rc) reach(psn uint32) uint32 {
	if r.asked.n > 0 {
		at := r.asked.at(0).psn
		if wire.PSNDiff(r.seen, at) > 0 {
			at = r.seen
		}
		if wire.PSNDiff(at, psn) < 0 {
			return at
		}
	}
	return psn
}

// acknowledge takes what comes before psn for done, as far as it can be, and tells how far that is.
func (r *rc) acknowledge(w *work, psn uint32) uint32 {
	at := r.reach(psn)
	r.advance(w, at)
	return at
}

// settle ends a run of responses.
func (r *rc) settle(w *work) { r.advance(w, r.seen) }

// answered takes a response to a READ, atomic, FLUSH or ATOMIC WRITE.
func (r *rc) answered(w *work, h *wire.Packet) {
	psn := h.PSN
	if psn != r.seen {
		if at := r.acknowledge(w, psn); at != psn {
			r.q.dev.stats.gaps.Add(1)
			r.lostAt(w, at)
			return
		}
	}
	e := r.q.sq.at(r.q.sq.head)
	packet := uint32(wire.PSNDiff(psn, e.psn))
	last := packet+1 == e.packets
	status := verbs.BadRespErr
	switch {
	case h.Opcode.HasAETH() && h.AETH.Kind() != wire.KindACK:
	case h.Opcode == wire.RCAtomicAck:
		if isAtomic(e.op) {
			var b [atomicSize]byte
			binary.NativeEndian.PutUint64(b[:], h.AtomicAck.Original)
			status = scatter(e.sgl, 0, b[:])
		}
	case e.op == verbs.OpRead && uint32(len(h.Payload)) == r.size(e, packet) && (h.Opcode.Ends() || !last):
		// Where a request begins and ends that asks for a part once more, responders name packets
		// differently, so a name says no more than that.
		status = scatter(e.sgl, uint64(packet)*uint64(r.mtu), h.Payload)
	case places(e.op) && h.Opcode == wire.RCReadResponseOnly && len(h.Payload) == 0:
		status = verbs.Success
	}
	if status != verbs.Success {
		r.settle(w)
		r.q.fail(w, status)
		return
	}
	r.seen = wire.PSNAdd(psn, 1)
	if last {
		r.settle(w)
	}
}
