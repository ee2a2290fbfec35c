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
	by          atomic.Pointer[cq] // its queue
	own         atomic.Uint64      // calls of its Notify
	before, had uint64             // told and own, then
	sat         bool               // it has sat down
	crowded     uint               // how often it did not pay, lately
	skips       atomic.Int32
}

// place is the seat for one who waits for a completion queue.
type place struct{ c *cq }

// maxCrowded is such that at most one of 64 waits sits where that does not pay.
const maxCrowded = 6

var _ verbs.Seater = (*cq)(nil)

// Seat implements [verbs.Seater].
func (c *cq) Seat() verbs.Seat {
	if c.dev.spins.net == nil {
		return nil
	}
	return place{c}
}

// tell counts the calls of Notify that are due.
func (s *seat) tell(notify []*cq) {
	s.told.Add(uint64(len(notify)))
	by := s.by.Load()
	for _, c := range notify {
		if c == by {
			s.own.Add(1)
		}
	}
}

// Take implements [verbs.Seat].
func (p place) Take() bool { return p.c.dev.seat.take(p.c) }

// Sit implements [verbs.Seat].
func (p place) Sit(done func() bool) {
	p.c.dev.seat.sat = true
	p.c.dev.spins.net.Sit(done)
}

// Stand implements [verbs.Seat].
func (p place) Stand() { p.c.dev.spins.net.Stand() }

// Leave implements [verbs.Seat].
func (p place) Leave() { p.c.dev.seat.leave() }

func (s *seat) take(c *cq) bool {
	if s.taken.Load() || s.skips.Load() > 0 && s.skips.Add(-1) >= 0 || !s.taken.CompareAndSwap(false, true) {
		return false
	}
	if !s.dev.tryRetain() {
		s.taken.Store(false)
		return false
	}
	s.by.Store(c)
	s.before, s.had, s.sat = s.told.Load(), s.own.Load(), false
	s.dev.spins.sit(s.dev.now())
	return true
}

func (s *seat) leave() {
	d := s.dev
	s.by.Store(nil)
	// Who sits is told itself, unless it is called away: once, or until there is enough of what it waits for. Who
	// had found it before it sat down says nothing about others.
	own := s.own.Load() - s.had
	switch told := s.told.Load() - s.before; {
	case told == 0 && !s.sat:
	case own == 0 || told != own:
		s.crowded = min(s.crowded+2, maxCrowded)
		s.skips.Store(1<<s.crowded - 1)
	case s.crowded > 0:
		s.crowded--
	}
	if !d.spins.rise(d) {
		d.holds.limit(d)
	}
	s.taken.Store(false)
	d.release()
}
