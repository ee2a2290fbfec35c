//go:build linux

package shm

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
)

// lane is the ring that one process takes receives of a shared receive queue from. The queue's lock guards it, but for pending.
type lane struct {
	s     *srq
	dev   *device // of the link
	id    uint32
	rq    recvQueue
	out   int // receives that are lent
	users int
	inc   bool        // it is among those that are to have more
	wants bool        // its process has none, and has been told so
	over  bool        // nothing is lent any more
	done  atomic.Bool // the process takes nothing any more
}

// mostLent bounds what is lent to one of several processes, and the memory that its ring takes.
const mostLent = 1 << 10

func (s *srq) newLane(d *device) (*lane, error) {
	n := len(s.entries)
	if s.pd.dev.open {
		n = min(n, mostLent)
	}
	l := &lane{s: s, dev: d, id: d.p.sharedIDs.Add(1)}
	if err := l.rq.init(d, 1<<bits.Len(uint(n-1)), s.maxSGE); err != nil {
		return nil, err
	}
	return l, nil
}

// wantsMore has a lane get some when there are any. s.mu is held, as by all that follow unless they say otherwise.
func (s *srq) wantsMore(l *lane) {
	if !l.inc && !l.over {
		l.inc = true
		s.short.push(l)
	}
}

// quota is how many receives one lane is to have.
func (s *srq) quota() int { return max(1, len(s.entries)/max(1, len(s.lanes))) }

// share lends what is lent to nobody: first to those whose process waits for a receive. If there are more of these, they ask again: one that
// got something may have waited for it and be stopped, or wait no more.
func (s *srq) share() {
	gave := false
	for s.ready.n > 0 && s.wanting.n > 0 {
		l := s.wanting.pop()
		l.wants = false
		s.give(l, max(1, s.portion(l)))
		gave = true
	}
	for gave && s.wanting.n > 0 {
		l := s.wanting.pop()
		l.wants = false
		if !l.over && l.dev.linked() {
			l.rq.waits.Store(0)
			l.dev.link.tell(header{Kind: msgShared, ID: l.id})
		}
	}
	for s.ready.n > 0 && s.short.n > 0 {
		l := s.short.pop()
		l.inc = false
		s.give(l, s.portion(l))
		if s.portion(l) > 0 {
			s.wantsMore(l)
		}
	}
}

// portion is how many receives a lane gets at a time: others want some, too.
func (s *srq) portion(l *lane) int {
	if l.over || !l.dev.linked() {
		return 0
	}
	return min(s.quota()-l.out, l.room(), 1+s.ready.n/(s.short.n+1))
}

func (l *lane) room() int { return int(l.rq.slots) - int(l.rq.posted-l.rq.drained.Load()) }

// give lends so many receives to a lane, or fewer.
func (s *srq) give(l *lane, n int) {
	if n = min(n, l.room(), s.ready.n); n <= 0 || l.over || !l.dev.linked() {
		return
	}
	for range n {
		l.lend(s.ready.pop())
	}
	l.rq.publish()
	if l.rq.waiting() {
		l.dev.link.tell(header{Kind: msgShared, ID: l.id})
	}
}

// lend puts a receive where the lane's process finds it.
func (l *lane) lend(entry int32) {
	r := &l.rq
	at := r.posted & (r.slots - 1)
	w := l.s.entries[entry]
	slot := r.slot(at)
	list := l.s.listOf(&w)
	for i := range list {
		putEntry(slot, i, &list[i])
	}
	word64(slot, slotSGEs).Store(lent | uint64(len(list)))
	r.own[at] = w
	r.posted++
	l.out++
}

// takeBack withdraws as many receives, -1: all, which the process has not taken; the newest first.
func (l *lane) takeBack(most int) {
	r := &l.rq
	for n := r.posted; n != r.drained.Load() && most != 0; {
		n--
		at := n & (r.slots - 1)
		w := &r.own[at]
		switch {
		case w.gone || w.serving:
		case l.done.Load() || word64(r.slot(at), slotSGEs).CompareAndSwap(lent|uint64(w.n), withdrawn):
			l.returned(w)
			most--
		case n-r.drained.Load() > r.head.Load()-r.drained.Load() && !r.broken:
			// A process takes one at a time, the one behind the head.
			r.broken = true
			go l.fail() // queue pairs' locks come before this one
		}
	}
}

// returned has a receive that was lent be lent to others.
func (l *lane) returned(w *recvWR) {
	w.gone = true
	l.out--
	l.s.ready.pushFront(w.entry)
}

// gotWant is told that the process of a lane has no receives. No lock is held.
func (l *link) gotWant(h header) {
	if lane := l.dev.lane(h.ID); lane == nil || !lane.want() {
		l.tell(header{Kind: msgNone, Extra: h.Extra, ID: h.ID})
	}
}

// lane finds a lane that has queue pairs; nil: there is none.
func (d *device) lane(id uint32) *lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.qps {
		if q.lane != nil && q.lane.id == id {
			return q.lane
		}
	}
	return nil
}

// want sees to it that the lane has a receive, if there is any, and tells its process. No lock is held.
func (l *lane) want() bool {
	l.drain()
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.over {
		return false
	}
	if !l.idle() {
		if s.ready.n == 0 {
			s.withdrawFor(l)
		}
		s.give(l, max(1, s.portion(l)))
		s.share()
	}
	if !l.idle() {
		if !l.wants {
			l.wants = true
			s.wanting.push(l)
		}
		return false
	}
	l.rq.waits.Store(0)
	l.dev.link.tell(header{Kind: msgShared, ID: l.id})
	return true
}

// idle tells whether the process has a receive that it has not taken.
func (l *lane) idle() bool {
	r := &l.rq
	for n := r.head.Load(); n-r.drained.Load() < r.posted-r.drained.Load(); n++ {
		if at := n & (r.slots - 1); !r.own[at].gone && word64(r.slot(at), slotSGEs).Load()&whose == lent {
			return true
		}
	}
	return false
}

// withdrawFor takes receives from the lane that has most, or from any.
func (s *srq) withdrawFor(l *lane) {
	richest := slices.MaxFunc(s.lanes, func(a, b *lane) int { return a.out - b.out })
	if richest != l {
		richest.takeBack(max(1, richest.out/2))
	}
	for _, o := range s.lanes {
		if s.ready.n > 0 {
			return
		}
		if o != l {
			o.takeBack(1)
		}
	}
}

// pending implements source.
func (l *lane) pending() bool { return l.rq.ready() && !l.done.Load() }

// drain gives what the process has taken to the queue pairs that it was for. A receive for one that is no more is lent again.
func (l *lane) drain() {
	s := l.s
	for {
		s.mu.Lock()
		if l.done.Load() {
			s.mu.Unlock()
			return
		}
		res, ok := l.rq.next()
		var q *qp
		if ok {
			l.out--
			// Here, so that results keep their order.
			if q = l.dev.qp(res.qpn); q != nil && q.lane == l && q.took(&res) {
				s.consumed(&res.recvWR)
			} else {
				s.ready.pushFront(res.entry)
			}
		} else {
			s.wantsMore(l)
			s.share()
		}
		broken := l.rq.broken
		s.mu.Unlock()
		switch {
		case broken:
			l.fail()
			return
		case !ok:
			return
		case q != nil && q.lane == l && res.status != verbs.Success:
			q.fail()
		}
	}
}

// fail is the end of a lane whose process writes what makes no sense.
func (l *lane) fail() {
	l.lost()
	l.dev.everyQP(func(q *qp) {
		if q.lane == l {
			q.fail()
		}
	})
}

// lost has all come back that was lent: the process is no more, or not to be believed.
func (l *lane) lost() {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.done.Swap(true) {
		return
	}
	l.over = true
	l.takeBack(-1)
	s.share()
}

// receive copies the list of receive number n to dst, if the process may have taken it. It is kept for the process until served.
// No lock is held.
func (l *lane) receive(n uint64, dst []verbs.SGE) []verbs.SGE {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	w := l.rq.numbered(n)
	if w == nil || w.gone || l.over {
		return dst
	}
	w.serving = true
	return append(dst, l.s.listOf(w)...)
}

// served is the end of that.
func (l *lane) served(n uint64) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	w := l.rq.numbered(n)
	if w == nil || !w.serving {
		return
	}
	w.serving = false
	if l.done.Load() && !w.gone {
		l.returned(w)
		l.s.share()
	}
}

// finish is told that the process takes nothing any more.
func (l *lane) finish() {
	l.drain()
	l.lost()
}
