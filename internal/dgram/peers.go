package dgram

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// handle is a way to a peer. It is not changed: a peer that has moved gets another one.
type handle struct {
	e         *endpoint
	ah        verbs.AH
	qpn, qkey uint32
	refs      atomic.Int32 // the table's and those of requests
}

func newHandle(ctx context.Context, e *endpoint, p *verbs.UDParam) (*handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ah, err := e.dev.PD().CreateAH(&p.AH)
	if err != nil {
		return nil, err
	}
	h := &handle{e: e, ah: ah, qpn: p.QPN, qkey: p.QKey}
	h.refs.Store(1)
	e.s.handles.Add(1)
	return h, nil
}

// unref gives a reference back.
func (h *handle) unref() {
	if h.refs.Add(-1) == 0 {
		_ = h.ah.Close() // no request names it
		h.e.s.handles.Done()
	}
}

// peer is an entry of the table: a service, a queue pair or a group.
type peer struct {
	addr  Addr
	shown net.Addr // what Config.Intern made of addr

	// Of a queue pair that has sent something.
	e     *endpoint
	local netip.Addr // the own address that it sent to

	prev, next *peer   // by use; guarded by peers.mu, as is what follows
	kind       int     // written or strangers
	h          *handle // nil: none yet
	flight     *flight // what is under way to find it
	asked      int64   // when the last ended
	interval   int64   // how long an answer may take until it is looked up again

	waiting atomic.Int64         // since when it has not answered; 0: nothing was sent to it since it was heard
	suspect atomic.Bool          // it may have moved
	gone    atomic.Bool          // from the table
	service atomic.Pointer[peer] // of a queue pair: the service that it was found for
}

// heard is told that the peer has sent something.
func (p *peer) heard() {
	if p.waiting.Load() != 0 {
		p.waiting.Store(0)
	}
	if v := p.service.Load(); v != nil && v.waiting.Load() != 0 {
		v.waiting.Store(0)
	}
}

// peers is the table of peers.
type peers struct {
	s   *Socket
	max int // of each ring

	mu    sync.Mutex
	of    map[Addr]*peer
	rings [2]ring
}

// ring is peers by use. Those that have only sent something have one of their own: however many strangers send, those
// that something is sent to are not forgotten.
type ring struct {
	head peer // next is the latest used
	n    int
}

const (
	written = iota
	strangers
)

// maxPeers is how many peers of each kind a socket knows. Of more, those that were not used for the longest time are forgotten, and found anew.
const maxPeers = 4096

func (t *peers) init(s *Socket) {
	t.s, t.max = s, maxPeers
	t.of = make(map[Addr]*peer)
	for i := range t.rings {
		h := &t.rings[i].head
		h.next, h.prev = h, h
	}
}

// unlink takes p out of its ring. t.mu is held.
func (t *peers) unlink(p *peer) {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.next, p.prev = nil, nil
		t.rings[p.kind].n--
	}
}

// touch makes p the latest used of a kind. t.mu is held.
func (t *peers) touch(p *peer, kind int) {
	r := &t.rings[kind]
	if r.head.next == p {
		return
	}
	t.unlink(p)
	p.kind = kind
	p.next, p.prev = r.head.next, &r.head
	p.next.prev, p.prev.next = p, p
	r.n++
}

// get returns the peer, which may be new, as one of a kind, or of those written to if it has been one. t.mu is held.
func (t *peers) get(a Addr, kind int) *peer {
	p := t.of[a]
	if p == nil {
		p = &peer{addr: a, shown: t.s.cfg.Intern(a), interval: firstInterval, kind: kind}
		t.of[a] = p
	}
	t.touch(p, min(kind, p.kind))
	t.shrink(p.kind)
	return p
}

// shrink forgets peers of a kind while there are too many. t.mu is held.
func (t *peers) shrink(kind int) {
	r := &t.rings[kind]
	for p := r.head.prev; r.n > t.max && p != &r.head; {
		older := p.prev
		if p.flight == nil && p != r.head.next {
			t.drop(p)
		}
		p = older
	}
}

// drop forgets a peer. t.mu is held.
func (t *peers) drop(p *peer) {
	delete(t.of, p.addr)
	t.unlink(p)
	p.gone.Store(true)
	if p.h != nil {
		p.h.unref()
		p.h = nil
	}
}

// sender returns the peer that has sent a datagram.
func (t *peers) sender(e *endpoint, wc *verbs.WC, g *verbs.GRH) *peer {
	a := Addr{IP: g.Source, QPN: wc.SrcQPN, QKey: qkeyOf(e.key.space)}
	if g.Source.IsValid() {
		a.GID = g.Source.As16()
		if g.Source.IsLinkLocalUnicast() {
			a.IP = g.Source.WithZone(e.id.LocalAddr().Addr().Zone())
		}
	} else {
		a.LID, a.SL = wc.SLID, wc.SL
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.get(a, strangers)
	p.e = e
	if g.Dest.IsValid() && !g.Dest.IsMulticast() {
		p.local = g.Dest
		if g.Dest.IsLinkLocalUnicast() {
			p.local = e.id.LocalAddr().Addr()
		}
	}
	return p
}

func qkeyOf(space verbs.PortSpace) uint32 {
	if space == verbs.PSIPoIB {
		return ipoibQKey
	}
	return verbs.UDPQKey
}

// ipoibQKey is the Q_Key of IPoIB's groups as subnet managers have it by default.
const ipoibQKey = 0x0b1b

// forget drops all that go through an endpoint.
func (t *peers) forget(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.of {
		switch {
		case p.h != nil && p.h.e == e && p.flight == nil:
			t.drop(p)
		case p.h != nil && p.h.e == e:
			p.h.unref()
			p.h = nil
		}
		if p.e == e {
			p.e = nil
		}
	}
}

// clear drops all.
func (t *peers) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.of {
		t.drop(p)
	}
}

// addrSet is a small set of addresses, read without a lock.
type addrSet struct {
	mu   sync.Mutex
	list atomic.Pointer[[]netip.Addr]
}

func (s *addrSet) has(a netip.Addr) bool {
	l := s.list.Load()
	return l != nil && slices.Contains(*l, a)
}

func (s *addrSet) add(a netip.Addr) {
	a = a.WithZone("")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(a) {
		return
	}
	var l []netip.Addr
	if old := s.list.Load(); old != nil {
		l = slices.Clone(*old)
	}
	l = append(l, a)
	s.list.Store(&l)
}

// now is a monotonic time in nanoseconds, never 0.
func now() int64 { return rc.Now() | 1 }
