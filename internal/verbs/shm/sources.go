//go:build linux

package shm

import (
	"math/bits"
	"sync/atomic"
)

// A completion queue looks for what peers have done in the rings of its queue pairs: directly in the first few, so that
// nothing is in their way, and in others where the peer has left a mark. So a queue that many share costs what has happened.
//
// Marks are bits on the board, 64 words of a queue, and a word that says which of them have any. The peer moves a ring first,
// then marks it, then looks whether the queue is armed; the owner takes marks first and looks at rings afterwards.

const (
	directly  = 8 // sources without a mark
	markWords = 64
	marks     = 64 * markWords // sources beyond share them
)

// source is where completions come from that the peer has made: a receive queue.
type source interface {
	// pending tells whether there are any; it takes no lock.
	pending() bool
	// drain moves them into completion queues.
	drain()
}

// member is a source that a queue looks at.
type member struct {
	slot  int // its place, and its mark
	users int
}

func summaryWord(board []byte, cq uint32) *atomic.Uint64 {
	return word64(board, armOff+int(cq)*armStride+8)
}

func markWord(board []byte, cq uint32, i int) *atomic.Uint64 {
	return word64(board, markOff+(int(cq)*markWords+i)*8)
}

// mark is the peer's part.
func mark(board []byte, cq, slot uint32) {
	if slot < directly {
		return
	}
	slot %= marks
	w, bit := markWord(board, cq, int(slot/64)), uint64(1)<<(slot%64)
	if w.Load()&bit == 0 { // else the owner is still to take it, and looks at the ring then
		w.Or(bit)
		summaryWord(board, cq).Or(1 << (slot / 64))
	}
}

// gather moves what the peers have done into the queue. It tells whether there was anything.
func (c *cq) gather() (found bool) {
	c.reading.RLock()
	defer c.reading.RUnlock()
	for _, s := range c.sources[:min(directly, len(c.sources))] {
		if s != nil && s.pending() {
			s.drain()
			found = true
		}
	}
	if len(c.sources) <= directly {
		return found
	}
	if !c.dev.open {
		return c.gatherMarked(c.dev.board, c.num) || found
	}
	for i := range c.looks {
		found = c.gatherMarked(c.looks[i].dev.board, c.looks[i].num) || found
	}
	return found
}

func (c *cq) gatherMarked(board []byte, num uint32) (found bool) {
	sum := summaryWord(board, num)
	if sum.Load() == 0 {
		return false
	}
	for s := sum.Swap(0); s != 0; s &= s - 1 {
		word := bits.TrailingZeros64(s)
		for w := markWord(board, num, word).Swap(0); w != 0; w &= w - 1 {
			for slot := word*64 + bits.TrailingZeros64(w); slot < len(c.sources); slot += marks {
				if src := c.sources[slot]; slot >= directly && src != nil && src.pending() {
					src.drain()
					found = true
				}
			}
		}
	}
	return found
}

// use counts a queue pair, and the sources that come with it.
func (c *cq) use(ss ...source) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosedCQ
	}
	c.users++
	c.mu.Unlock()
	c.reading.Lock()
	defer c.reading.Unlock()
	for _, s := range ss {
		m, ok := c.members[s]
		if !ok {
			m = member{slot: len(c.sources)}
			if n := len(c.freeSlots); n > 0 {
				m.slot = c.freeSlots[n-1]
				c.freeSlots = c.freeSlots[:n-1]
				c.sources[m.slot] = s
			} else {
				c.sources = append(c.sources, s)
			}
		}
		m.users++
		c.members[s] = m
	}
	return nil
}

// unuse takes them back. Nobody reads them once it returns.
func (c *cq) unuse(ss ...source) {
	c.reading.Lock()
	for _, s := range ss {
		m := c.members[s]
		if m.users--; m.users > 0 {
			c.members[s] = m
			continue
		}
		delete(c.members, s)
		c.sources[m.slot] = nil
		c.freeSlots = append(c.freeSlots, m.slot)
	}
	c.reading.Unlock()
	c.mu.Lock()
	c.users--
	c.mu.Unlock()
}

// slotOf is a source's place.
func (c *cq) slotOf(s source) uint32 {
	c.reading.RLock()
	defer c.reading.RUnlock()
	return uint32(c.members[s].slot)
}
