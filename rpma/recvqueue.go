package rpma

import (
	"net"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// recvBit is set in the work request IDs of receives. The rest is a slot.
const recvBit = 1 << 63

// recvQueue keeps what a receive queue has: each receive holds a slot with its user's ID until it has completed,
// and counts until that completion is polled.
type recvQueue struct {
	peer *Peer

	mu sync.Mutex
	to interface {
		PostRecv([]verbs.RecvWR) (int, error)
	} // nil: closed, or not made yet
	ids  []uint64
	free []uint32
	used int
	wrs  [postBatch]verbs.RecvWR
	sges [postBatch]verbs.SGE
}

// init readies the queue for n receives.
func (q *recvQueue) init(p *Peer, n int) {
	q.peer = p
	q.ids, q.free = make([]uint64, n), make([]uint32, n)
	for i := range q.free {
		q.free[i] = uint32(i)
	}
}

// Recv is a receive to be posted.
type Recv struct {
	Dst Local // a zero Local: for messages without data
	ID  uint64
}

// check tells whether a receive makes sense.
func (r *Recv) check(p *Peer) error {
	const op = "recv"
	dst := &r.Dst
	if dst.mr == nil {
		if dst.n != 0 {
			return invalid(op, "range of no region")
		}
		return nil
	}
	if err := dst.check(op, p, writable); err != nil {
		return err
	}
	if uint64(dst.n) > p.maxMsg {
		return invalid(op, "%d bytes in one receive, the limit is %d: %w", dst.n, p.maxMsg, errTooLong)
	}
	return nil
}

// post posts receives in order, as many as there is room for, and tells how many.
func (q *recvQueue) post(recvs ...Recv) (n int, err error) {
	const op = "recv"
	for i := range recvs {
		if err := recvs[i].check(q.peer); err != nil {
			return 0, err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(recvs) {
		if q.to == nil {
			return n, &Error{Op: op, Code: ErrProvider, Err: net.ErrClosed}
		}
		k := min(len(recvs)-n, len(q.ids)-q.used, len(q.free), postBatch)
		if k == 0 {
			return n, ErrQueueFull
		}
		// The last of the free slots is the first to be used.
		for i := range k {
			r, slot := &recvs[n+i], q.free[len(q.free)-1-i]
			q.wrs[i] = verbs.RecvWR{ID: recvBit | uint64(slot)}
			if r.Dst.mr != nil && r.Dst.n > 0 {
				q.sges[i] = r.Dst.sge(0, uint32(r.Dst.n))
				q.wrs[i].SGL = q.sges[i : i+1 : i+1]
			}
			q.ids[slot] = r.ID // before it may complete
		}
		done, err := q.to.PostRecv(q.wrs[:k])
		q.free = q.free[:len(q.free)-done]
		q.used += done
		n += done
		switch {
		case err != nil:
			return n, opError(op, err)
		case done < k:
			return n, ErrQueueFull
		}
	}
	return n, nil
}

// complete gives the slot of a completion back, and makes of it what its user gets. It is false for one that
// is of no receive.
func (q *recvQueue) complete(wc *verbs.WC, c *Completion) bool {
	slot := wc.ID &^ recvBit
	q.mu.Lock()
	defer q.mu.Unlock()
	if slot >= uint64(len(q.ids)) || len(q.free) == len(q.ids) {
		return false
	}
	*c = Completion{ID: q.ids[slot], Status: Status(wc.Status), QPNum: wc.QPN, vendor: wc.VendorErr, recv: true}
	q.free = append(q.free, uint32(slot))
	if wc.Status != verbs.Success {
		return true
	}
	c.Op, c.Bytes = OpRecv, int(wc.ByteLen)
	if wc.Op == verbs.WCRecvWithImm {
		c.Op = OpRecvWithImm
	}
	if wc.Flags&verbs.WCWithImm != 0 {
		c.Imm, c.HasImm = wc.Imm, true
	}
	return true
}

// polled is told that completions of receives have reached their user.
func (q *recvQueue) polled(n int) {
	q.mu.Lock()
	q.used -= n
	q.mu.Unlock()
}

// posted tells how many receives have not completed.
func (q *recvQueue) posted() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ids) - len(q.free)
}

// open and close say where receives go.
func (q *recvQueue) open(to interface {
	PostRecv([]verbs.RecvWR) (int, error)
}) {
	q.mu.Lock()
	q.to = to
	q.mu.Unlock()
}

func (q *recvQueue) close() { q.open(nil) }

// flush ends the receives that the device will not complete any more.
func (q *recvQueue) flush(qpn uint32, each func(c *Completion)) {
	q.mu.Lock()
	idle := make([]bool, len(q.ids))
	for _, slot := range q.free {
		idle[slot] = true
	}
	var lost []Completion
	for slot, is := range idle {
		if !is {
			lost = append(lost, Completion{ID: q.ids[slot], Status: StatusFlushed, QPNum: qpn, recv: true})
			q.free = append(q.free, uint32(slot))
		}
	}
	q.mu.Unlock()
	for i := range lost {
		each(&lost[i])
	}
}
