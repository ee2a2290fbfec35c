//go:build linux

package shm

import (
	"github.com/go-rdma/rdma/internal/verbs"
)

// What the peer has to do itself is asked for over the socket: access to memory that is no segment, a mapping of the peer's
// own, and making memory persistent. Data goes by way of a block of this side's.

// mostAsked is what one question moves.
const mostAsked = 256 << 10

// question is what the peer is asked for. It is answered once, whatever happens.
type question struct {
	Seq              uint64
	Addr             uint64
	Compare, SwapAdd uint64
	Offset           uint64 // of the block
	Segment          uint32 // of the block
	Key              uint32
	Length           uint32
	Op               uint8
	Level, Types     uint8 // of a FLUSH
	_                uint8
}

const questionLen = 56

func (w *question) put(b []byte) []byte {
	for _, v := range [...]uint64{
		w.Seq, w.Addr, w.Compare, w.SwapAdd, w.Offset, uint64(w.Segment)<<32 | uint64(w.Key),
		uint64(w.Length)<<32 | uint64(w.Op)<<16 | uint64(w.Level)<<8 | uint64(w.Types),
	} {
		b = order.AppendUint64(b, v)
	}
	return b
}

func (w *question) get(b []byte) bool {
	if len(b) != questionLen {
		return false
	}
	at := func(i int) uint64 { return order.Uint64(b[8*i:]) }
	*w = question{
		Seq: at(0), Addr: at(1), Compare: at(2), SwapAdd: at(3), Offset: at(4), Segment: uint32(at(5) >> 32), Key: uint32(at(5)),
		Length: uint32(at(6) >> 32), Op: uint8(at(6) >> 16), Level: uint8(at(6) >> 8), Types: uint8(at(6)),
	}
	return true
}

const answerLen = 16 // the question's number and what an atomic found

// answerStale is the status of a question to a queue pair that takes nothing.
const answerStale = 0xff

// job is the part of the oldest send request that is the peer's to do.
type job struct {
	at     uint64 // the request's number and one; 0: no job
	seq    uint64 // of the question that is out; 0: none
	off, n uint32 // what it is about
	done   bool
	status verbs.Status
	value  uint64 // what an atomic found
}

// asked is a question that is out.
type asked struct {
	q    *qp
	b    block       // used by the peer until it answers
	ring *remoteRing // with a receive that the peer copies into; nil: no shared one
}

// ask lets the peer do a request. It returns a status when all of it is done.
func (q *qp) ask(e *sendWR) (verbs.Status, stall) {
	if q.early {
		return 0, stallPeer // one at a time
	}
	j := &q.job
	if j.at != q.head+1 {
		*j = job{at: q.head + 1}
	}
	switch {
	case j.seq != 0:
		return 0, stallOwner
	case !j.done:
		if status := q.askNext(e); status != verbs.Success {
			return status, notStalled
		}
		return 0, stallOwner
	case j.status == verbs.Success || j.status == verbs.LocProtErr || j.status == verbs.RemOpErr && isSend(e.op):
		return j.status, notStalled
	}
	return q.faulty(j.status)
}

// askNext asks for the next part of a request.
func (q *qp) askNext(e *sendWR) verbs.Status {
	j := &q.job
	w := question{
		Addr: e.raddr + uint64(j.off), Key: e.rkey, Compare: e.compare, SwapAdd: e.swapAdd, Op: uint8(e.op),
		Level: uint8(e.flushLevel), Types: uint8(e.flushType),
	}
	var ring *remoteRing
	if isSend(e.op) { // into the oldest receive, of whose list the peer has the right copy
		w.Addr, w.Key, w.Compare, w.Op = q.remote.recvs.taken, 0, uint64(j.off), uint8(verbs.OpSend)
		if q.remote.recvs.l != nil {
			ring = q.remote.recvs
		}
	}
	var b block
	j.n = 0
	if e.op == verbs.OpFlush {
		w.Length = e.flushLength
	} else {
		j.n = min(e.length-j.off, mostAsked)
		w.Length = j.n
	}
	if hasData(e.op) {
		var err error
		if b, err = q.dev.rings.get(int(j.n)); err != nil {
			return verbs.LocQPOpErr // no memory
		}
		w.Segment, w.Offset = b.segment, b.offset
		if e.op != verbs.OpRead && !q.move(e, j.off, b.mem[:j.n], false) {
			q.dev.rings.put(b)
			return verbs.LocProtErr
		}
	}
	l := q.dev.link
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		if b.mem != nil {
			q.dev.rings.put(b)
		}
		return verbs.RetryExcErr
	}
	l.lastAsked++
	j.seq = l.lastAsked
	l.asked[j.seq] = asked{q, b, ring}
	if ring != nil {
		ring.refs++
	}
	l.mu.Unlock()
	w.Seq = j.seq
	passed.Release()
	var m [headerLen + questionLen]byte
	var h [headerLen]byte
	l.send(w.put(append(m[:0], putHeader(&h, header{Kind: msgAsk, ID: q.remote.num})...)), -1)
	return verbs.Success
}

// hasData tells whether a request that is asked for comes with a block.
func hasData(op verbs.Opcode) bool {
	switch op {
	case verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead, verbs.OpAtomicWrite:
		return true
	}
	return isSend(op)
}

func isSend(op verbs.Opcode) bool {
	return op == verbs.OpSend || op == verbs.OpSendWithImm || op == verbs.OpSendWithInv
}

// move copies a part of a request's data between memory of this side and a block.
func (q *qp) move(e *sendWR, off uint32, block []byte, in bool) bool {
	if e.inlined {
		copy(block, e.inline[off:])
		return true
	}
	for i := range e.sgl {
		p := &e.sgl[i]
		if off >= p.n {
			off -= p.n
			continue
		}
		if !p.m.hold() {
			return false
		}
		mem := p.m.mem[p.off:][off:p.n]
		var n int
		if in {
			n = copy(mem, block)
		} else {
			n = copy(block, mem)
		}
		p.m.release()
		if block = block[n:]; len(block) == 0 {
			break
		}
		off = 0
	}
	return true
}

// gotAnswer takes the answer to a question.
func (l *link) gotAnswer(h header, body []byte) error {
	if len(body) != answerLen {
		return errMessage
	}
	seq, value := order.Uint64(body), order.Uint64(body[8:])
	l.mu.Lock()
	a, ok := l.asked[seq]
	delete(l.asked, seq)
	l.mu.Unlock()
	if !ok {
		return errMessage
	}
	passed.Acquire()
	a.q.answered(seq, verbs.Status(h.Flag), value, a.b.mem)
	if a.b.mem != nil {
		l.dev.rings.put(a.b)
	}
	if a.ring != nil {
		a.ring.answered(a.q, seq)
	}
	return nil
}

// answered goes on with the request that an answer is for, if it is still there.
func (q *qp) answered(seq uint64, status verbs.Status, value uint64, block []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := &q.job
	if j.seq != seq || j.at != q.head+1 || q.state != stateRTS || q.head == q.tail {
		return
	}
	e := q.at(q.head)
	j.seq = 0
	switch status {
	case verbs.Success:
		if e.op == verbs.OpRead && !q.move(e, j.off, block[:j.n], true) {
			j.done, j.status = true, verbs.LocProtErr
		}
		j.off += j.n
		j.value = value
		j.done = j.done || e.op == verbs.OpFlush || j.off == e.length
	case verbs.RemAccessErr, verbs.RemInvReqErr, verbs.RemOpErr:
		j.done, j.status = true, status
	case answerStale:
		*j = job{}
	default: // a status that no responder has
		j.done, j.status = true, verbs.RemOpErr
	}
	q.calm() // the peer is alive
	if isAtomic(e.op) && j.done && j.status == verbs.Success {
		var found [wordSize]byte
		order.PutUint64(found[:], j.value)
		if !q.move(e, 0, found[:], true) {
			j.status = verbs.LocProtErr
		}
	}
	q.resumeLocked()
}
