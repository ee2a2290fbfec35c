package softroce

import (
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
)

// seat is the place of one who waits at the network: it reads what comes, for all queue pairs, as the network's goroutine does
// otherwise, and goes on with what it waits for without another goroutine being woken.
//
// To take and to leave it costs some system calls if others want to be told meanwhile. That does not pay where what comes is mostly for
// others, for a goroutine has to be woken all the same, or where who sits is mostly called away by something else, as the read
// that package net/http's server has in the background of each handler.
type seat struct {
	dev   *device
	taken atomic.Bool
	told  atomic.Uint64 // calls of Notify on the device

	// Of who has taken it.
	before  uint64 // told, then
	crowded uint   // how often it did not pay, lately
	skips   atomic.Int32
}

// maxCrowded is such that at most one of 64 waits sits where that does not pay.
const maxCrowded = 6

var _ verbs.Seater = (*cq)(nil)

// Seat implements [verbs.Seater].
func (c *cq) Seat() verbs.Seat {
	if c.dev.spins.net == nil {
		return nil
	}
	return &c.dev.seat
}

// Take implements [verbs.Seat].
func (s *seat) Take() bool {
	if s.taken.Load() || s.skips.Load() > 0 && s.skips.Add(-1) >= 0 || !s.taken.CompareAndSwap(false, true) {
		return false
	}
	if !s.dev.tryRetain() {
		s.taken.Store(false)
		return false
	}
	s.before = s.told.Load()
	s.dev.spins.sit(s.dev.now())
	return true
}

// Sit implements [verbs.Seat].
func (s *seat) Sit(done func() bool) { s.dev.spins.net.Sit(done) }

// Stand implements [verbs.Seat].
func (s *seat) Stand() { s.dev.spins.net.Stand() }

// Leave implements [verbs.Seat].
func (s *seat) Leave() {
	d := s.dev
	// Who sits is told once itself, unless it is called away.
	if s.told.Load()-s.before != 1 {
		s.crowded = min(s.crowded+2, maxCrowded)
		s.skips.Store(1<<s.crowded - 1)
	} else if s.crowded > 0 {
		s.crowded--
	}
	if !d.spins.rise(d) {
		d.holds.limit(d)
	}
	s.taken.Store(false)
	d.release()
}
