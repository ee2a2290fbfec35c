//go:build linux

package shm

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// passed orders, for the race detector, what was done before a message was sent before what follows its
// completion: the words that do so in truth lie in memory that the detector does not see.
var passed race.Sync

// recvQueue is the owner's side of a ring. Its owner's lock guards it, but for pending.
type recvQueue struct {
	dev         *device
	block       block
	limit       int
	slots       uint64 // a power of two
	stride      int
	maxSGE      int
	tail, head  *atomic.Uint64
	state, fail *atomic.Uint32
	waits       *atomic.Uint32

	own     []recvWR    // by place
	lists   []verbs.SGE // maxSGE for each place; nil until a receive needs its owner
	posted  uint64
	drained atomic.Uint64
	broken  bool // the peer's words make no sense: no more is taken
}

// recvWR is what the owner has to know of a receive that the peer cannot change.
type recvWR struct {
	id   uint64
	room uint64
	n    int32 // entries of its list, if the list is kept

	// Of a lane.
	entry   int32
	gone    bool // withdrawn
	serving bool // the owner is copying into it
}

// init makes a ring for limit receives, which may be 0.
func (r *recvQueue) init(d *device, limit, sges int) error {
	r.dev, r.limit, r.maxSGE = d, limit, sges
	if limit > 0 {
		r.slots = 1 << bits.Len(uint(limit-1))
	}
	r.stride = slotStride(sges)
	b, err := d.rings.get(ringSlots + int(r.slots)*r.stride)
	if err != nil {
		return err
	}
	r.use(b)
	r.own = make([]recvWR, r.slots)
	return nil
}

func (r *recvQueue) use(b block) {
	r.block = b
	r.tail, r.head = word64(b.mem, ringTail), word64(b.mem, ringHead)
	r.state, r.fail, r.waits = word32(b.mem, ringState), word32(b.mem, ringFail), word32(b.mem, ringWaits)
}

// describe tells the peer where the ring lies.
func (r *recvQueue) describe() place {
	return place{
		Segment: r.block.segment, Offset: r.block.offset, Slots: uint32(r.slots), Stride: uint32(r.stride), MaxSGE: uint32(r.maxSGE),
	}
}

// post adds a receive. It is the peer who finds that a key or range in it is wrong.
func (r *recvQueue) post(p *pd, wr *verbs.RecvWR) (full bool, err error) {
	if len(wr.SGL) > r.maxSGE {
		return false, fmt.Errorf("shm: %d scatter entries, the limit is %d: %w", len(wr.SGL), r.maxSGE, syscall.EINVAL)
	}
	if r.posted-r.drained.Load() >= uint64(r.limit) {
		return true, nil
	}
	at := r.posted & (r.slots - 1)
	slot := r.slot(at)
	w := recvWR{id: wr.ID}
	n, served := 0, false
	for i := range wr.SGL {
		s := &wr.SGL[i]
		if s.Length == 0 {
			continue
		}
		if m := p.find(s.LKey); m != nil && m.arena == nil {
			served = true
		}
		putEntry(slot, n, s)
		w.room += uint64(s.Length)
		n++
	}
	if served {
		if r.lists == nil {
			r.lists = make([]verbs.SGE, int(r.slots)*r.maxSGE)
		}
		w.n = keepList(r.lists[int(at)*r.maxSGE:], wr.SGL)
	}
	word64(slot, slotSGEs).Store(uint64(n))
	r.own[at] = w
	r.posted++
	return false, nil
}

// slot is the receive at a place.
func (r *recvQueue) slot(at uint64) []byte {
	return r.block.mem[ringSlots+int(at)*r.stride:][:r.stride]
}

// putEntry writes an entry of a receive's list where the peer reads it.
func putEntry(slot []byte, n int, s *verbs.SGE) {
	e := slot[slotList+n*entrySize:]
	order.PutUint64(e, s.Addr)
	order.PutUint64(e[8:], uint64(s.Length)<<32|uint64(s.LKey))
}

// keepList keeps a receive's list, without what is empty, where the peer does not come.
func keepList(dst, sgl []verbs.SGE) (n int32) {
	for i := range sgl {
		if sgl[i].Length > 0 {
			dst[n] = sgl[i]
			n++
		}
	}
	return n
}

// numbered is receive number n, if it is the peer's to take.
func (r *recvQueue) numbered(n uint64) *recvWR {
	if done := r.drained.Load(); n-done >= r.posted-done || r.broken {
		return nil
	}
	return &r.own[n&(r.slots-1)]
}

// listOf is the list of receive number n, if it was kept.
func (r *recvQueue) listOf(n uint64) []verbs.SGE {
	w := r.numbered(n)
	if w == nil || r.lists == nil {
		return nil
	}
	return r.lists[int(n&(r.slots-1))*r.maxSGE:][:w.n]
}

// publish shows the peer what was posted.
func (r *recvQueue) publish() { r.tail.Store(r.posted) }

// waiting tells, once, whether the peer waits for receives.
func (r *recvQueue) waiting() bool { return r.waits.Load() != 0 && r.waits.CompareAndSwap(1, 0) }

// ready tells whether the peer has taken receives that were not looked at.
func (r *recvQueue) ready() bool { return r.head.Load() != r.drained.Load() }

// result is what became of a receive.
type result struct {
	recvWR
	bytes, imm, qpn uint32
	status          verbs.Status
	flags           uint8
}

// next takes the result of the oldest receive. Its words are read once.
func (r *recvQueue) next() (res result, ok bool) {
	done := r.drained.Load()
	head := r.head.Load()
	if r.broken {
		return res, false
	}
	if head-done > r.posted-done {
		r.broken = true
		return res, false
	}
	for done != head && r.own[done&(r.slots-1)].gone {
		done++
		r.drained.Store(done)
	}
	if done == head {
		return res, false
	}
	at := done & (r.slots - 1)
	slot := ringSlots + int(at)*r.stride
	a, b := word64(r.block.mem, slot+slotResult).Load(), word64(r.block.mem, slot+slotMore).Load()
	passed.Acquire()
	r.drained.Store(done + 1)
	res = result{
		recvWR: r.own[at], bytes: uint32(a >> 32), imm: uint32(a), qpn: uint32(b >> 32),
		status: verbs.Status(b >> 8), flags: uint8(b),
	}
	switch res.status {
	case verbs.Success, verbs.LocLenErr, verbs.LocProtErr, verbs.RemInvReqErr:
	default:
		res.status = verbs.GeneralErr
	}
	if res.status == verbs.Success && res.flags&resultWrite == 0 && uint64(res.bytes) > res.room {
		res.status = verbs.GeneralErr // the peer says that it wrote more than there is room for
	}
	return res, true
}

// wc is the completion of a receive at a queue pair.
func (res *result) wc(qpn uint32) verbs.WC {
	if res.status != verbs.Success {
		return verbs.WC{ID: res.id, Status: res.status, Op: verbs.WCRecv, QPN: qpn}
	}
	wc := verbs.WC{ID: res.id, Op: verbs.WCRecv, ByteLen: res.bytes, QPN: qpn}
	if res.flags&resultWrite != 0 {
		wc.Op = verbs.WCRecvWithImm
	}
	if res.flags&resultImm != 0 {
		wc.Flags, wc.Imm = verbs.WCWithImm, res.imm
	} else if res.flags&resultInv != 0 {
		wc.Flags, wc.Imm = verbs.WCWithInv, res.imm
	}
	return wc
}
