package softroce

import (
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// maxSRQWR is the most receives of a shared queue, which serves many queue pairs.
const maxSRQWR = 1 << 16

// srq is a shared receive queue (IBTA 10.2.9). A message takes the oldest receive when it begins, and
// its queue pair has it from then on, as the only one in its own receive queue: what goes for that goes for it.
//
// Its lock comes after a queue pair's.
type srq struct {
	dev        *device
	maxSGE     int
	limitEvent func()
	made       leak.Mark

	mu     sync.Mutex
	keys   keys
	rq     queue[recvWQE]
	limit  int // armed if not 0
	users  int // queue pairs
	closed bool
}

// CreateSRQ implements [verbs.PD].
func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQ, error) {
	wr, sges, err := attr.Limits("softroce", defaultWR, defaultSGE, maxSRQWR, maxSGE)
	if err != nil {
		return nil, err
	}
	if err := p.Use(); err != nil {
		return nil, err
	}
	s := &srq{dev: p.dev, maxSGE: sges, limitEvent: attr.LimitEvent, keys: keys{pd: p}}
	s.rq.limit = uint32(wr)
	s.made.Made("shared receive queue")
	return s, nil
}

var errClosedSRQ = fmt.Errorf("softroce: shared receive queue: %w", net.ErrClosed)

// use counts a queue pair.
func (s *srq) use() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosedSRQ
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
		wr := &wrs[n]
		if len(wr.SGL) > s.maxSGE {
			return n, fmt.Errorf("softroce: %d scatter entries, the limit is %d: %w", len(wr.SGL), s.maxSGE, syscall.EINVAL)
		}
		e := s.rq.next()
		if e == nil {
			break
		}
		e.fill(&s.keys, wr)
		s.rq.tail++
	}
	return n, nil
}

// taken says what came of an attempt to take a receive.
type taken uint8

const (
	tookNone  taken = iota // there is none
	tookShort              // the oldest is too small, and stays
	tookOne
)

// take moves the oldest receive to a queue pair, which is locked and has none. need is what a
// datagram needs room for; a connection finds out.
func (s *srq) take(q *qp, need uint64) taken {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rq.len() == 0 {
		return tookNone
	}
	e := s.rq.at(s.rq.head)
	if !e.bad && e.room() < need {
		return tookShort
	}
	q.rq.next().set(e)
	q.rq.tail++
	if s.rq.head++; s.rq.len() == 0 {
		s.rq.emptied()
	}
	s.checkLimit()
	return tookOne
}

// giveBack makes the receive that a queue pair has taken and does not need the oldest one again.
func (s *srq) giveBack(q *qp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rq.len() == len(s.rq.ring) {
		s.rq.grow() // maybe beyond the limit: others were posted meanwhile
	}
	s.rq.head--
	s.rq.at(s.rq.head).set(q.rq.at(q.rq.head))
	q.rq.head++
}

// checkLimit tells that fewer receives are left than the consumer wants, once. It is told on a goroutine of its own:
// a queue pair is locked here, and the consumer may be inside a call.
func (s *srq) checkLimit() {
	if s.limit == 0 || s.rq.len() >= s.limit {
		return
	}
	s.limit = 0
	if s.limitEvent != nil {
		go s.tellLimit()
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

// ArmLimit implements [verbs.SRQ]. A queue that is below the limit already tells so at once: an empty one would never fall any more.
func (s *srq) ArmLimit(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errClosedSRQ
	case limit < 0 || limit > int(s.rq.limit):
		return fmt.Errorf("softroce: limit of %d receives in a queue for %d: %w", limit, s.rq.limit, syscall.EINVAL)
	}
	s.limit = limit
	s.checkLimit()
	return nil
}

// Close implements [verbs.SRQ]. The handler may be running still, but is not called any more.
func (s *srq) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.users > 0:
		return fmt.Errorf("softroce: shared receive queue of %d queue pairs: %w", s.users, verbs.ErrBusy)
	}
	s.closed = true
	s.rq = queue[recvWQE]{}
	s.keys.pd.Unuse()
	s.made.Gone()
	return nil
}

var _ verbs.SRQ = (*srq)(nil)
