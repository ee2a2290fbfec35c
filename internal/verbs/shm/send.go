//go:build linux

package shm

import (
	"fmt"
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
