package verbstest

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var multicastTests = []test{
	{"Groups", testGroups},
	{"Loopback", testGroupLoopback},
	{"SendOnly", testGroupSendOnly},
	{"Fresh", testGroupFresh},
	{"MGID", testGroupMGID},
	{"Wrong", testGroupWrong},
	{"Several", testGroupSeveral},
	{"Concurrently", testGroupConcurrently},
	{"Close", testGroupClose},
	{"None", testNoGroups},
}

// joins makes an end a member.
func (e *udEnd) joins(attr verbs.JoinAttr) (*verbs.UDParam, dest) {
	e.t.Helper()
	p, err := e.ud.Join(e.s.ctx(e.t), &attr)
	require.NoError(e.t, err, "Join")
	require.EqualValues(e.t, verbs.MulticastQPN, p.QPN)
	require.Equal(e.t, uint32(verbs.UDPQKey), p.QKey)
	require.True(e.t, p.AH.Local.IsValid())
	return p, e.dest(p)
}

// groups are the first n that may be used.
func (s *suite) groups(t testing.TB, n int) []netip.Addr {
	if len(s.Groups) == 0 {
		t.Skip("no multicast in this family: see None")
	}
	require.GreaterOrEqual(t, len(s.Groups), n)
	return s.Groups[:n]
}

// boundActive is bound on the active side, to the address by which it reaches the passive one.
func (s *suite) boundActive(t testing.TB, opts ...option) *udEnd {
	id := s.activeUD(t, 1)
	return s.udEnd(t, s.resolveUD(t, s.Active, verbs.CMIDAttr{Local: netip.AddrPortFrom(id.LocalAddr().Addr(), 0)}), opts...)
}

// says sends a datagram of one byte that says who it is from.
func (e *udEnd) says(d dest, what byte) {
	e.t.Helper()
	e.send(d.to(verbs.SendWR{ID: 800, Op: verbs.OpSendWithImm, Imm: e.qp.Num(), Inline: []byte{what}, Flags: verbs.Signaled}))
	// Its own copy, if it gets one, may come first.
	var copies []verbs.WC
	wc := e.wait(1)[0]
	for ; wc.Op == verbs.WCRecv; wc = e.wait(1)[0] {
		copies = append(copies, wc)
	}
	require.EqualValues(e.t, 800, wc.ID)
	require.Equal(e.t, verbs.Success, wc.Status)
	q := e.queue.get()
	q.ready = append(copies, q.ready...)
}

// hears waits for such a datagram.
func (e *udEnd) hears(from *udEnd, group netip.Addr, what byte) {
	e.t.Helper()
	wc := e.wait(1)[0]
	require.Equal(e.t, verbs.Success, wc.Status)
	require.Equal(e.t, from.qp.Num(), wc.SrcQPN)
	require.Equal(e.t, from.qp.Num(), wc.Imm)
	require.EqualValues(e.t, verbs.GRHLen+1, wc.ByteLen)
	b := e.arena.Bytes()[wc.ID:]
	require.Equal(e.t, what, b[verbs.GRHLen])
	g, err := verbs.ParseGRH(b, wc.Flags)
	require.NoError(e.t, err)
	require.Equal(e.t, group.WithZone(""), g.Dest)
}

// listens posts receives, whose ID is where they are.
func (e *udEnd) listens(n int) *udEnd {
	e.t.Helper()
	for range n {
		in := e.grhSpan(8)
		e.recv(verbs.RecvWR{ID: uint64(in.off), SGL: in.sgl()})
	}
	return e
}

// testGroups: all members get each datagram once, and nobody else does; who has left gets none.
func testGroups(s *suite, t *testing.T) {
	gs := s.groups(t, 2)
	a, b, c, other := s.boundActive(t).listens(8), s.bound(t).listens(8), s.bound(t).listens(8), s.bound(t).listens(8)
	pb, _ := b.joins(verbs.JoinAttr{Group: gs[0]})
	c.joins(verbs.JoinAttr{Group: gs[0]})
	other.joins(verbs.JoinAttr{Group: gs[1]})
	_, da := a.joins(verbs.JoinAttr{Group: gs[0]})
	require.Equal(t, gs[0], pb.AH.Remote.WithZone(gs[0].Zone()))
	for i := range byte(3) {
		a.says(da, i)
		for _, m := range []*udEnd{a, b, c} {
			m.hears(a, gs[0], i)
		}
	}
	// A group has a Q_Key too.
	wrong := da
	wrong.qkey++
	a.says(wrong, 9)
	a.says(da, 10)
	for _, m := range []*udEnd{a, b, c} {
		m.hears(a, gs[0], 10)
	}
	p := *pb // a copy will do
	require.NoError(t, b.ud.Leave(&p))
	a.says(da, 11)
	c.hears(a, gs[0], 11)
	a.hears(a, gs[0], 11)
	b.quiet()
	other.quiet()
	require.ErrorIs(t, b.ud.Leave(pb), syscall.EADDRNOTAVAIL)
	_, db := b.joins(verbs.JoinAttr{Group: gs[0]})
	b.says(db, 12)
	for _, m := range []*udEnd{a, b, c} {
		m.hears(b, gs[0], 12)
	}
	other.quiet()
	// And an answer to one of them alone.
	a.says(da, 13)
	wc := c.wait(1)[0]
	g, err := verbs.ParseGRH(c.arena.Bytes()[wc.ID:], wc.Flags)
	require.NoError(t, err)
	b.hears(a, gs[0], 13)
	a.hears(a, gs[0], 13)
	c.says(c.sender(wc, g), 14)
	a.hears(c, a.id.LocalAddr().Addr(), 14)
}

// testGroupLoopback keeps a queue pair's own datagrams from it, and those of no other.
func testGroupLoopback(s *suite, t *testing.T) {
	g := s.groups(t, 1)[0]
	block := func(o *options) { o.init.BlockMulticastLoopback = true }
	if s.NoBlockLoopback {
		id := s.activeUD(t, 1)
		pd := newPD(t, id.Device())
		var q queue
		q.init(s, t, id.Device(), 8)
		_, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.UD, SendCQ: q.cq, RecvCQ: q.cq, BlockMulticastLoopback: true})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	a, b, c := s.bound(t, block).listens(4), s.bound(t, block).listens(4), s.bound(t).listens(4)
	_, da := a.joins(verbs.JoinAttr{Group: g})
	_, db := b.joins(verbs.JoinAttr{Group: g})
	c.joins(verbs.JoinAttr{Group: g})
	a.says(da, 1)
	b.hears(a, g, 1)
	c.hears(a, g, 1)
	b.says(db, 2)
	a.hears(b, g, 2)
	c.hears(b, g, 2)
	for _, e := range []*udEnd{a, b, c} {
		e.quiet()
	}
}

// testGroupSendOnly: who has joined to send only receives nothing, not even its own.
func testGroupSendOnly(s *suite, t *testing.T) {
	g := s.groups(t, 1)[0]
	a, b := s.boundActive(t).listens(2), s.bound(t).listens(4)
	b.joins(verbs.JoinAttr{Group: g})
	p, err := a.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g, SendOnly: true})
	if errors.Is(err, errors.ErrUnsupported) && s.NoSendOnly {
		return
	}
	require.NoError(t, err)
	a.says(a.dest(p), 1)
	b.hears(a, g, 1)
	a.quiet()
	_, err = a.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, a.ud.Leave(p))
	require.ErrorIs(t, a.ud.Leave(p), syscall.EADDRNOTAVAIL)
	_, d := a.joins(verbs.JoinAttr{Group: g})
	a.says(d, 2)
	a.hears(a, g, 2)
	b.hears(a, g, 2)
}

// testGroupFresh asks for groups that nobody has.
func testGroupFresh(s *suite, t *testing.T) {
	s.groups(t, 1)
	if s.NoFreshGroups {
		_, err := s.bound(t).ud.Join(s.ctx(t), &verbs.JoinAttr{Group: unspecified(s.Dial)})
		require.Error(t, err)
		return
	}
	seen := make(map[netip.Addr]bool)
	for _, attr := range []verbs.JoinAttr{
		{Group: unspecified(s.Dial)}, {Group: unspecified(s.Dial)},
	} {
		a, b := s.boundActive(t).listens(2), s.bound(t).listens(2)
		p, d := a.joins(attr)
		require.True(t, p.AH.Remote.IsMulticast())
		require.False(t, seen[p.AH.Remote])
		seen[p.AH.Remote] = true
		b.joins(verbs.JoinAttr{Group: p.AH.Remote.WithZone("")})
		a.says(d, 1)
		a.hears(a, p.AH.Remote, 1)
		b.hears(a, p.AH.Remote, 1)
		require.NoError(t, a.ud.Leave(p))
	}
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// testGroupMGID joins a group by its identifier.
func testGroupMGID(s *suite, t *testing.T) {
	g := s.groups(t, 1)[0]
	if s.NoMGID {
		return
	}
	a, b := s.boundActive(t).listens(2), s.bound(t).listens(2)
	b.joins(verbs.JoinAttr{Group: g})
	p, d := a.joins(verbs.JoinAttr{MGID: netip.AddrFrom16(g.As16())})
	a.says(d, 1)
	a.hears(a, g, 1)
	b.hears(a, g, 1)
	_, err := a.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
	require.ErrorIs(t, err, syscall.EADDRINUSE, "it is the same group")
	require.NoError(t, a.ud.Leave(p))
}

func testGroupWrong(s *suite, t *testing.T) {
	g := s.groups(t, 1)[0]
	a := s.bound(t)
	for name, attr := range map[string]verbs.JoinAttr{
		"nothing":               {},
		"an address":            {Group: s.Dial},
		"an address as MGID":    {MGID: netip.MustParseAddr("fd00::1")},
		"both group and MGID":   {Group: g, MGID: netip.MustParseAddr("ff15::1")},
		"an MGID of four bytes": {MGID: netip.MustParseAddr("239.1.1.1")},
	} {
		_, err := a.ud.Join(s.ctx(t), &attr)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	require.ErrorIs(t, a.ud.Leave(&verbs.UDParam{AH: verbs.AHAttr{Remote: g}}), syscall.EADDRNOTAVAIL)
	_, d := a.joins(verbs.JoinAttr{Group: g})
	_, err := a.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	unicast := d
	unicast.qpn = 77
	_, err = a.qp.PostSend([]verbs.SendWR{unicast.to(verbs.SendWR{Op: verbs.OpSend})})
	require.ErrorIs(t, err, syscall.EINVAL, "one queue pair of a group")
	none := s.resolveUD(t, s.Passive, verbs.CMIDAttr{Local: netip.AddrPortFrom(s.Dial, 0)})
	_, err = none.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
	require.ErrorIs(t, err, syscall.EINVAL, "no queue pair")
}

// testGroupSeveral: one queue pair in several groups, and a multicast address to resolve.
func testGroupSeveral(s *suite, t *testing.T) {
	gs := s.groups(t, 3)
	b := s.bound(t).listens(8)
	var ps []*verbs.UDParam
	for _, g := range gs {
		p, _ := b.joins(verbs.JoinAttr{Group: g})
		ps = append(ps, p)
	}
	local := s.activeUD(t, 1).LocalAddr().Addr()
	a := s.udEnd(t, s.resolveUD(t, s.Active, verbs.CMIDAttr{Local: netip.AddrPortFrom(local, 0), Remote: netip.AddrPortFrom(gs[0], 0)}))
	for i, g := range gs {
		_, d := a.joins(verbs.JoinAttr{Group: g})
		a.says(d, byte(i))
		b.hears(a, g, byte(i))
	}
	require.NoError(t, b.ud.Leave(ps[1]))
	for i, g := range gs {
		d := a.dest(&verbs.UDParam{AH: verbs.AHAttr{Local: local, Remote: g}, QPN: verbs.MulticastQPN, QKey: verbs.UDPQKey})
		a.says(d, byte(i))
		if i != 1 {
			b.hears(a, g, byte(i))
		}
	}
	b.quiet()
}

// testGroupConcurrently joins and leaves from several goroutines.
func testGroupConcurrently(s *suite, t *testing.T) {
	gs := s.groups(t, 2)
	var wg sync.WaitGroup
	for i := range 4 {
		e := s.bound(t)
		wg.Go(func() {
			for j := range 25 {
				p, err := e.ud.Join(t.Context(), &verbs.JoinAttr{Group: gs[(i+j)%2]})
				if err == nil {
					err = e.ud.Leave(p)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	a, b := s.boundActive(t), s.bound(t).listens(1)
	b.joins(verbs.JoinAttr{Group: gs[0]})
	_, d := a.joins(verbs.JoinAttr{Group: gs[0]})
	a.says(d, 1)
	b.hears(a, gs[0], 1)
}

// testGroupClose: what is closed is no member any more.
func testGroupClose(s *suite, t *testing.T) {
	g := s.groups(t, 1)[0]
	a, b := s.boundActive(t), s.bound(t).listens(4)
	b.joins(verbs.JoinAttr{Group: g})
	for _, what := range []string{"QP", "CMID"} {
		c := s.bound(t).listens(2)
		p, _ := c.joins(verbs.JoinAttr{Group: g})
		if what == "QP" {
			require.NoError(t, c.qp.Close())
			_, err := c.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: s.groups(t, 2)[1]})
			require.Error(t, err)
		} else {
			require.NoError(t, c.id.Close())
			require.ErrorIs(t, c.ud.Leave(p), net.ErrClosed)
			_, err := c.ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
			require.ErrorIs(t, err, net.ErrClosed)
		}
	}
	_, d := a.joins(verbs.JoinAttr{Group: g})
	a.says(d, 1)
	b.hears(a, g, 1)
}

// testNoGroups: a device without multicast says so.
func testNoGroups(s *suite, t *testing.T) {
	if len(s.Groups) > 0 {
		return
	}
	g := netip.MustParseAddr("239.77.77.77")
	if s.Dial.Is6() {
		g = netip.MustParseAddr("ff15::7777")
	}
	_, err := s.bound(t).ud.Join(s.ctx(t), &verbs.JoinAttr{Group: g})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
