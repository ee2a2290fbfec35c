package dgram

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	// firstInterval is how long a peer may leave what is sent to it unanswered until it is found anew.
	firstInterval = int64(time.Second)
	// lastInterval bounds how it grows while nothing new comes of that: there are peers that never answer.
	lastInterval = int64(64 * time.Second)
	// patience is how long a write waits for a peer to be found anew. After that it goes where the last ones went.
	patience = 100 * time.Millisecond
)

// flight is the search for a peer, which all who want it wait for.
type flight struct {
	done chan struct{}
	err  error
}

// reach returns a way to a peer, with a reference for the caller. It waits while the peer is looked up, until the context ends, or
// for one who writes until the write deadline.
func (s *Socket) reach(ctx context.Context, to Addr, write bool) (*handle, error) {
	to = to.canonical()
	t := &s.peers
	for {
		t.mu.Lock()
		if s.closing {
			t.mu.Unlock()
			return nil, net.ErrClosed
		}
		p := t.get(to, written)
		known := p.h
		if known != nil {
			if known.e.failed.Load() != nil {
				known.unref()
				p.h, known = nil, nil
			} else if !p.due() {
				known.refs.Add(1)
				t.mu.Unlock()
				return known, nil
			}
		}
		f := p.flight
		if f == nil {
			f = s.depart(p)
		}
		t.mu.Unlock()
		if err := s.await(ctx, f, write, known != nil); err != nil {
			return nil, err
		}
		t.mu.Lock()
		h := p.h
		if h != nil {
			h.refs.Add(1)
		}
		t.mu.Unlock()
		switch {
		case h != nil:
			return h, nil
		case ended(f) && f.err != nil:
			return nil, f.err
		}
	}
}

func ended(f *flight) bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// due notes that something is about to be sent, and tells whether the peer is to be found anew first. peers.mu is held.
func (p *peer) due() bool {
	if p.addr.IP.IsMulticast() {
		return false // groups do not answer
	}
	t, since := now(), p.waiting.Load()
	if p.suspect.Load() && t-p.asked > firstInterval {
		return true
	}
	if since == 0 {
		p.waiting.CompareAndSwap(0, t)
		return false
	}
	return t-max(since, p.asked) > p.interval
}

// await waits for a flight. If short, only for a moment.
func (s *Socket) await(ctx context.Context, f *flight, write, short bool) error {
	var soon <-chan time.Time
	if short {
		t := time.NewTimer(patience)
		defer t.Stop()
		soon = t.C
	}
	var late <-chan struct{}
	if write {
		late = s.wrDeadline.Past()
	}
	select {
	case <-f.done:
		return nil
	case <-soon:
		return nil
	case <-late:
		return os.ErrDeadlineExceeded
	case <-s.ctx.Done():
		return net.ErrClosed
	case <-ctx.Done():
		if s.ctx.Err() != nil {
			return net.ErrClosed
		}
		return ctx.Err()
	}
}

// depart begins the search for a peer. peers.mu is held.
func (s *Socket) depart(p *peer) *flight {
	f := &flight{done: make(chan struct{})}
	p.flight = f
	again := p.asked != 0
	e, local := p.e, p.local
	s.tasks.Go(func() {
		h, err := s.find(p.addr, e, local, again)
		s.arrive(p, f, h, err)
	})
	return f
}

// arrive ends the search.
func (s *Socket) arrive(p *peer, f *flight, h *handle, err error) {
	t := &s.peers
	t.mu.Lock()
	defer t.mu.Unlock()
	old := p.h
	p.flight, p.asked = nil, now()
	p.suspect.Store(false)
	var refused *verbs.LookupError
	gone := errors.As(err, &refused) && refused.Status == verbs.SIDRUnsupported
	switch {
	case err == nil:
		if old != nil && (old.qpn != h.qpn || old.qkey != h.qkey) {
			p.interval = firstInterval
		} else if old != nil {
			p.interval = min(2*p.interval, lastInterval)
		}
		p.h = h
		if p.addr.QPN != h.qpn && !p.addr.IP.IsMulticast() {
			// What comes from that queue pair is the service's answer.
			a := Addr{IP: p.addr.IP, QPN: h.qpn, QKey: h.qkey}.canonical()
			q := t.get(a, written)
			q.service.Store(p)
			if p.addr == s.dialedTo {
				s.dialed.Store(&target{ip: a.IP.WithZone(""), qpn: h.qpn, p: p})
			}
		} else if p.addr == s.dialedTo {
			s.dialed.Store(&target{ip: p.addr.IP.WithZone(""), qpn: h.qpn, p: p})
		}
	case gone:
		// Whoever wants the service next is told so by its host.
		p.h = nil
	default:
		// What was known before may still be right.
		p.interval = min(2*p.interval, lastInterval)
		h = old
	}
	if old != nil && h != old {
		old.unref()
	}
	if f.err = err; p.h != nil {
		f.err = nil
	}
	close(f.done)
}

// target is the only peer of a socket that was dialed.
type target struct {
	ip  netip.Addr
	qpn uint32
	p   *peer
}

// is tells whether a datagram came from the target. If it came from another queue pair of the same host, the
// service may have moved there.
func (t *target) is(p *peer) bool {
	if p.addr.IP.WithZone("") != t.ip {
		return false
	}
	if p.addr.QPN != t.qpn {
		t.p.suspect.Store(true)
		return false
	}
	return true
}

// find finds a peer. e and local are those of a sender.
func (s *Socket) find(to Addr, e *endpoint, local netip.Addr, again bool) (*handle, error) {
	switch {
	case to.IP.IsMulticast():
		return s.findGroup(to.IP)
	case e != nil && e.failed.Load() == nil:
		p := verbs.UDParam{QPN: to.QPN, QKey: to.QKey}
		p.AH = verbs.AHAttr{Local: local, Remote: to.IP, TrafficClass: s.cfg.TrafficClass, LID: to.LID, SL: to.SL}
		if !local.IsValid() {
			p.AH.Local = e.id.LocalAddr().Addr()
		}
		return newHandle(s.ctx, e, &p)
	case !to.IP.IsValid():
		return nil, fmt.Errorf("no address: %w", syscall.EDESTADDRREQ)
	}
	from := s.cfg.Local
	if from.IsUnspecified() {
		from = netip.Addr{}
	}
	id, err := s.cfg.Resolve(s.ctx, s.cfg.Devices, verbs.CMIDAttr{
		PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(from, s.firstPort(again)),
		Remote: netip.AddrPortFrom(to.IP, to.Port), TrafficClass: s.cfg.TrafficClass,
	})
	if err != nil {
		return nil, err
	}
	defer id.Close()
	s.lookupOn.CompareAndSwap(nil, &deviceName{id.Provider().Name(), id.Device().Name()})
	ud, ok := id.(verbs.UDCMID)
	if !ok {
		return nil, fmt.Errorf("device %s has no datagrams: %w", id.Device().Name(), syscall.EPROTONOSUPPORT)
	}
	p := &verbs.UDParam{QPN: to.QPN, QKey: to.QKey}
	p.AH = verbs.AHAttr{Local: id.LocalAddr().Addr(), Remote: id.RemoteAddr().Addr(), TrafficClass: s.cfg.TrafficClass}
	if to.QPN == 0 || again && to.Port != 0 {
		if to.Port == 0 {
			return nil, fmt.Errorf("neither a port nor a queue pair: %w", syscall.EDESTADDRREQ)
		}
		if p, err = ud.Lookup(s.ctx, s.cfg.PrivateData); err != nil {
			return nil, err
		}
	}
	own, err := s.endpoint(s.ctx, epKey{id.Device(), verbs.PSUDP, s.bound(id)})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if !s.lookupAddr.IsValid() {
		s.lookupAddr = id.LocalAddr()
	}
	s.mu.Unlock()
	return newHandle(s.ctx, own, p)
}

// firstPort is the local port to look the first service up from, as the user wants it.
func (s *Socket) firstPort(again bool) uint16 {
	if again || s.remote == nil {
		return 0
	}
	return s.cfg.LocalPort
}

// bound is the address that an endpoint is bound to which serves what an identifier leads to.
func (s *Socket) bound(id verbs.CMID) netip.Addr {
	if s.remote != nil {
		return id.LocalAddr().Addr() // there is one peer, so the limit of a datagram is that of the way to it
	}
	return s.cfg.Local
}
