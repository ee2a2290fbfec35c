//go:build linux

package shm

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// remote is a queue pair of the peer's, as far as it was checked.
type remote struct {
	num, domain    uint32
	sendCQ, recvCQ uint32 // numbers on the board
	rnrTimer       uint8
	board          []byte
	ring           *remoteRing // of the queue pair
	recvs          *remoteRing // where receives come from: ring, or a shared one
	sharedID       uint32
	recvMarks      [2]uint32
	sendMarks      [2]uint32
}

// remoteRing is a ring of the peer's.
type remoteRing struct {
	m      *mapping // held
	mem    []byte
	slots  uint64
	stride int
	maxSGE int

	tail, head  *atomic.Uint64
	state, fail *atomic.Uint32
	waits       *atomic.Uint32

	taken uint64 // this side's own count

	// Of a shared one.
	l        *link // nil: it is not
	id       uint32
	refs     int // guarded by the link's lock
	mu       sync.Mutex
	waiters  []*qp
	asked    bool   // the owner was, whether it has a receive
	wants    uint16 // how often
	none     bool   // it has said no; it tells when there is one
	refused  uint16 // to which of them
	reserved *qp    // whose message the owner is copying into the oldest receive
	question uint64 // by which
	gone     bool   // nothing is written there any more: the owner may use its memory for something else
}

// ringAt checks a place.
func (l *link) ringAt(p *place) (*remoteRing, error) {
	m := l.segment(p.Segment)
	if m == nil {
		return nil, fmt.Errorf("ring in segment %d, which is not there: %w", p.Segment, syscall.EPROTO)
	}
	size, slots, stride := uint64(len(m.mem)), uint64(p.Slots), uint64(p.Stride)
	if p.MaxSGE > maxSGE || stride != uint64(slotStride(int(p.MaxSGE))) || slots > maxSRQWR || bits.OnesCount64(slots) > 1 ||
		p.Offset%64 != 0 || p.Offset > size || size-p.Offset < ringSlots+slots*stride {
		m.release()
		return nil, fmt.Errorf("ring of %d slots of %d bytes at %d of a segment of %d: %w", slots, stride, p.Offset, size, syscall.EPROTO)
	}
	mem := m.mem[p.Offset:][:ringSlots+slots*stride]
	return &remoteRing{
		m: m, mem: mem, slots: slots, stride: int(stride), maxSGE: int(p.MaxSGE),
		tail: word64(mem, ringTail), head: word64(mem, ringHead),
		state: word32(mem, ringState), fail: word32(mem, ringFail), waits: word32(mem, ringWaits),
	}, nil
}

// remoteQP checks what the peer says of a queue pair.
func (l *link) remoteQP(d *queuePair) (*remote, error) {
	board := l.board.Load()
	if d.SendCQ >= maxCQs || d.RecvCQ >= maxCQs || d.RNRTimer > 31 || board == nil {
		return nil, fmt.Errorf("queue pair with completion queues %d and %d: %w", d.SendCQ, d.RecvCQ, syscall.EPROTO)
	}
	r := &remote{
		num: d.Num, domain: d.Domain, sendCQ: d.SendCQ, recvCQ: d.RecvCQ, rnrTimer: uint8(d.RNRTimer), board: board.mem, sharedID: d.SharedID,
		recvMarks: d.RecvMarks, sendMarks: d.SendMarks,
	}
	var err error
	if r.ring, err = l.ringAt(&d.Ring); err != nil {
		return nil, err
	}
	r.recvs = r.ring
	if d.Shared.Slots == 0 {
		return r, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.recvs = l.shared[d.SharedID]; r.recvs == nil {
		if r.recvs, err = l.ringAt(&d.Shared); err != nil {
			r.ring.m.release()
			return nil, err
		}
		r.recvs.l, r.recvs.id = l, d.SharedID
		r.recvs.taken = r.recvs.head.Load() // of queue pairs that were before
		l.shared[d.SharedID] = r.recvs
	}
	r.recvs.refs++
	return r, nil
}

// dropRemote is the end of the use of a remote queue pair.
func (l *link) dropRemote(r *remote, q *qp) {
	r.ring.m.release()
	if r.recvs == r.ring {
		return
	}
	r.recvs.mu.Lock()
	r.recvs.waiters = slices.DeleteFunc(r.recvs.waiters, func(o *qp) bool { return o == q })
	r.recvs.mu.Unlock()
	r.recvs.unuse()
}

// slot returns the oldest receive that is posted, or why there is none; then the peer tells when there is. The word is set first
// and the tail is looked at afterwards; the owner moves the tail first and looks at the word afterwards.
// It must be followed by done, keep or reserve unless it is nil; a shared ring is locked until then.
func (r *remoteRing) slot(q *qp) ([]byte, stall) {
	if r.l != nil {
		return r.sharedSlot(q)
	}
	// The owner's tail may be any number: a receive that was never posted is one whose list is checked like others.
	if r.slots == 0 || r.tail.Load() == r.taken {
		r.waits.Store(1)
		if r.slots == 0 || r.tail.Load() == r.taken {
			return nil, stallRecv
		}
		r.waits.Store(0)
	}
	return r.oldest(), notStalled
}

// oldest is the receive that comes next.
func (r *remoteRing) oldest() []byte {
	return r.mem[ringSlots+int(r.taken&(r.slots-1))*r.stride:][:r.stride]
}

// keep lets a receive stay that slot has returned.
func (r *remoteRing) keep() {
	if r.l != nil {
		r.giveBack()
		r.mu.Unlock()
	}
}

// done hands the oldest receive back to its owner, with a result.
func (r *remoteRing) done(slot []byte, res *result) {
	order.PutUint64(slot[slotResult:], uint64(res.bytes)<<32|uint64(res.imm))
	order.PutUint64(slot[slotMore:], uint64(res.qpn)<<32|uint64(res.status)<<8|uint64(res.flags))
	passed.Release()
	r.taken++
	r.head.Store(r.taken)
	if r.l != nil {
		r.endTurn()
		r.mu.Unlock()
	}
}

// ring tells one of the peer's completion queues that there is something for it.
func (l *link) ring(r *remote, cq uint32, at *[2]uint32) {
	mark(r.board, cq, at[0])
	mark(r.board, cq, at[1])
	l.bell(r.board, cq)
}

// bell has the peer notified if one of its completion queues is armed.
func (l *link) bell(board []byte, cq uint32) {
	w := armWord(board, cq)
	for range bellTries {
		switch a := w.Load(); a {
		case armed:
			if w.CompareAndSwap(armed, unarmed) {
				l.tell(header{Kind: msgBell, ID: cq})
				return
			}
		case seated:
			if w.CompareAndSwap(seated, knocked) {
				if !l.knock() {
					l.tell(header{Kind: msgBell, ID: cq})
				}
				return
			}
		default:
			return
		}
	}
	l.tell(header{Kind: msgBell, ID: cq})
}

// bellTries bounds how often the peer may change its mind while it is to be told.
const bellTries = 16

// access is one access to the peer's memory.
type access struct {
	users *atomic.Uint64 // of the region, on the peer's board
	m     *mapping
	mem   []byte
}

// verdict is what came of looking a region up.
type verdict uint8

const (
	granted verdict = iota
	refused
	missing // the segment it lies in is not mapped yet
	served  // its owner has to do what is to be done
)

// open begins an access to n bytes of a region of the peer's. Each word is read once; whatever they say, what is
// accessed lies in memory of the peer's.
func (l *link) open(r *remote, key uint32, addr, n uint64, rights verbs.Access) (a access, v verdict) {
	users := regWord(r.board, key, regUsers)
	users.Add(1)
	if got := regWord(r.board, key, regKey).Load(); got == 0 || got != uint64(key) {
		users.Add(^uint64(0))
		return a, refused
	}
	where := regWord(r.board, key, regPlace).Load()
	base := regWord(r.board, key, regOffset).Load()
	length := regWord(r.board, key, regLength).Load()
	off := addr - regWord(r.board, key, regAddr).Load()
	have := verbs.Access(regWord(r.board, key, regAccess).Load())
	if uint32(where) != r.domain || have&rights != rights || off > length || n > length-off {
		users.Add(^uint64(0))
		return a, refused
	}
	if where>>32 == ownerServes {
		users.Add(^uint64(0))
		return a, served
	}
	m := l.segment(uint32(where >> 32))
	if m == nil {
		users.Add(^uint64(0))
		return a, missing
	}
	size := uint64(len(m.mem))
	if base > size || off > size-base || n > size-base-off {
		m.release()
		users.Add(^uint64(0))
		return a, refused
	}
	return access{users, m, m.mem[base+off:][:n:n]}, granted
}

func (a *access) close() {
	a.m.release()
	a.users.Add(^uint64(0))
}

// invalidate ends a region of the peer's, if it may be.
func (r *remote) invalidate(key uint32) bool {
	w := regWord(r.board, key, regKey)
	return key != 0 && w.Load() == uint64(key) && uint32(regWord(r.board, key, regPlace).Load()) == r.domain &&
		verbs.Access(regWord(r.board, key, regAccess).Load())&verbs.RemoteInvalidate != 0 && w.CompareAndSwap(uint64(key), 0)
}
