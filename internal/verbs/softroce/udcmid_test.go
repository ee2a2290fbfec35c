package softroce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func resolveUD(t testing.TB, p *Provider, attr verbs.CMIDAttr) verbs.UDCMID {
	t.Helper()
	if attr.PortSpace == 0 {
		attr.PortSpace = verbs.PSUDP
	}
	id, err := p.Resolve(background(), &attr)
	require.NoError(t, err)
	return id.(verbs.UDCMID)
}

// newUDSide is newSide for datagrams.
func newUDSide(t testing.TB, id verbs.CMID) *side {
	t.Helper()
	return newSideOf(t, id, verbs.UD)
}

func listenUD(t testing.TB, p *Provider, at netip.AddrPort) verbs.Listener {
	t.Helper()
	return mustListen(t, p, at, func(a *verbs.ListenAttr) { a.PortSpace = verbs.PSUDP })
}

// sayUD sends text.
func (s *side) sayUD(p *verbs.UDParam, text string) {
	s.t.Helper()
	a, err := s.pd.CreateAH(&p.AH)
	require.NoError(s.t, err)
	_, err = s.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte(text), AH: a, RemoteQPN: p.QPN, RemoteQKey: p.QKey}})
	require.NoError(s.t, err)
	require.Equal(s.t, verbs.Success, s.completion().Status)
	require.NoError(s.t, a.Close())
}

func (s *side) heardUD() string {
	s.t.Helper()
	wc := s.completion()
	require.Equal(s.t, verbs.Success, wc.Status)
	require.EqualValues(s.t, 1, wc.ID)
	return string(s.arena.Bytes()[verbs.GRHLen:wc.ByteLen])
}

// lookUp takes both parts of a lookup.
func lookUp(t testing.TB, from *Provider, l verbs.Listener, to netip.AddrPort, qpn uint32) *verbs.UDParam {
	t.Helper()
	id := resolveUD(t, from, verbs.CMIDAttr{Remote: to})
	type result struct {
		p   *verbs.UDParam
		err error
	}
	ch := make(chan result, 1)
	go func() {
		p, err := id.Lookup(background(), nil)
		ch <- result{p, err}
	}()
	req, err := l.GetRequest(background())
	require.NoError(t, err)
	require.NoError(t, req.(verbs.UDCMID).Reply(qpn, 0, nil))
	require.NoError(t, req.Close())
	r := <-ch
	require.NoError(t, r.err)
	require.NoError(t, id.Close())
	return r.p
}

// TestLookupTimes: silence ends a lookup when rdma_cm gives up, a lost message is sent again.
func TestLookupTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{Delay: time.Millisecond})
		n.Partition(addrA, addrB)
		id := resolveUD(t, n.a, verbs.CMIDAttr{Remote: netip.AddrPortFrom(addrB, 7174)})
		start := time.Now()
		_, err := id.Lookup(background(), nil)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Equal(t, 16*4096*time.Millisecond, time.Since(start))
		require.NoError(t, id.Close())
		n.Heal(addrA, addrB)

		l := listenUD(t, n.b, netip.AddrPortFrom(addrB, 7174))
		for _, attr := range []ibcm.Attr{ibcm.AttrSIDRREQ, ibcm.AttrSIDRREP} {
			n.DropNext(1, isAttr(attr))
			start = time.Now()
			require.EqualValues(t, 99, lookUp(t, n.a, l, l.Addr(), 99).QPN)
			require.Equal(t, time.Second+2*time.Millisecond, time.Since(start), "to another host as late as a SYN")
		}
		require.EqualValues(t, 2, l.Stats().Requests, "repeated ones are not counted")

		// A context ends first, and Close.
		n.Partition(addrA, addrB)
		ctx, cancel := context.WithTimeout(background(), 3*time.Second)
		defer cancel()
		start = time.Now()
		id = resolveUD(t, n.a, verbs.CMIDAttr{Remote: l.Addr()})
		_, err = id.Lookup(ctx, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, id.Close())
		id = resolveUD(t, n.a, verbs.CMIDAttr{Remote: l.Addr()})
		time.AfterFunc(time.Second, func() { _ = id.Close() })
		_, err = id.Lookup(background(), nil)
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, l.Close())
		time.Sleep(10 * time.Second) // answers are remembered for a while
		unused(t, n.a, n.b)
	})
}

// TestSharedDatagrams: lookups and datagrams reach the process that they are for, whichever the network gives them to;
// those to a group reach each process once.
func TestSharedDatagrams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		group := netip.MustParseAddr("ff15::5")
		var ls []verbs.Listener
		var sides []*side
		for i, p := range n.ps {
			l := listenUD(t, p, netip.MustParseAddrPort(fmt.Sprint("[::]:", 7471+i)))
			s := newUDSide(t, resolveUD(t, p, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrB6, 0)}))
			_, err := s.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{Group: group})
			require.NoError(t, err)
			ls, sides = append(ls, l), append(sides, s)
		}
		_, err := n.ps[0].Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.MustParseAddrPort("[::]:7472")})
		require.ErrorIs(t, err, syscall.EADDRINUSE)

		x := newUDSide(t, resolveUD(t, n.far, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrA6, 0)}))
		for i := range 12 {
			k := i % 3
			sides[k].post()
			p := lookUp(t, n.far, ls[k], netip.AddrPortFrom(addrB6, ls[k].Addr().Port()), sides[k].qp.Num())
			text := fmt.Sprint("datagram ", i)
			x.sayUD(p, text)
			require.Equal(t, text, sides[k].heardUD())
		}
		require.Positive(t, n.count(), "the network never chose wrong")
		g, err := x.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{Group: group, SendOnly: true})
		require.NoError(t, err)
		for _, s := range sides {
			s.post()
			s.post()
		}
		x.sayUD(g, "to all")
		for _, s := range sides {
			require.Equal(t, "to all", s.heardUD())
		}
		synctest.Wait()
		for _, s := range sides {
			k, err := s.cq.Poll(make([]verbs.WC, 1))
			require.NoError(t, err)
			require.Zero(t, k, "once")
		}
		// Nobody in any process.
		id := resolveUD(t, n.far, verbs.CMIDAttr{Remote: netip.AddrPortFrom(addrB6, 9)})
		_, err = id.Lookup(background(), nil)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NoError(t, id.Close())
		for _, s := range append(sides, x) {
			s.close()
		}
		for _, l := range ls {
			require.NoError(t, l.Close())
		}
		time.Sleep(10 * time.Second)
		unused(t, append(n.ps, n.far)...)
	})
}

// TestIPoIB: RDMA_PS_IPOIB is a port space by itself with a Q_Key of its own.
func TestIPoIB(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		space := verbs.CMIDAttr{PortSpace: verbs.PSIPoIB, Local: netip.AddrPortFrom(addrB, 0)}
		y, z := newUDSide(t, resolveUD(t, n.b, space)), newUDSide(t, resolveUD(t, n.b, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrB, 0)}))
		space.Local = netip.AddrPortFrom(addrA, 0)
		x := newUDSide(t, resolveUD(t, n.a, space))
		group := verbs.JoinAttr{Group: netip.MustParseAddr("239.1.1.1")}
		y.post()
		z.post()
		for _, s := range []*side{y, z} {
			_, err := s.id.(verbs.UDCMID).Join(background(), &group)
			require.NoError(t, err)
		}
		p, err := x.id.(verbs.UDCMID).Join(background(), &group)
		require.NoError(t, err)
		require.EqualValues(t, 0x0b1b, p.QKey)
		x.sayUD(p, "IPoIB")
		require.Equal(t, "IPoIB", y.heardUD())
		synctest.Wait()
		require.EqualValues(t, 1, n.b.inst.dev.stats.wrongQKey.Load(), "the member of another port space")
		for _, s := range []*side{x, y, z} {
			s.close()
		}
		unused(t, n.a, n.b)
	})
}

// TestUDAddresses: which addresses an identifier can have.
func TestUDAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{MTU: 1500})
		for _, c := range []struct {
			attr verbs.CMIDAttr
			err  error
		}{
			{verbs.CMIDAttr{Local: netip.MustParseAddrPort("10.9.9.9:0")}, syscall.EADDRNOTAVAIL},
			{verbs.CMIDAttr{Local: netip.AddrPortFrom(addrA, 0), Remote: netip.AddrPortFrom(addrB6, 1)}, syscall.ENETUNREACH},
			{verbs.CMIDAttr{Device: "other"}, verbs.ErrNoDevice},
		} {
			c.attr.PortSpace = verbs.PSUDP
			_, err := n.a.Resolve(background(), &c.attr)
			require.ErrorIs(t, err, c.err, "%+v", c.attr)
		}
		unbound := resolveUD(t, n.a, verbs.CMIDAttr{})
		require.False(t, unbound.LocalAddr().Addr().IsValid())
		require.NotZero(t, unbound.LocalAddr().Port())
		s := newUDSide(t, unbound)
		require.Equal(t, verbs.MTU(1024), s.qp.Cap().PathMTU)
		// Of either family.
		for _, g := range []string{"239.1.1.1", "ff15::1"} {
			p, err := unbound.Join(background(), &verbs.JoinAttr{Group: netip.MustParseAddr(g)})
			require.NoError(t, err)
			require.Equal(t, g, p.AH.Remote.String())
		}
		_, err := unbound.Lookup(background(), nil)
		require.ErrorIs(t, err, syscall.EINVAL)
		s.close()

		v6 := newUDSide(t, resolveUD(t, n.a, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrA6, 0)}))
		_, err = v6.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{Group: netip.MustParseAddr("239.1.1.1")})
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		v6.close()
		// An unmapped MGID of an IPv4 identifier goes by IPv6.
		v4 := newUDSide(t, resolveUD(t, n.a, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrA, 0)}))
		p, err := v4.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{MGID: netip.MustParseAddr("ff12:401b:ffff::101:101")})
		require.NoError(t, err)
		require.Equal(t, addrA6, p.AH.Local)
		p, err = v4.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{MGID: netip.IPv6Unspecified()})
		require.NoError(t, err)
		require.True(t, p.AH.Remote.Is6() && p.AH.Remote.IsMulticast(), p.AH.Remote)
		p, err = v4.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{Group: netip.IPv4Unspecified()})
		require.NoError(t, err)
		require.True(t, netip.MustParsePrefix("239.192.0.0/14").Contains(p.AH.Remote), p.AH.Remote)
		v4.close()
		// A bound port is taken.
		held := resolveUD(t, n.a, verbs.CMIDAttr{Local: netip.AddrPortFrom(addrA, 5555)})
		_, err = n.a.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(addrA, 5555)})
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.NoError(t, held.Close())
		require.NoError(t, held.Close())
		unused(t, n.a, n.b)
	})
}
