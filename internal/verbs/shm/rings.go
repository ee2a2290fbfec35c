//go:build linux

package shm

import (
	"math/bits"
	"sync"
)

// block is memory for a ring.
type block struct {
	mem     []byte
	segment uint32
	offset  uint64
	whole   bool // a segment of its own
}

const (
	ringSegment = 2 << 20
	largestPart = ringSegment / 2
	leastBlock  = 512
)

// ringAllocator cuts rings out of segments, which stay as long as the device: no more of them than were in use at once.
type ringAllocator struct {
	dev *device

	mu       sync.Mutex
	segments []block
	used     int // of the last segment
	spare    [22][]block
}

// get returns memory for at least n bytes, whose header is zero.
func (r *ringAllocator) get(n int) (block, error) {
	class := bits.Len(uint(max(n, leastBlock) - 1))
	size := 1 << class
	r.mu.Lock()
	defer r.mu.Unlock()
	if size > largestPart {
		size = (n + pageSize - 1) &^ (pageSize - 1)
		mem, num, err := r.dev.export(size)
		return block{mem: mem, segment: num, whole: true}, err
	}
	if s := r.spare[class]; len(s) > 0 {
		b := s[len(s)-1]
		r.spare[class] = s[:len(s)-1]
		clear(b.mem[:ringSlots])
		return b, nil
	}
	if len(r.segments) == 0 || r.used+size > ringSegment {
		mem, num, err := r.dev.export(ringSegment)
		if err != nil {
			return block{}, err
		}
		r.segments = append(r.segments, block{mem: mem, segment: num})
		r.used = 0
	}
	s := &r.segments[len(r.segments)-1]
	b := block{mem: s.mem[r.used : r.used+size : r.used+size], segment: s.segment, offset: uint64(r.used)}
	r.used += size
	return b, nil
}

// put takes a ring back that the peer does not use any more.
func (r *ringAllocator) put(b block) {
	if b.whole {
		r.dev.unexport(b.mem, b.segment)
		return
	}
	class := bits.Len(uint(len(b.mem) - 1))
	r.mu.Lock()
	r.spare[class] = append(r.spare[class], b)
	r.mu.Unlock()
}

// free gives all segments back. No ring is in use.
func (r *ringAllocator) free() {
	for _, s := range r.segments {
		dropSegment(s.mem)
	}
	r.segments = nil
}
