//go:build linux

package shm

import (
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// srq is a shared receive queue: a ring that the peer's queue pairs take receives from. All of them
// are of one process, since the domain is.
//
// Its lock comes before that of a queue pair's receives.
type srq struct {
	pd         *pd
	dev        *device // whose memory the ring is in
	id         uint32
	limitEvent func()
	made       leak.Mark

	mu     sync.Mutex
	rq     recvQueue
	limit  int // armed if not 0
	users  int
	closed bool
}

var errClosedSRQ = fmt.Errorf("shm: shared receive queue: %w", net.ErrClosed)

// CreateSRQ implements [verbs.PD].
func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQ, error) {
	wr, sges := attr.MaxWR, attr.MaxSGE
	if wr == 0 {
		wr = defaultWR
	}
	if sges == 0 {
		sges = defaultSGE
	}
	if wr < 0 || wr > maxSRQWR || sges < 0 || sges > maxSGE {
		return nil, fmt.Errorf("shm: shared receive queue of %d requests with %d entries, the limits are %d and %d: %w",
			wr, sges, maxSRQWR, maxSGE, syscall.EINVAL)
	}
	if err := p.use(); err != nil {
		return nil, err
	}
	s := &srq{pd: p, dev: p.dev, id: p.dev.p.sharedIDs.Add(1), limitEvent: attr.LimitEvent}
	if err := s.rq.init(p.dev, wr, sges); err != nil {
		p.unuse()
		return nil, fmt.Errorf("shm: shared receive queue: %w", err)
	}
	s.made.Made("shared receive queue")
	return s, nil
}

// use counts a queue pair on a link. The ring is for one peer at a time.
func (s *srq) use(d *device) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosedSRQ
	}
	if s.dev != d {
		if s.users > 0 {
			return unsupported("a shared receive queue for connections with several processes")
		}
		old := s.rq.block
		if err := s.rq.move(d); err != nil {
			return err
		}
		s.dev.retire(s.id, old)
		s.dev = d
	}
	s.users++
	return nil
}

func (s *srq) unuse() {
	s.mu.Lock()
	s.users--
	s.mu.Unlock()
}

// PostRecv implements [verbs.SRQ].
func (s *srq) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosedSRQ
	}
	for ; n < len(wrs); n++ {
		full, e := s.rq.post(s.pd, &wrs[n])
		if full || e != nil {
			err = e
			break
		}
	}
	if n > 0 {
		s.rq.publish()
		if s.rq.waiting() && s.dev.linked() {
			s.dev.link.tell(header{Kind: msgShared, ID: s.id})
		}
	}
	return n, err
}

func (s *srq) pending() bool { return s.rq.ready() }

// drain gives what the peer has taken to the queue pairs that it was for. What was for one that is
// no more is gone with it.
func (s *srq) drain() {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		d := s.dev
		res, ok := s.rq.next()
		broken := s.rq.broken
		if ok {
			s.checkLimit()
		}
		var q *qp
		if ok {
			if q = d.qp(res.qpn); q != nil && q.srq == s {
				q.took(&res) // here, so that results keep their order
			}
		}
		s.mu.Unlock()
		switch {
		case broken:
			d.everyQP(func(q *qp) {
				if q.srq == s {
					q.fail()
				}
			})
			// Nothing comes of it any more, and nobody shall look again and again.
			s.rq.drained.Store(s.rq.head.Load())
			return
		case !ok:
			return
		case q != nil && q.srq == s && res.status != verbs.Success:
			q.fail()
		}
	}
}

// checkLimit tells that fewer receives are left than the consumer wants, once.
func (s *srq) checkLimit() {
	if s.limit == 0 || s.rq.posted-s.rq.drained.Load() >= uint64(s.limit) {
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
	case limit < 0 || limit > s.rq.limit:
		return fmt.Errorf("shm: limit of %d receives in a queue for %d: %w", limit, s.rq.limit, syscall.EINVAL)
	}
	s.limit = limit
	s.checkLimit()
	return nil
}

// Close implements [verbs.SRQ]. The queue pairs are gone, and the peer has forgotten the ring when it has
// forgotten them, which it is told of first.
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
	s.dev.retire(s.id, s.rq.block)
	s.pd.unuse()
	return nil
}
