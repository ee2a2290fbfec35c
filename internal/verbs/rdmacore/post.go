//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// batches are shared: a queue pair needs one only while it posts.
var batches = sync.Pool{New: func() any { return new(batch) }}

var errNotConnected = fmt.Errorf("rdmacore: queue pair is not connected: %w", syscall.ENOTCONN)

// PostSend implements [verbs.QP].
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	b := batches.Get().(*batch)
	q.sendMu.Lock()
	switch {
	case q.h == nil:
		err = q.dev.closedError()
	case q.dev.gone.Load():
		err = q.dev.failure("posting", syscall.ENODEV) // drivers that post without the kernel do not notice
	case q.state != stateRTS && !q.failed.Load() && len(wrs) > 0 && q.typ == verbs.RC:
		err = errNotConnected
	default:
		n, err = q.postSend(b, wrs)
		if n > 0 && q.failed.Load() {
			_ = q.toError() // the completions tell
		}
	}
	q.sendMu.Unlock()
	batches.Put(b)
	return n, err
}

func (q *qp) postSend(b *batch, wrs []verbs.SendWR) (n int, err error) {
	for n < len(wrs) {
		k, bad := q.fill(b, wrs[n:])
		if k > 0 {
			order.Release()
			var done int
			done, err = b.postSend(q.h, k)
			q.sq.back(k - done)
			n += done
		}
		switch {
		case err != nil:
			return n, q.postFailure(err)
		case bad != nil:
			return n, bad
		case k == 0: // full
			return n, nil
		}
	}
	return n, nil
}

// postFailure is why a driver did not take a request that has passed our own checks: nil if its queue is full.
func (q *qp) postFailure(err error) error {
	if errors.Is(err, syscall.ENOMEM) && !q.dev.gone.Load() {
		return nil
	}
	return q.dev.failure("posting", err)
}

// fill flattens requests as far as they and the queue have room. bad is about the one behind those.
func (q *qp) fill(b *batch, wrs []verbs.SendWR) (n int, bad error) {
	sges, bytes := 0, 0
	for limit := min(len(wrs), coreBatch, q.sq.room()); n < limit; {
		wr := &wrs[n]
		if err := q.checkSend(wr); err != nil {
			return n, err
		}
		var h *coreAH
		if q.typ == verbs.UD {
			a, ok := wr.AH.(*ah)
			if !ok || a.pd != q.pd {
				return n, fmt.Errorf("rdmacore: datagram without an address handle of its domain: %w", syscall.EINVAL)
			}
			if h = a.h.Load(); h == nil {
				return n, fmt.Errorf("rdmacore: datagram with a closed address handle: %w", net.ErrClosed)
			}
			if wr.RemoteQPN == 0 || wr.RemoteQPN > verbs.MulticastQPN || (wr.RemoteQPN == verbs.MulticastQPN) != a.group {
				return n, fmt.Errorf("rdmacore: datagram to queue pair %#x: it has 24 bits, is not 0, and %#x of a group and of no other: %w",
					wr.RemoteQPN, verbs.MulticastQPN, syscall.EINVAL)
			}
		}
		if wr.Op == verbs.OpAtomicWrite {
			if bytes+atomicLen > coreInline {
				return n, nil
			}
			if err := q.atomicValue(b.data[bytes:bytes+atomicLen], wr); err != nil {
				return n, err
			}
			bytes += atomicLen
		} else if wr.Inline != nil {
			if bytes+len(wr.Inline) > coreInline {
				return n, nil
			}
			bytes += copy(b.data[bytes:], wr.Inline)
		} else {
			if sges+len(wr.SGL) > coreSGEs {
				return n, nil
			}
			sges = b.addSGL(sges, wr.SGL)
		}
		b.addSend(n, q.sq.put(wr.ID), wr, h)
		n++
	}
	return n, nil
}

// checkSend refuses what is wrong on its face, so that the driver's ENOMEM means one thing.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	fetch := false
	switch wr.Op {
	case verbs.OpSendWithImm, verbs.OpWriteWithImm:
		if q.dev.iwarp {
			return unsupported("immediate data (iWARP has none) on device " + q.dev.name)
		}
	}
	switch wr.Op {
	case verbs.OpSend, verbs.OpSendWithImm:
	case verbs.OpSendWithInv:
		if q.typ != verbs.RC || q.dev.iwarp {
			return unsupported(fmt.Sprintf("%v requests on a %v queue pair of device %s", wr.Op, q.typ, q.dev.name))
		}
	case verbs.OpWrite, verbs.OpWriteWithImm:
		if q.typ != verbs.RC {
			return unsupported(wr.Op.String() + " requests on a UD queue pair")
		}
	case verbs.OpFlush, verbs.OpAtomicWrite:
		return q.checkNative(wr)
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		if err := q.checkFetch(wr); err != nil {
			return err
		}
		fetch = true
	default:
		return unsupported(wr.Op.String() + " requests")
	}
	if wr.Inline != nil {
		if len(wr.Inline) > q.caps.MaxInline {
			return fmt.Errorf("rdmacore: %d inline bytes, the limit is %d: %w", len(wr.Inline), q.caps.MaxInline, syscall.EINVAL)
		}
		return q.checkLength(int64(len(wr.Inline)))
	}
	if len(wr.SGL) > q.caps.MaxSendSGE {
		return fmt.Errorf("rdmacore: %d gather entries, the limit is %d: %w", len(wr.SGL), q.caps.MaxSendSGE, syscall.EINVAL)
	}
	var length int64
	for i := range wr.SGL {
		length += int64(wr.SGL[i].Length)
	}
	if fetch && wr.Op != verbs.OpRead && length < 8 {
		return fmt.Errorf("rdmacore: %v into %d bytes, not 8: %w", wr.Op, length, syscall.EINVAL)
	}
	return q.checkLength(length)
}

// checkLength refuses what is too long for a message, or for the one packet that a datagram is.
func (q *qp) checkLength(length int64) error {
	limit := q.dev.maxMsg
	if mtu := q.mtu.Load(); q.typ == verbs.UD && mtu > 0 {
		limit = int64(mtu)
	}
	if length > limit {
		return fmt.Errorf("rdmacore: message of %d bytes, the limit is %d: %w", length, limit, syscall.EMSGSIZE)
	}
	return nil
}

// checkFetch is checkSend for what brings data back.
func (q *qp) checkFetch(wr *verbs.SendWR) error {
	switch {
	case q.typ != verbs.RC:
		return unsupported(wr.Op.String() + " requests on a UD queue pair")
	case wr.Op != verbs.OpRead && !q.dev.attr.atomics:
		return unsupported(wr.Op.String() + " requests on device " + q.dev.name)
	case wr.Inline != nil:
		return fmt.Errorf("rdmacore: inline bytes of %v: %w", wr.Op, syscall.EINVAL)
	}
	return q.checkDepth()
}

// checkDepth refuses what counts as a READ where none was agreed on.
func (q *qp) checkDepth() error {
	if q.readDepth == 0 && !q.failed.Load() {
		return fmt.Errorf("rdmacore: the connection was made without READs and atomics in this direction "+
			"(InitiatorDepth, the peer's ResponderResources): %w", syscall.EINVAL)
	}
	return nil
}

// PostRecv implements [verbs.QP].
func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	if q.srq != nil {
		return 0, fmt.Errorf("rdmacore: the queue pair receives from a shared queue: %w", syscall.EINVAL)
	}
	b := batches.Get().(*batch)
	q.recvMu.Lock()
	switch {
	case q.h == nil:
		err = q.dev.closedError()
	case q.dev.gone.Load():
		err = q.dev.failure("posting", syscall.ENODEV) // as in PostSend
	default:
		n, err = q.postRecv(b, wrs)
		if n > 0 && q.failed.Load() {
			_ = q.toError() // the completions tell
		}
	}
	q.recvMu.Unlock()
	batches.Put(b)
	return n, err
}

func (q *qp) postRecv(b *batch, wrs []verbs.RecvWR) (n int, err error) {
	for n < len(wrs) {
		room := q.rq.room()
		k, bad := b.fillRecv(wrs[n:], room, q.caps.MaxRecvSGE, q.typ == verbs.UD, q.rq.putRecv)
		if k > 0 {
			order.Release()
			var done int
			done, err = b.postRecv(q.h, k)
			q.rq.back(k - done)
			n += done
		}
		switch {
		case err != nil:
			return n, q.postFailure(err)
		case bad != nil:
			return n, bad
		case k == 0: // full
			return n, nil
		}
	}
	return n, nil
}

// fillRecv flattens receives as far as they and the queue have room; put gives each its ID. bad is about the
// one behind those. Those for datagrams begin with room for a GRH.
func (b *batch) fillRecv(wrs []verbs.RecvWR, room, maxSGE int, ud bool, put func(*verbs.RecvWR) uint64) (n int, bad error) {
	sges := 0
	for limit := min(len(wrs), coreBatch, room); n < limit; n++ {
		wr := &wrs[n]
		if len(wr.SGL) > maxSGE {
			return n, fmt.Errorf("rdmacore: %d scatter entries, the limit is %d: %w", len(wr.SGL), maxSGE, syscall.EINVAL)
		}
		if ud && len(wr.SGL) > 0 && wr.SGL[0].Length < verbs.GRHLen {
			return n, fmt.Errorf("rdmacore: the first scatter entry for a datagram has %d bytes, the GRH needs %d: %w",
				wr.SGL[0].Length, verbs.GRHLen, syscall.EINVAL)
		}
		if sges+len(wr.SGL) > coreSGEs {
			return n, nil
		}
		sges = b.addSGL(sges, wr.SGL)
		b.addRecv(n, put(wr), wr)
	}
	return n, nil
}
