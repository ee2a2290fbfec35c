//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// srq is a shared receive queue.
type srq struct {
	pd         *pd
	token      uint64
	maxSGE     int
	limitEvent func()
	made       leak.Mark

	mu     sync.Mutex
	h      *coreSRQ // nil once closed, or its device was given up
	users  int
	closed bool
	ids    []uint64 // the consumer's, by place
	bufs   []buffer // where the receives begin, by place
	avail  []uint32 // places that are free: receives complete in any order
}

// CreateSRQ implements [verbs.PD].
func (p *pd) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQ, error) {
	d := p.dev
	a := *attr
	if a.MaxWR == 0 {
		a.MaxWR = min(defaultWR, d.attr.maxSRQWR)
	}
	if a.MaxSGE == 0 {
		a.MaxSGE = min(defaultSGE, d.attr.maxSRQSGE)
	}
	switch {
	case d.attr.maxSRQWR == 0:
		return nil, unsupported("shared receive queues on device " + d.name)
	case a.MaxWR < 0 || a.MaxWR > d.attr.maxSRQWR || a.MaxSGE < 0 || a.MaxSGE > d.attr.maxSRQSGE:
		return nil, fmt.Errorf("rdmacore: shared receive queue of %d requests with %d entries, the limits are %d and %d: %w",
			a.MaxWR, a.MaxSGE, d.attr.maxSRQWR, d.attr.maxSRQSGE, syscall.EINVAL)
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	h, err := p.use()
	if err != nil {
		return nil, err
	}
	s := &srq{pd: p, token: newToken(), maxSGE: a.MaxSGE, limitEvent: a.LimitEvent}
	if s.h, err = coreCreateSRQ(h, a.MaxWR, a.MaxSGE, s.token); err != nil {
		p.Unuse()
		return nil, d.failure("shared receive queue", d.c.p.host.memlock(a.MaxWR*16*(1+a.MaxSGE), err))
	}
	s.ids, s.bufs = make([]uint64, a.MaxWR), make([]buffer, a.MaxWR)
	for i := a.MaxWR; i > 0; i-- {
		s.avail = append(s.avail, uint32(i-1))
	}
	d.mu.Lock()
	d.srqs[s.token] = s
	d.mu.Unlock()
	s.made.Made("shared receive queue")
	return s, nil
}

func (s *srq) use() (*coreSRQ, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return nil, fmt.Errorf("rdmacore: shared receive queue: %w", s.pd.dev.closedError())
	}
	s.users++
	return s.h, nil
}

func (s *srq) unuse() {
	s.mu.Lock()
	s.users--
	s.mu.Unlock()
}

// PostRecv implements [verbs.SRQ].
func (s *srq) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	b := batches.Get().(*batch)
	defer batches.Put(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.h == nil:
		return 0, s.pd.dev.closedError()
	case s.pd.dev.gone.Load():
		return 0, s.pd.dev.failure("posting", syscall.ENODEV) // drivers that post without the kernel do not notice
	}
	for n < len(wrs) {
		room := len(s.avail)
		k, bad := b.fillRecv(wrs[n:], room, s.maxSGE, false, s.put)
		if k > 0 {
			order.Release()
			var done int
			done, err = b.postSRQ(s.h, k)
			s.avail = s.avail[:room-done]
			n += done
		}
		switch {
		case err == nil && bad == nil && k > 0:
			continue
		case errors.Is(err, syscall.ENOMEM) && !s.pd.dev.gone.Load():
			return n, nil // full
		case err != nil:
			return n, s.pd.dev.failure("posting", err)
		}
		return n, bad
	}
	return n, nil
}

// put takes a free place. They are taken from the end of the list, the last one first, so that what
// the driver does not take is the front of what was taken.
func (s *srq) put(wr *verbs.RecvWR) uint64 {
	i := s.avail[len(s.avail)-1]
	s.avail = s.avail[:len(s.avail)-1]
	s.ids[i], s.bufs[i] = wr.ID, bufferOf(wr)
	return kindSRQ | s.token<<genShift&^kindMask | uint64(i)
}

// buffer is where a receive begins that has completed and is not yet free.
func (s *srq) buffer(i uint32) buffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bufs[i]
}

// free frees the place of a completed receive and returns the consumer's ID.
func (s *srq) free(i uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.avail = append(s.avail, i)
	return s.ids[i]
}

// ArmLimit implements [verbs.SRQ].
func (s *srq) ArmLimit(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h == nil {
		return s.pd.dev.closedError()
	}
	if err := coreArmSRQ(s.h, limit); err != nil {
		return s.pd.dev.failure("arming a shared receive queue", err)
	}
	return nil
}

// Close implements [verbs.SRQ].
func (s *srq) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.pd.dev
	switch {
	case s.closed:
		return nil
	case s.users > 0:
		return fmt.Errorf("rdmacore: shared receive queue of %d queue pairs: %w", s.users, verbs.ErrBusy)
	}
	if s.h != nil {
		if err := coreDestroySRQ(s.h); err != nil && !d.gone.Load() {
			return d.failure("destroying a shared receive queue", err)
		}
	}
	s.h, s.closed = nil, true
	d.mu.Lock()
	delete(d.srqs, s.token)
	d.mu.Unlock()
	s.pd.Unuse()
	s.made.Gone()
	return nil
}

var _ verbs.SRQ = (*srq)(nil)
