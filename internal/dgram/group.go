package dgram

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// ErrNotMulticast says that what shall be joined is no group.
var ErrNotMulticast = fmt.Errorf("no multicast address: %w", syscall.EINVAL)

// Join says which group to join.
type Join struct {
	Group netip.Addr // unspecified: a fresh one
	MGID  netip.Addr // instead of Group: as it is

	Local    netip.Addr // of the interface; none: the socket's, else by route
	SendOnly bool
	IPoIB    bool
}

// membership is one of a group.
type membership struct {
	e     *endpoint
	attr  verbs.JoinAttr // of a fresh group: with its name
	local netip.Addr     // as asked for
	p     *verbs.UDParam
}

// is tells whether the membership is that of a group, by its address or as it was asked for.
func (m *membership) is(group netip.Addr) bool {
	group = group.WithZone("")
	return m.p.AH.Remote.Unmap().WithZone("") == group.Unmap() || m.attr.MGID.IsValid() && m.attr.MGID == group
}

func (m *membership) addr() Addr {
	ip := m.p.AH.Remote.Unmap()
	return Addr{IP: ip, GID: ip.WithZone("").As16(), QPN: m.p.QPN, QKey: m.p.QKey, LID: m.p.AH.LID, SL: m.p.AH.SL}
}

// Join makes the socket a member of a group, and returns the group's address.
func (s *Socket) Join(ctx context.Context, j *Join) (Addr, error) {
	if !s.begin() {
		return Addr{}, net.ErrClosed
	}
	defer s.tasks.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	a, err := s.join(ctx, j)
	if err != nil && s.ctx.Err() != nil {
		err = net.ErrClosed
	}
	return a, err
}

func (s *Socket) join(ctx context.Context, j *Join) (Addr, error) {
	attr := verbs.JoinAttr{Group: j.Group.Unmap(), MGID: j.MGID, SendOnly: j.SendOnly}
	g := attr.Group
	if j.MGID.IsValid() {
		attr.Group, g = netip.Addr{}, j.MGID
	}
	if !g.IsMulticast() && !g.IsUnspecified() {
		return Addr{}, fmt.Errorf("%v is %w", g, ErrNotMulticast)
	}
	space := verbs.PSUDP
	if j.IPoIB {
		space = verbs.PSIPoIB
	}
	local := j.Local
	if !local.IsValid() {
		local = s.cfg.Local
	}
	var by netip.Addr // what decides on the interface
	if attr.Group.IsMulticast() && (!local.IsValid() || local.IsUnspecified()) {
		by, local = attr.Group, netip.Addr{}
	}
	e, err := s.bind(ctx, s.cfg.Devices, space, local, by)
	if err != nil {
		return Addr{}, err
	}
	p, err := e.id.Join(ctx, &attr)
	if err != nil {
		return Addr{}, err
	}
	m := &membership{e: e, attr: attr, local: j.Local, p: p}
	if g.IsUnspecified() { // should it be joined again, it is this one
		m.attr.Group, m.attr.MGID = p.AH.Remote, netip.Addr{}
	}
	s.sources.add(p.AH.Local)
	s.mu.Lock()
	s.groups = append(s.groups, m)
	s.mu.Unlock()
	s.peers.regroup(m)
	return m.addr(), nil
}

// Leave ends a membership: of that on the interface with a local address, or, without, of any.
func (s *Socket) Leave(group, local netip.Addr) error {
	if !s.begin() {
		return net.ErrClosed
	}
	defer s.tasks.Done()
	s.mu.Lock()
	i := slices.IndexFunc(s.groups, func(m *membership) bool {
		return m.is(group) && (!local.IsValid() || m.p.AH.Local.WithZone("") == local.WithZone("") || m.local == local)
	})
	if i < 0 {
		s.mu.Unlock()
		return fmt.Errorf("no member of %v: %w", group, syscall.EADDRNOTAVAIL)
	}
	m := s.groups[i]
	s.groups = slices.Delete(s.groups, i, i+1)
	s.mu.Unlock()
	err := m.e.id.Leave(m.p)
	s.peers.regroup(m)
	if m.e.failed.Load() != nil {
		return nil // it is no member of anything
	}
	return err
}

// regroup has the way to a group looked for again.
func (t *peers) regroup(m *membership) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ip := m.p.AH.Remote.Unmap()
	for _, a := range []netip.Addr{ip, ip.WithZone("")} {
		if p := t.of[Addr{IP: a}]; p != nil && p.flight == nil {
			t.drop(p)
		}
	}
}

// findGroup finds the way to a group: as a member, if the socket is one.
func (s *Socket) findGroup(ip netip.Addr) (*handle, error) {
	s.mu.Lock()
	var m *membership
	for _, o := range s.groups {
		if o.is(ip) && o.e.failed.Load() == nil && (ip.Zone() == "" || o.p.AH.Remote.Zone() == ip.Zone() || o.p.AH.Remote.Zone() == "") {
			m = o
			break
		}
	}
	s.mu.Unlock()
	if m != nil {
		return newHandle(s.ctx, m.e, m.p)
	}
	attr := verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: netip.AddrPortFrom(ip, 0), TrafficClass: s.cfg.TrafficClass}
	if s.cfg.Local.IsValid() && !s.cfg.Local.IsUnspecified() {
		attr.Local = netip.AddrPortFrom(s.cfg.Local, 0)
	}
	id, err := s.cfg.Resolve(s.ctx, s.cfg.Devices, attr)
	if err != nil {
		return nil, err
	}
	defer id.Close()
	e, err := s.endpoint(s.ctx, epKey{id.Device(), verbs.PSUDP, s.bound(id)})
	if err != nil {
		return nil, err
	}
	p := &verbs.UDParam{QPN: verbs.MulticastQPN, QKey: verbs.UDPQKey}
	p.AH = verbs.AHAttr{Local: id.LocalAddr().Addr(), Remote: id.RemoteAddr().Addr(), TrafficClass: s.cfg.TrafficClass}
	s.sources.add(p.AH.Local)
	return newHandle(s.ctx, e, p)
}

// event is told what happens to an endpoint.
func (e *endpoint) event(ev verbs.Event) {
	switch ev.Type {
	case verbs.EventDeviceRemoval:
		e.s.fail(e, syscall.ENODEV)
	case verbs.EventMulticastError:
		if ev.Group == nil || !e.s.begin() {
			return
		}
		group := ev.Group.AH.Remote
		go func() {
			defer e.s.tasks.Done()
			e.s.restore(e, group)
		}()
	}
}

// restorePause is between attempts to become a member of a group again.
const restorePause = time.Second

// restore joins a group again whose membership was lost.
func (s *Socket) restore(e *endpoint, group netip.Addr) {
	s.mu.Lock()
	i := slices.IndexFunc(s.groups, func(m *membership) bool { return m.e == e && m.is(group) })
	if i < 0 {
		s.mu.Unlock()
		return
	}
	m := s.groups[i]
	s.mu.Unlock()
	_ = e.id.Leave(m.p) // as one must before one joins again
	s.rejoinOne(m, e)
}

// rejoin makes a new endpoint a member of the groups that an old one was in.
func (s *Socket) rejoin(from, to *endpoint) {
	s.mu.Lock()
	ms := slices.Clone(s.groups)
	s.mu.Unlock()
	for _, m := range ms {
		if m.e == from {
			s.rejoinOne(m, to)
		}
	}
}

// rejoinOne tries until it works or the membership is not wanted any more.
func (s *Socket) rejoinOne(m *membership, e *endpoint) {
	wanted := func() bool { return slices.Contains(s.groups, m) && e.failed.Load() == nil }
	for {
		s.mu.Lock()
		ok := wanted()
		s.mu.Unlock()
		if !ok {
			return
		}
		p, err := e.id.Join(s.ctx, &m.attr)
		if err == nil {
			s.mu.Lock()
			if ok = wanted(); ok {
				n := *m
				n.e, n.p = e, p
				s.groups[slices.Index(s.groups, m)] = &n
			}
			s.mu.Unlock()
			if !ok {
				_ = e.id.Leave(p) // it was left meanwhile
			}
			s.peers.regroup(m)
			return
		}
		if errors.Is(err, net.ErrClosed) || errors.Is(err, errors.ErrUnsupported) || s.ctx.Err() != nil {
			return
		}
		t := time.NewTimer(restorePause)
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
			return
		}
	}
}
