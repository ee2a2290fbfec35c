package rc

import (
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Send is a send work request with one local range at most.
type Send struct {
	Op         verbs.Opcode
	Flags      verbs.SendFlags
	Imm        uint32
	RemoteAddr uint64
	RKey       uint32

	// The payload: registered memory, or Inline.
	LKey   uint32
	Addr   uint64
	Length uint32
	Inline []byte
}

// SendQueue posts in batches and keeps what the provider does not take yet. With
// each request it keeps a value of its user's until the request has completed.
// It is guarded by a lock of its user's.
//
// The ID of a request is its number in the queue, so that a completion stands
// for itself and all unsignaled requests before it.
type SendQueue[T any] struct {
	qp    verbs.QP
	limit int
	split *messages // if not nil, immediates are messages of their own
	half  bool      // the data of the first request that is not posted has been

	ring               []sendEntry[T] // a power of two
	head, posted, tail uint64         // oldest not completed, first not posted, next
}

type sendEntry[T any] struct {
	send Send
	tag  T
}

// Init readies the queue for depth requests outstanding.
func (q *SendQueue[T]) Init(qp verbs.QP, depth int) { q.qp, q.limit = qp, depth }

// InitConn readies the queue for all that a connection takes.
func (q *SendQueue[T]) InitConn(c *Conn) {
	q.Init(c.qp, c.sendWR)
	q.split = c.messages
}

// Free tells how many requests Push takes.
func (q *SendQueue[T]) Free() int { return q.limit - int(q.tail-q.head) }

// Outstanding tells how many requests have not completed.
func (q *SendQueue[T]) Outstanding() int { return int(q.tail - q.head) }

// Unposted tells how many requests the provider has not taken yet.
func (q *SendQueue[T]) Unposted() int { return int(q.tail - q.posted) }

// Push adds a request; Free must be more than 0. Flush posts it.
func (q *SendQueue[T]) Push(s Send, tag T) {
	if int(q.tail-q.head) == len(q.ring) {
		q.grow()
	}
	e := &q.ring[q.tail&uint64(len(q.ring)-1)]
	e.send, e.tag = s, tag
	q.tail++
}

// Pop takes the last request back, if it is unposted. Its data may have been written all the same,
// where immediates are messages of their own.
func (q *SendQueue[T]) Pop() {
	if q.tail > q.posted {
		if q.tail--; q.tail == q.posted {
			q.half = false
		}
		q.ring[q.tail&uint64(len(q.ring)-1)] = sendEntry[T]{}
	}
}

func (q *SendQueue[T]) grow() {
	ring := make([]sendEntry[T], max(8, 2*len(q.ring)))
	for i := q.head; i != q.tail; i++ {
		ring[i&uint64(len(ring)-1)] = q.ring[i&uint64(len(q.ring)-1)]
	}
	q.ring = ring
}

// Flush posts what is not posted yet, as far as the provider takes it. It does
// not wait; what remains goes with the next Flush.
func (q *SendQueue[T]) Flush() error {
	if q.posted == q.tail {
		return nil
	}
	b := posts.Get().(*post)
	defer posts.Put(b)
	for q.posted != q.tail {
		n := 0
		for i := q.posted; i != q.tail && n+1 < len(b.wr); i++ {
			n = q.stage(b, n, i)
		}
		k, err := q.qp.PostSend(b.wr[:n])
		for j := range k {
			if q.half = !b.last[j]; b.last[j] {
				q.ring[q.posted&uint64(len(q.ring)-1)].send.Inline = nil
				q.posted++
			}
		}
		for j := range n {
			b.wr[j].Inline = nil
		}
		if err != nil {
			return err
		}
		if k < n {
			return nil
		}
	}
	return nil
}

// stage puts request i into a batch that has n work requests, and returns how many it then has.
func (q *SendQueue[T]) stage(b *post, n int, i uint64) int {
	s := &q.ring[i&uint64(len(q.ring)-1)].send
	op, flags := s.Op, s.Flags
	split := q.split != nil && op == verbs.OpWriteWithImm
	if split {
		op, flags = verbs.OpWrite, 0
	}
	if !split || (s.Inline != nil || s.Length > 0) && (i != q.posted || !q.half) {
		wr := &b.wr[n]
		wr.ID, wr.Op, wr.Flags, wr.Imm = i, op, flags, s.Imm
		wr.RemoteAddr, wr.RKey = s.RemoteAddr, s.RKey
		wr.SGL, wr.Inline = nil, s.Inline
		if s.Inline == nil && s.Length > 0 {
			b.sge[n] = verbs.SGE{Addr: s.Addr, Length: s.Length, LKey: s.LKey}
			wr.SGL = b.sge[n : n+1 : n+1]
		}
		b.last[n] = !split
		n++
	}
	if split {
		b.wr[n] = verbs.SendWR{ID: i, Op: verbs.OpSend, Flags: s.Flags, Inline: q.split.encode(&b.msg[n], s.Imm)}
		b.last[n] = true
		n++
	}
	return n
}

// Complete returns the value of the oldest request if a completion of request id
// stands for it. Call it until ok is false.
func (q *SendQueue[T]) Complete(id uint64) (tag T, ok bool) {
	if q.head >= q.posted || q.head > id {
		return tag, false
	}
	e := &q.ring[q.head&uint64(len(q.ring)-1)]
	tag = e.tag
	*e = sendEntry[T]{}
	q.head++
	return tag, true
}

// post is the scratch of one Flush.
type post struct {
	wr   [17]verbs.SendWR // of which the last is for the second half of a request
	sge  [17]verbs.SGE
	msg  [17][messageLen]byte
	last [17]bool // of its request
}

var posts = sync.Pool{New: func() any { return new(post) }}
