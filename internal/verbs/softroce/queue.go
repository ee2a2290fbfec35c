package softroce

import "github.com/go-rdma/rdma/internal/verbs"

// sge is a scatter/gather entry whose key and bounds have been checked. It keeps no
// pointer into the region, which may be unmapped while the entry lies in a queue.
type sge struct {
	m   *mr
	off uint64
	n   uint32
}

// sendWQE is a send request in the queue. Its slices keep their storage from use to use.
type sendWQE struct {
	id      uint64
	raddr   uint64
	rkey    uint32
	imm     uint32 // or the key to invalidate
	length  uint32
	psn     uint32 // of the first packet
	packets uint32
	op      verbs.Opcode
	flags   verbs.SendFlags
	feth    uint8  // of a FLUSH
	compare uint64 // of atomics
	swapAdd uint64
	status  verbs.Status // not Success: the request fails when its turn comes
	inlined bool

	flushLength uint32

	sgl    []sge
	inline []byte
	ah     *ah // of a datagram, whose queue pair number is raddr, and Q_Key rkey
}

// recvWQE is a receive request in the queue.
type recvWQE struct {
	id  uint64
	bad bool // a key or range was wrong
	sgl []sge
}

// queue is a ring of work requests that grows up to its limit. Positions count up for ever.
type queue[T any] struct {
	ring       []T // a power of two
	head, tail uint32
	limit      uint32

	peak uint32 // of the requests in it since it was empty
	calm uint8  // how often in a row it was empty and had been nearly so
}

// A ring of more than keptRing requests of which no more than a quarter were used between calmTurns
// moments without any is given back.
const (
	keptRing  = 32
	calmTurns = 8
)

// emptied is told that the last request has gone. What a burst took is given back when the traffic has been light
// for a while: that of keep-alive is enough.
func (q *queue[T]) emptied() {
	if n := uint32(len(q.ring)); n <= keptRing || 4*q.peak > n {
		q.calm = 0
	} else if q.calm++; q.calm == calmTurns {
		q.ring, q.calm = make([]T, keptRing), 0
	}
	q.peak = 0
}

func (q *queue[T]) len() int { return int(q.tail - q.head) }

func (q *queue[T]) at(pos uint32) *T { return &q.ring[pos&uint32(len(q.ring)-1)] }

// fill takes a request of the consumer's.
func (e *recvWQE) fill(k *keys, wr *verbs.RecvWR) {
	var err error
	e.id = wr.ID
	e.sgl, err = k.checkSGL(e.sgl[:0], wr.SGL, verbs.LocalWrite)
	e.bad = err != nil // told by the completion
}

// set makes e a copy of f.
func (e *recvWQE) set(f *recvWQE) {
	e.id, e.bad = f.id, f.bad
	e.sgl = append(e.sgl[:0], f.sgl...)
}

// room is how many bytes fit.
func (e *recvWQE) room() (n uint64) {
	for i := range e.sgl {
		n += uint64(e.sgl[i].n)
	}
	return n
}

// next returns the slot for one more request, or nil when the queue is full. It
// is in the queue once tail is incremented.
func (q *queue[T]) next() *T {
	n := q.tail - q.head
	if n >= q.limit {
		return nil
	}
	if int(n) == len(q.ring) {
		q.grow()
	}
	q.peak = max(q.peak, n+1)
	return q.at(q.tail)
}

// grow makes room in a full ring.
func (q *queue[T]) grow() {
	ring := make([]T, max(4, 2*len(q.ring)))
	// What is not in the queue keeps its storage, too: the old ring was full.
	for i := range q.tail - q.head {
		ring[(q.head+i)&uint32(len(ring)-1)] = *q.at(q.head + i)
	}
	q.ring = ring
}
