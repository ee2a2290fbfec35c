//go:build linux

package shm

import (
	"math"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
)

// ringBells notifies the peer of all that was done.
func (q *qp) ringBells() {
	if r := q.remote; r != nil {
		if q.ring.recv {
			q.dev.link.ring(r, r.recvCQ, &r.recvMarks)
		}
		if q.ring.send && r.sendCQ != r.recvCQ {
			q.dev.link.ring(r, r.sendCQ, &r.sendMarks)
		}
	}
	q.ring.recv, q.ring.send = false, false
}

// faulty makes the peer's queue pair fail, too: the request was its to refuse.
func (q *qp) faulty(status verbs.Status) (verbs.Status, stall) {
	q.remote.ring.fail.Store(1)
	q.ring.recv, q.ring.send = true, true
	return status, notStalled
}

// perform does what a request asks for.
func (q *qp) perform(e *sendWR) (verbs.Status, stall) {
	if e.status != verbs.Success {
		return e.status, notStalled
	}
	r := q.remote
	if r == nil || r.ring.state.Load() != ringOpen {
		return 0, stallPeer
	}
	switch e.op {
	case verbs.OpWrite:
		return q.write(e)
	case verbs.OpWriteWithImm:
		slot, wait := r.recvs.slot(q)
		if slot == nil {
			return 0, wait
		}
		status, wait := q.write(e)
		if status != verbs.Success || wait != notStalled {
			r.recvs.keep()
			return status, wait
		}
		r.recvs.done(slot, &result{bytes: e.length, imm: e.imm, qpn: r.num, flags: resultImm | resultWrite})
		q.ring.recv = true
		return verbs.Success, notStalled
	case verbs.OpRead:
		return q.read(e)
	case verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
		return q.atomic(e)
	case verbs.OpFlush:
		return q.flush(e)
	}
	slot, wait := r.recvs.slot(q)
	if slot == nil {
		return 0, wait
	}
	return q.send(e, slot)
}

// local gathers the memory of this side's that a request names. It is held until letGo.
func (q *qp) local(e *sendWR) (list [][]byte, ok bool) {
	q.src = q.src[:0]
	if e.inlined {
		q.src = append(q.src, e.inline)
		return q.src, true
	}
	for i := range e.sgl {
		p := &e.sgl[i]
		if !p.m.hold() {
			e.sgl, q.src = e.sgl[:i], nil // those before it are held
			return nil, false
		}
		q.src = append(q.src, p.m.mem[p.off:][:p.n])
	}
	return q.src, true
}

// letGo ends the use of local memory. It is called after local, whatever that returned.
func (q *qp) letGo(e *sendWR) {
	clear(q.src)
	q.src = q.src[:0]
	if e.inlined {
		return
	}
	for i := range e.sgl {
		e.sgl[i].m.release()
	}
	e.sgl = e.sgl[:0]
}

// write is a WRITE.
func (q *qp) write(e *sendWR) (verbs.Status, stall) { return q.transfer(e, verbs.RemoteWrite) }

// read is a READ.
func (q *qp) read(e *sendWR) (verbs.Status, stall) { return q.transfer(e, verbs.RemoteRead) }

// transfer copies between this side's memory and the peer's, for which it needs rights to one of the two.
func (q *qp) transfer(e *sendWR, rights verbs.Access) (verbs.Status, stall) {
	if e.length == 0 {
		return verbs.Success, notStalled
	}
	a, v := q.dev.link.open(q.remote, e.rkey, e.raddr, uint64(e.length), rights)
	switch v {
	case refused:
		return q.faulty(verbs.RemAccessErr)
	case missing:
		return 0, stallSegment
	case served:
		return q.ask(e)
	}
	own, ok := q.local(e)
	if ok {
		at := a.mem
		for _, b := range own {
			if rights == verbs.RemoteWrite {
				at = at[copy(at, b):]
			} else {
				at = at[copy(b, at):]
			}
		}
	}
	q.letGo(e)
	a.close()
	if !ok {
		return verbs.LocProtErr, notStalled
	}
	return verbs.Success, notStalled
}

// atomic is an atomic operation, or an ATOMIC_WRITE.
func (q *qp) atomic(e *sendWR) (verbs.Status, stall) {
	if e.raddr%wordSize != 0 {
		return q.faulty(verbs.RemInvReqErr)
	}
	rights := verbs.RemoteAtomic
	if e.op == verbs.OpAtomicWrite {
		rights = verbs.RemoteWrite
	}
	a, v := q.dev.link.open(q.remote, e.rkey, e.raddr, wordSize, rights)
	switch v {
	case refused:
		return q.faulty(verbs.RemAccessErr)
	case missing:
		return 0, stallSegment
	case served:
		return q.ask(e)
	}
	defer a.close()
	if addressOf(a.mem)%wordSize != 0 { // a peer whose addresses are not as they should be
		return q.faulty(verbs.RemInvReqErr)
	}
	list, ok := q.local(e)
	defer q.letGo(e)
	if !ok {
		return verbs.LocProtErr, notStalled
	}
	word := word64(a.mem, 0)
	var value [wordSize]byte
	if e.op == verbs.OpAtomicWrite {
		n := 0
		for _, s := range list {
			n += copy(value[n:], s)
		}
		word.Store(order.Uint64(value[:]))
		return verbs.Success, notStalled
	}
	order.PutUint64(value[:], modify(word, e.op, e.compare, e.swapAdd))
	n := 0
	for _, d := range list {
		n += copy(d, value[n:])
	}
	return verbs.Success, notStalled
}

// modify does an atomic operation and returns what was there.
func modify(word *atomic.Uint64, op verbs.Opcode, compare, swapAdd uint64) (original uint64) {
	if op == verbs.OpFetchAdd {
		return word.Add(swapAdd) - swapAdd
	}
	// Another may change the word all the time, and so a peer can: a value that differs is an answer.
	for range math.MaxInt16 {
		original = word.Load()
		if original != compare || word.CompareAndSwap(compare, swapAdd) {
			break
		}
	}
	return original
}

// send is a SEND into a receive that was taken.
func (q *qp) send(e *sendWR, slot []byte) (verbs.Status, stall) {
	r := q.remote
	res := result{bytes: e.length, qpn: r.num}
	status, wait := q.scatter(e, slot, &res)
	switch {
	case wait == stallOwner:
		r.recvs.reserve(q, q.job.seq)
		return status, wait
	case wait != notStalled || status != verbs.Success && res.status == verbs.Success:
		r.recvs.keep()
		return status, wait
	case res.status == verbs.Success:
		switch e.op {
		case verbs.OpSendWithImm:
			res.imm, res.flags = e.imm, resultImm
		case verbs.OpSendWithInv:
			res.imm, res.flags = e.imm, resultInv
			if !r.invalidate(e.imm) {
				res.status = verbs.RemInvReqErr // the receiver's failure alone (IBTA 9.9.3, class J)
			}
		}
	}
	r.recvs.done(slot, &res)
	q.ring.recv, q.ring.send = true, res.status != verbs.Success
	return status, notStalled
}

// scatter copies a message to where a receive says. Of its list, each word is read once. What is wrong with the receive
// is told in res.
func (q *qp) scatter(e *sendWR, slot []byte, res *result) (verbs.Status, stall) {
	r := q.remote
	n := int(min(word64(slot, slotSGEs).Load()&^whose, uint64(r.recvs.maxSGE)))
	left := uint64(e.length)
	wait, owner := notStalled, false
	q.dst, q.accesses = q.dst[:0], q.accesses[:0]
	for i := 0; i < n && left > 0; i++ {
		addr, more := word64(slot, slotList+i*entrySize).Load(), word64(slot, slotList+i*entrySize+8).Load()
		part := more >> 32
		// All of an entry has to be right, as far as the message goes or not.
		a, v := q.dev.link.open(r, uint32(more), addr, part, verbs.LocalWrite)
		if v == refused {
			res.status = verbs.LocProtErr
			break
		}
		if v == served {
			owner = true
			left -= min(part, left)
			continue
		}
		if v == missing {
			wait = stallSegment
			break
		}
		part = min(part, left)
		q.accesses = append(q.accesses, a)
		q.dst = append(q.dst, a.mem[:part])
		left -= part
	}
	status := verbs.Success
	switch {
	case wait != notStalled:
	case res.status != verbs.Success:
		status = verbs.RemOpErr
	case left > 0:
		res.status, status = verbs.LocLenErr, verbs.RemInvReqErr
	case owner:
		status, wait = q.ask(e)
		if status == verbs.RemOpErr {
			res.status = verbs.LocProtErr
		}
	case e.length > 0:
		src, ok := q.local(e)
		if ok {
			scatterAll(q.dst, src)
		} else {
			status = verbs.LocProtErr
		}
		q.letGo(e)
	}
	for i := range q.accesses {
		q.accesses[i].close()
	}
	clear(q.accesses)
	clear(q.dst)
	return status, wait
}

// scatterAll copies src to dst, which has room for it.
func scatterAll(dst, src [][]byte) {
	for _, s := range src {
		for len(s) > 0 {
			n := copy(dst[0], s)
			s = s[n:]
			if dst[0] = dst[0][n:]; len(dst[0]) == 0 {
				dst = dst[1:]
			}
		}
	}
}
