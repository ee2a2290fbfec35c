package rpma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// SRQ is a shared receive queue: the messages of all connections that are configured with it take receives from it.
// Their completions tell by QPNum whose message it was.
type SRQ struct {
	peer *Peer
	srq  verbs.SRQ
	q    recvQueue

	// Of a queue with completions of its own.
	own    bool
	poller rc.Poller
	bell   bell
	cq     CQ

	mu     sync.Mutex
	users  int
	conns  map[uint32]*Conn // of users, by the number of the queue pair
	gone   bool
	closed atomic.Bool
	failed atomic.Pointer[Error] // why nothing completes any more, though it is open
}

// NewSRQ makes a shared receive queue; nil takes the defaults.
func (p *Peer) NewSRQ(c *SRQConfig) (*SRQ, error) {
	const op = "shared receive queue"
	if c == nil {
		c = &SRQConfig{}
	}
	n := size(c.RQSize, defaultSRQ)
	if n == 0 {
		return nil, invalid(op, "no room for receives")
	}
	if err := p.begin(op, op); err != nil {
		return nil, err
	}
	s := &SRQ{peer: p}
	s.q.init(p, n)
	if err := s.make(n, size(c.RCQSize, defaultSRQ)); err != nil {
		p.end(op)
		return nil, opError(op, err)
	}
	s.q.open(s.srq)
	return s, nil
}

func (s *SRQ) make(n, completions int) (err error) {
	if s.srq, err = s.peer.dev.PD().CreateSRQ(&verbs.SRQAttr{MaxWR: n, MaxSGE: 1}); err != nil || completions == 0 {
		return err
	}
	s.own = true
	s.bell.poller = &s.poller
	s.cq.over, s.cq.closed = func() bool { return s.ended() != nil }, s.closed.Load
	s.cq.ended = s.ended
	s.cq.polled = func(_, recvs int) { s.q.polled(recvs) }
	s.cq.init(&s.bell)
	if err = s.poller.Open(s.peer.dev.Dev(), max(n, completions), (*srqHandler)(s), 0); err != nil {
		_ = s.srq.Close() // nobody uses it
		return err
	}
	s.poller.Start()
	return nil
}

// ended tells why nothing completes any more in a completion queue of its own.
func (s *SRQ) ended() error {
	if s.closed.Load() {
		return errClosed
	}
	if err := s.failed.Load(); err != nil {
		return err
	}
	return nil
}

// srqHandler takes what completes in the queue's own completion queue.
type srqHandler SRQ

// HandleCompletions implements [rc.Handler].
func (h *srqHandler) HandleCompletions(wcs []verbs.WC) {
	s := (*SRQ)(h)
	var c Completion
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID&recvBit != 0 && s.q.complete(wc, &c) {
			s.cq.push(&c)
		}
		if wc.Status != verbs.Success {
			s.blame(wc)
		}
	}
	s.bell.ring()
}

// blame tells the connection whose receive it was: it is broken.
func (s *SRQ) blame(wc *verbs.WC) {
	s.mu.Lock()
	c := s.conns[wc.QPN]
	s.mu.Unlock()
	switch {
	case c == nil:
	case wc.Status == verbs.WRFlushErr:
		c.failed(nil, true)
	default:
		c.failed(c.failure(wc.Status, wc.VendorErr), false)
	}
}

// HandleEvent implements [rc.Handler].
func (h *srqHandler) HandleEvent(verbs.Event) {}

// HandleFailure implements [rc.Handler]. Connections whose device is gone tell so themselves.
func (h *srqHandler) HandleFailure(err error) {
	h.failed.CompareAndSwap(nil, &Error{Op: "shared receive queue", Code: ErrProvider, Err: err})
	h.bell.ring()
}

// Pending implements [rc.Handler].
func (h *srqHandler) Pending() bool { return false }

// PostRecv posts a receive for a message of any of the connections. dst, or a zero Local for messages without data, is not to be read before the receive has completed,
// and id comes back with its completion.
func (s *SRQ) PostRecv(dst Local, id uint64) error {
	_, err := s.q.post(Recv{dst, id})
	return err
}

// PostRecvs posts receives as [Conn.PostRecvs] does.
func (s *SRQ) PostRecvs(recvs ...Recv) (n int, err error) { return s.q.post(recvs...) }

// CQ is where receives complete; nil if they do so in the connections' queues.
func (s *SRQ) CQ() *CQ {
	if !s.own {
		return nil
	}
	return &s.cq
}

// hold counts a connection to be.
func (s *SRQ) hold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errClosed
	}
	s.users++
	return nil
}

// add makes its queue pair known.
func (s *SRQ) add(c *Conn) {
	s.mu.Lock()
	if s.conns == nil {
		s.conns = make(map[uint32]*Conn)
	}
	s.conns[c.qp.Num()] = c
	s.mu.Unlock()
}

// release takes hold back, and add if there was a connection.
func (s *SRQ) release(c *Conn) {
	s.mu.Lock()
	if c != nil && s.conns[c.qp.Num()] == c { // the number may be another one's by now
		delete(s.conns, c.qp.Num())
	}
	s.users--
	s.mu.Unlock()
}

// Close closes the queue. While connections use it, it refuses with EBUSY and stays usable. Closing twice is no error.
func (s *SRQ) Close() error {
	const op = "close shared receive queue"
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return nil
	case s.users > 0:
		return opError(op, fmt.Errorf("%d %s: %w", s.users, plural("connection", s.users)+" still use it", syscall.EBUSY))
	}
	s.gone = true
	s.q.close()
	var err error
	if s.own {
		s.poller.Progress()
		s.poller.Stop()
	}
	err = s.srq.Close()
	if s.own {
		s.closed.Store(true)
		s.bell.ring()
		s.bell.close()
		if e := s.poller.CQ().Close(); err == nil {
			err = e
		}
	}
	s.peer.end("shared receive queue")
	return opError(op, err)
}
