//go:build linux

package shm

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

const wordSize = 8 // of atomics

// peerPatience is how long a request waits for a queue pair that takes nothing, as on a network: 8 local ACK timeouts
// of 2.1 s. What ends the connection comes before.
const peerPatience = 17 * time.Second

// PostSend implements [verbs.QP].
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	q.mu.Lock()
	if q.state == stateRTS && q.rq.fail.Load() != 0 {
		q.failLocked(true)
	}
	for ; n < len(wrs); n++ {
		full, e := q.post(&wrs[n])
		if full || e != nil {
			err = e
			break
		}
	}
	q.ringBells()
	look := q.stalled == stallSegment
	q.mu.Unlock()
	if look {
		q.dev.link.pump() // the segment was sent before its key could be known
	}
	return n, err
}

// post takes one request.
func (q *qp) post(wr *verbs.SendWR) (full bool, err error) {
	switch q.state {
	case stateInit:
		return false, errNotConnected
	case stateClosed:
		return false, errClosedQP
	}
	e := &q.now
	if err := q.prepare(e, wr); err != nil {
		return false, err
	}
	if q.state == stateErr {
		q.sendCQ.push(&verbs.WC{ID: wr.ID, Status: verbs.WRFlushErr, Op: wr.Op.Completion(), QPN: q.num}, nil, 0)
		return false, nil
	}
	if q.tail-q.polled.Load() >= uint64(q.caps.MaxSendWR) {
		return true, nil
	}
	if q.head == q.tail {
		q.tail++
		if q.carryOut(e) {
			e.inline = nil // the consumer's
			return false, nil
		}
		q.tail--
	}
	// It waits, or one before it does.
	if int(q.tail-q.head) == len(q.sq) {
		q.grow()
	}
	q.at(q.tail).keep(e)
	e.inline = nil
	q.tail++
	q.ahead()
	return false, nil
}

// at is a request in the send queue.
func (q *qp) at(n uint64) *sendWR { return &q.sq[n&uint64(len(q.sq)-1)] }

// keep makes e a copy of o, with storage of its own.
func (e *sendWR) keep(o *sendWR) {
	e.inline = append(e.inline[:0], o.inline...)
	e.sgl = append(e.sgl[:0], o.sgl...)
	inline, sgl := e.inline, e.sgl
	*e = *o
	e.inline, e.sgl = inline, sgl
}

func (q *qp) grow() {
	sq := make([]sendWR, max(4, 2*len(q.sq)))
	for i := q.head; i != q.tail; i++ {
		sq[i&uint64(len(sq)-1)] = q.sq[i&uint64(len(q.sq)-1)]
	}
	q.sq = sq
}

func isAtomic(op verbs.Opcode) bool { return op == verbs.OpCompareSwap || op == verbs.OpFetchAdd }

// prepare checks a request and fills e.
func (q *qp) prepare(e *sendWR, wr *verbs.SendWR) error {
	switch wr.Op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWrite, verbs.OpWriteWithImm:
		if len(wr.Inline) > q.caps.MaxInline {
			return fmt.Errorf("shm: %d inline bytes, the limit is %d: %w", len(wr.Inline), q.caps.MaxInline, syscall.EINVAL)
		}
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		if wr.Inline != nil {
			return fmt.Errorf("shm: %v brings data, and inline bytes are for sending: %w", wr.Op, syscall.EINVAL)
		}
		fallthrough
	case verbs.OpAtomicWrite, verbs.OpFlush:
		if q.depth == 0 && q.state == stateRTS {
			return fmt.Errorf("shm: %v on a connection made without: %w", wr.Op, syscall.EINVAL)
		}
	default:
		return fmt.Errorf("shm: %v: %w", wr.Op, syscall.EINVAL)
	}
	if wr.Op == verbs.OpFlush {
		if err := verbs.CheckFlush("shm", wr, maxMsgSize); err != nil {
			return err
		}
		e.flushLength, e.flushLevel, e.flushType = wr.FlushLength, wr.FlushLevel, wr.FlushType
	}
	if len(wr.SGL) > q.caps.MaxSendSGE {
		return fmt.Errorf("shm: %d gather entries, the limit is %d: %w", len(wr.SGL), q.caps.MaxSendSGE, syscall.EINVAL)
	}
	length := uint64(len(wr.Inline))
	if wr.Inline == nil {
		for i := range wr.SGL {
			length += uint64(wr.SGL[i].Length)
		}
		if length > maxMsgSize {
			return fmt.Errorf("shm: message of %d bytes, the limit is %d: %w", length, int64(maxMsgSize), syscall.EMSGSIZE)
		}
	}
	switch {
	case isAtomic(wr.Op) && length < wordSize, wr.Op == verbs.OpAtomicWrite && length != wordSize:
		return fmt.Errorf("shm: %v of %d bytes, not %d: %w", wr.Op, length, wordSize, syscall.EINVAL)
	case isAtomic(wr.Op):
		length = wordSize
	}
	e.early = false
	e.id, e.op, e.flags, e.imm, e.length, e.status = wr.ID, wr.Op, wr.Flags, wr.Imm, uint32(length), verbs.Success
	if wr.Op == verbs.OpSendWithInv {
		e.imm = wr.InvalidateKey
	}
	e.raddr, e.rkey, e.compare, e.swapAdd = wr.RemoteAddr, wr.RKey, wr.Compare, wr.SwapAdd
	e.sgl = e.sgl[:0]
	if e.inlined = wr.Inline != nil; e.inlined {
		e.inline = wr.Inline
		return nil
	}
	var rights verbs.Access
	if wr.Op == verbs.OpRead || isAtomic(wr.Op) {
		rights = verbs.LocalWrite
	}
	var err error
	if e.sgl, err = q.pd.check(e.sgl, wr.SGL, rights); err != nil {
		e.status = verbs.LocProtErr // told by the completion
	}
	return nil
}

// carryOut carries out the oldest request. It is false if the request has to wait.
func (q *qp) carryOut(e *sendWR) bool {
	status, wait := e.status, notStalled
	if !e.early {
		status, wait = q.perform(e)
	}
	if wait != notStalled && q.patience(wait) {
		return false
	}
	if wait != notStalled { // no more of it
		status = verbs.RetryExcErr
		if wait == stallRecv {
			status = verbs.RNRRetryExcErr
			q.stats.RNRs += uint64(q.rnrRetry) + 1
		}
	}
	q.finish(e, status)
	return true
}

// finish completes the oldest request.
func (q *qp) finish(e *sendWR, status verbs.Status) {
	q.calm()
	q.head++
	if status == verbs.Success {
		if e.flags&verbs.Signaled != 0 {
			wc := verbs.WC{ID: e.id, Op: e.op.Completion(), QPN: q.num}
			if e.op == verbs.OpRead || isAtomic(e.op) {
				wc.ByteLen = e.length
			}
			q.sendCQ.push(&wc, q, q.head)
		}
		return
	}
	q.sendCQ.push(&verbs.WC{ID: e.id, Status: status, Op: e.op.Completion(), QPN: q.num}, nil, 0)
	q.failLocked(true)
}

// resume carries out what waited.
func (q *qp) resume() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.resumeLocked()
}

func (q *qp) resumeLocked() {
	for q.state == stateRTS && q.head != q.tail {
		e := q.at(q.head)
		if !q.carryOut(e) {
			break
		}
		if cap(e.inline) > keptInline {
			e.inline = nil
		}
	}
	q.ahead()
	q.ringBells()
}

const keptInline = 4 << 10

// resumeMissing is resume for those that wait for a segment.
func (q *qp) resumeMissing() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stalled == stallSegment {
		q.resumeLocked()
	}
}

// patience notes that the oldest request waits, and tells whether it still may.
func (q *qp) patience(why stall) bool {
	if why == q.stalled && q.since == q.head {
		return !q.until.IsZero() || q.endless(why)
	}
	q.calm()
	wait := peerPatience
	if q.endless(why) {
		q.stalled, q.since = why, q.head
		return true
	}
	if why == stallRecv {
		if q.rnrRetry == 0 {
			return false
		}
		wait = time.Duration(q.rnrRetry) * rnrTime(q.remote.rnrTimer)
	}
	q.stalled, q.since = why, q.head
	q.until = time.Now().Add(wait)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.impatient)
	} else {
		q.timer.Reset(wait)
	}
	return true
}

// endless tells whether a request waits without end: the peer tells when it has a receive.
func (q *qp) endless(why stall) bool {
	return (why == stallRecv || why == stallShare) && q.rnrRetry == 7
}

// impatient is the end of patience. One that was stopped too late comes before it.
func (q *qp) impatient() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.until.IsZero() && !time.Now().Before(q.until) {
		q.until = time.Time{}
		q.resumeLocked()
	}
}

// calm is told that nothing waits any more.
func (q *qp) calm() {
	if !q.until.IsZero() {
		q.timer.Stop()
		q.until = time.Time{}
	}
	q.stalled = notStalled
}

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
func (q *qp) write(e *sendWR) (verbs.Status, stall) {
	if e.length == 0 {
		return verbs.Success, notStalled
	}
	a, v := q.dev.link.open(q.remote, e.rkey, e.raddr, uint64(e.length), verbs.RemoteWrite)
	switch v {
	case refused:
		return q.faulty(verbs.RemAccessErr)
	case missing:
		return 0, stallSegment
	case served:
		return q.ask(e)
	}
	src, ok := q.local(e)
	if ok {
		at := a.mem
		for _, s := range src {
			at = at[copy(at, s):]
		}
	}
	q.letGo(e)
	a.close()
	if !ok {
		return verbs.LocProtErr, notStalled
	}
	return verbs.Success, notStalled
}

// read is a READ.
func (q *qp) read(e *sendWR) (verbs.Status, stall) {
	if e.length == 0 {
		return verbs.Success, notStalled
	}
	a, v := q.dev.link.open(q.remote, e.rkey, e.raddr, uint64(e.length), verbs.RemoteRead)
	switch v {
	case refused:
		return q.faulty(verbs.RemAccessErr)
	case missing:
		return 0, stallSegment
	case served:
		return q.ask(e)
	}
	dst, ok := q.local(e)
	if ok {
		at := a.mem
		for _, d := range dst {
			at = at[copy(d, at):]
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
