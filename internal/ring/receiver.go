package ring

import (
	"fmt"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	// segInitial is the receive memory a connection begins with. A second segment
	// follows when the first is half full.
	segInitial = 16 << 10

	maxSegments    = 4 // unread, being filled and published ahead together
	maxOutstanding = 2 // published and not full: each is an entry of the peer's target SGL

	// Segments that fill within segFast double the size of those to come, if the
	// reader keeps up; those that take segSlow halve it.
	segFast = int64(50 * time.Millisecond)
	segSlow = int64(time.Second)

	// What is published cannot be taken back when a stream ends. So segments grow beyond segCommon only for one that goes on: when
	// rushes of that size have filled within segRush each. Half as many let it be.
	segCommon = 256 << 10
	segRush   = int64(2 * time.Millisecond)
	rushes    = 40

	// windowInitial and windowMax bound the data messages that the peer may have on
	// its way. windowSpare receives more are posted, for messages that need no credit,
	// and because those consumed are posted again repostBatch at a time.
	windowInitial = 64
	windowMax     = 256
	windowSpare   = 16 + repostBatch
	repostBatch   = 8
)

// segment is a stretch of receive memory that is published as one descriptor.
type segment struct {
	mem   []byte
	addr  uint64
	key   uint32
	block rc.Block
	mr    verbs.MR

	recvd, read int   // bytes
	first, full int64 // when its first byte came, and its last
	pins        int   // readers that copy from it
	orphan      bool  // the connection is gone; the last reader gives the memory back
}

// segments is where receive memory comes from.
type segments interface {
	getSegment(size int) (*segment, error)
}

// receiver is the receiving half of a connection: what the peer may write, what
// it has written, and what of that has been read. It is guarded by a lock of its user's.
type receiver struct {
	mem   segments
	limit int // bytes of receive memory

	segs  []*segment // oldest first
	fill  int        // index of the first one that is not full
	avail int        // unread bytes
	size  int        // of the next segment
	rush  int        // segments that filled within segRush lately
	spare *segment   // read to its end and not yet published again
	trash []*segment // to be given back by somebody who may close regions
	sink  bool       // nobody reads any more: what comes is dropped

	window, windowMax int    // messages
	count             uint64 // messages of the peer that needed credit
	allowed           uint64 // the limit the peer knows

	entries, entry uint32 // of the peer's target SGL: number, and the one to write next

	messages, bytes uint64
}

// init takes the first segment.
func (r *receiver) init(mem segments, limit, window, windowMax int) error {
	r.mem, r.limit = mem, limit
	r.window, r.windowMax, r.allowed = window, windowMax, uint64(window)
	r.size = min(segInitial, r.maxSegment())
	s, err := mem.getSegment(r.size)
	if err != nil {
		return err
	}
	r.segs = append(make([]*segment, 0, maxSegments+1), s)
	return nil
}

// maxSegment is the size that segments may grow to.
func (r *receiver) maxSegment() int {
	n := rc.MinBlock
	for n < rc.MaxBlock && 2*n <= r.limit/maxSegments {
		n *= 2
	}
	return n
}

// setPeer says how many entries the peer's target SGL has. The first buffer,
// which the peer knows from the private data, is in entry 0.
func (r *receiver) setPeer(entries uint32) { r.entries, r.entry = entries, 1%entries }

func (s *segment) descriptor() descriptor {
	return descriptor{addr: s.addr, key: s.key, length: uint32(len(s.mem))}
}

// credit counts a message that needed credit.
func (r *receiver) credit() error {
	r.count++
	if r.count > r.allowed {
		return fmt.Errorf("%w: message without credit", ErrProtocol)
	}
	return nil
}

// data takes a message of n bytes. written is what the device says was written.
func (r *receiver) data(n, written uint32, now int64) error {
	if err := r.credit(); err != nil || n == 0 && written == 0 {
		return err
	}
	// Bytes that the peer announces and does not write would be what somebody else had there.
	if n != written {
		return fmt.Errorf("%w: %d bytes announced, %d written", ErrProtocol, n, written)
	}
	if r.fill == len(r.segs) || uint64(n) > uint64(len(r.segs[r.fill].mem)-r.segs[r.fill].recvd) {
		return fmt.Errorf("%w: %d bytes beyond the published space", ErrProtocol, n)
	}
	s := r.segs[r.fill]
	if s.recvd == 0 {
		s.first = now
	}
	s.recvd += int(n)
	r.avail += int(n)
	r.messages++
	r.bytes += uint64(n)
	if s.recvd == len(s.mem) {
		s.full = now
		r.fill++
	}
	if r.sink {
		r.drop()
	}
	return nil
}

// lend returns up to n unread bytes that lie in one segment, and counts them as
// read. Their memory is not published again before unlend.
func (r *receiver) lend(n int) (*segment, []byte) {
	for _, s := range r.segs {
		if k := min(n, s.recvd-s.read); k > 0 {
			b := s.mem[s.read : s.read+k : s.read+k]
			s.read += k
			s.pins++
			r.avail -= k
			return s, b
		}
		if s.recvd < len(s.mem) {
			break
		}
	}
	return nil, nil
}

// unlend ends a lend and tells whether the segment's memory is to be given back now.
func (r *receiver) unlend(s *segment) (orphan bool) {
	s.pins--
	if s.orphan {
		return s.pins == 0
	}
	r.retire()
	return false
}

// drop discards what is unread.
func (r *receiver) drop() {
	for _, s := range r.segs {
		s.read = s.recvd
	}
	r.avail = 0
	r.retire()
}

// retire takes out the segments that have been read to their end.
func (r *receiver) retire() {
	kept := r.segs[:0]
	for i, s := range r.segs {
		if i >= r.fill || s.read < len(s.mem) || s.pins > 0 {
			kept = append(kept, s)
			continue
		}
		switch took := s.full - s.first; {
		case r.sink:
		case took < segFast && r.avail < len(s.mem):
			r.grow(len(s.mem), took)
		case took > segSlow:
			r.size, r.rush = min(max(r.size/2, segInitial), r.maxSegment()), 0
		}
		if r.spare != nil {
			r.trash = append(r.trash, r.spare)
		}
		r.spare = s
	}
	r.fill -= len(r.segs) - len(kept)
	clear(r.segs[len(kept):])
	r.segs = kept
}

// grow makes the segments to come larger, after one of n bytes that filled fast.
func (r *receiver) grow(n int, took int64) {
	most := r.maxSegment()
	if n >= segCommon {
		if took < segRush {
			r.rush = min(r.rush+1, rushes)
		} else {
			r.rush -= r.rush / 4
		}
	}
	if r.rush < rushes/2 || r.rush < rushes && r.size <= segCommon {
		most = min(most, segCommon)
	}
	r.size = min(max(r.size, 2*n), most)
}

// total is the receive memory there is.
func (r *receiver) total() (n int) {
	for _, s := range r.segs {
		n += len(s.mem)
	}
	if r.spare != nil {
		n += len(r.spare.mem)
	}
	for _, s := range r.trash {
		n += len(s.mem)
	}
	return n
}

// wantsSegment tells whether another segment shall be published.
func (r *receiver) wantsSegment() bool {
	out := len(r.segs) - r.fill
	switch {
	case out >= maxOutstanding:
		return false
	case r.spare != nil:
		return true
	case r.sink:
		return false
	case out == 0: // the peer has nowhere to write to
		return len(r.segs) < 2 || len(r.segs) < maxSegments && r.total()+r.size <= r.limit
	}
	s := r.segs[r.fill]
	return len(r.segs) == 1 && 2*s.recvd >= len(s.mem)
}

func (r *receiver) owesCredit() bool { return r.allowed-r.count <= uint64(r.window)/2 }

// due tells whether update has something to say.
func (r *receiver) due() bool { return r.owesCredit() || r.wantsSegment() }

// update is one message of flow control.
type update struct {
	desc     descriptor // of length 0: none
	entry    uint32     // where it goes
	limit    uint32
	receives int // to be posted first
}

// update makes the message that is due. What it says must be said.
func (r *receiver) update() (u update, ok bool) {
	if r.wantsSegment() {
		if s := r.pick(); s != nil {
			s.recvd, s.read, s.first, s.full = 0, 0, 0, 0
			r.segs = append(r.segs, s)
			u.desc, u.entry, ok = s.descriptor(), r.entry, true
			r.entry = (r.entry + 1) % r.entries
		}
	}
	if r.owesCredit() {
		ok = true
		// Many messages to a segment: more of them may be on their way.
		if w := min(2*r.window, r.windowMax); u.desc.length == 0 && w > r.window {
			u.receives = w - r.window
			r.window = w
		}
	}
	if ok {
		r.allowed = r.count + uint64(r.window)
		u.limit = uint32(uint16(r.allowed))
	}
	return u, ok
}

// shrink begins with small segments anew and returns those that are not in use.
func (r *receiver) shrink() []*segment {
	free := r.trash
	r.trash = nil
	if r.fill == len(r.segs) {
		return free // the spare is about to be published
	}
	if r.spare != nil {
		free = append(free, r.spare)
		r.spare = nil
	}
	r.size, r.rush = min(segInitial, r.maxSegment()), 0
	return free
}

// pick takes the spare segment if it is of the size wanted, else a new one if there is memory.
func (r *receiver) pick() *segment {
	s := r.spare
	if s == nil || len(s.mem) != r.size && !r.sink {
		if fresh, err := r.mem.getSegment(r.size); err == nil {
			if s != nil {
				r.trash = append(r.trash, s)
			}
			s = fresh
		}
	}
	r.spare = nil
	return s
}

// takeAll empties the receiver, of what is not lent out.
func (r *receiver) takeAll() []*segment {
	free := r.trash
	for _, s := range append(r.segs, r.spare) {
		switch {
		case s == nil:
		case s.pins > 0:
			s.orphan = true
		default:
			free = append(free, s)
		}
	}
	r.segs, r.spare, r.trash, r.fill, r.avail = nil, nil, nil, 0, 0
	return free
}
