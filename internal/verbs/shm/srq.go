//go:build linux

package shm

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// srq is a shared receive queue. The receives are its own: it lends them to the processes that it has queue pairs with, each of which
// has a ring of its own, a lane, and takes what was lent to it as from any other ring. What a process has not taken is withdrawn when another needs it.
//
// Its lock comes before that of a queue pair's receives.
type srq struct {
	pd         *pd
	limitEvent func()
	maxSGE     int
	made       leak.Mark

	mu      sync.Mutex
	entries []recvWR
	lists   []verbs.SGE // maxSGE of each entry
	free    []int32     // entries without a receive
	ready   fifo[int32] // those that are lent to nobody
	lanes   []*lane
	wanting fifo[*lane] // those whose process waits for a receive
	short   fifo[*lane] // others that are to have more
	left    int         // receives that no message has taken
	limit   int         // armed if not 0
	users   int
	closed  bool
}

var errClosedSRQ = fmt.Errorf("shm: shared receive queue: %w", net.ErrClosed)

// CreateSRQ implements [verbs.PD].
func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQ, error) {
	wr, sges, err := attr.Limits("shm", defaultWR, defaultSGE, maxSRQWR, maxSGE)
	if err != nil {
		return nil, err
	}
	if err := p.Use(); err != nil {
		return nil, err
	}
	s := &srq{
		pd: p, limitEvent: attr.LimitEvent, maxSGE: sges,
		entries: make([]recvWR, wr), lists: make([]verbs.SGE, wr*sges), free: make([]int32, wr),
	}
	for i := range s.free {
		s.free[i] = int32(wr - 1 - i)
	}
	s.made.Made("shared receive queue")
	return s, nil
}

// use counts a queue pair on a link, and finds the lane of that.
func (s *srq) use(d *device) (*lane, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosedSRQ
	}
	i := slices.IndexFunc(s.lanes, func(l *lane) bool { return l.dev == d })
	if i < 0 {
		l, err := s.newLane(d)
		if err != nil {
			return nil, err
		}
		i = len(s.lanes)
		s.lanes = append(s.lanes, l)
		s.wantsMore(l)
		s.share()
	}
	s.users++
	s.lanes[i].users++
	return s.lanes[i], nil
}

// unuse is the end of a queue pair. With the last one of a link its lane goes, and what the process there is in the middle of comes back
// when that has said that it is done.
func (s *srq) unuse(l *lane) {
	s.mu.Lock()
	s.users--
	l.users--
	last := l.users == 0
	if last {
		s.lanes = slices.DeleteFunc(s.lanes, func(o *lane) bool { return o == l })
		l.over = true
		l.takeBack(-1)
		s.share()
	}
	s.mu.Unlock()
	if !last {
		return
	}
	if l.dev.link == nil {
		l.finish()
		l.dev.rings.put(l.rq.block)
		return
	}
	l.dev.link.bye(dyingRing{true, l.id}, dying{l.rq.block, l})
}

// PostRecv implements [verbs.SRQ].
func (s *srq) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosedSRQ
	}
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		if len(wr.SGL) > s.maxSGE {
			err = fmt.Errorf("shm: %d scatter entries, the limit is %d: %w", len(wr.SGL), s.maxSGE, syscall.EINVAL)
			break
		}
		last := len(s.free) - 1
		if last < 0 {
			break
		}
		i := s.free[last]
		s.free = s.free[:last]
		w := recvWR{id: wr.ID, entry: i, n: keepList(s.lists[int(i)*s.maxSGE:], wr.SGL)}
		for k := range wr.SGL {
			w.room += uint64(wr.SGL[k].Length)
		}
		s.entries[i] = w
		s.ready.push(i)
		s.left++
	}
	s.share()
	return n, err
}

// listOf is the list of a receive.
func (s *srq) listOf(w *recvWR) []verbs.SGE { return s.lists[int(w.entry)*s.maxSGE:][:w.n] }

// consumed is told that a message has taken a receive. s.mu is held.
func (s *srq) consumed(w *recvWR) {
	s.free = append(s.free, w.entry)
	s.left--
	s.checkLimit()
}

// checkLimit tells that fewer receives are left than the consumer wants, once.
func (s *srq) checkLimit() {
	if s.limit == 0 || s.left >= s.limit {
		return
	}
	s.limit = 0
	if s.limitEvent != nil {
		go s.tellLimit() // the consumer may be inside a call
	}
}

func (s *srq) tellLimit() {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if !closed {
		s.limitEvent()
	}
}

// ArmLimit implements [verbs.SRQ].
func (s *srq) ArmLimit(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosedSRQ
	case limit < 0 || limit > len(s.entries):
		return fmt.Errorf("shm: limit of %d receives in a queue for %d: %w", limit, len(s.entries), syscall.EINVAL)
	}
	s.limit = limit
	s.checkLimit()
	return nil
}

// Close implements [verbs.SRQ]. The queue pairs are gone.
func (s *srq) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	if s.users > 0 {
		defer s.mu.Unlock()
		return fmt.Errorf("shm: shared receive queue of %d queue pairs: %w", s.users, verbs.ErrBusy)
	}
	s.closed = true
	s.made.Gone()
	s.mu.Unlock()
	s.pd.Unuse()
	return nil
}
