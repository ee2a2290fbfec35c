package softroce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// hub joins providers that share a host of a simulated network, as package
// share joins processes.
type hub struct {
	mu      sync.Mutex
	next    uint8
	members map[uint8]*member
	handed  int
	lose    func(to share.Target) bool // handing over fails
}

// member is a provider's part.
type member struct {
	*localShare
	hub      *hub
	received func(*netio.Packet)
	watchers map[int]func()
	watchID  int
}

func (h *hub) join(cfg *Config) {
	cfg.Share = func(received func(*netio.Packet), _ func(error)) (Sharer, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.next++
		m := &member{localShare: newLocalShare(cfg), hub: h, received: received, watchers: map[int]func(){}}
		m.localShare.slot = h.next
		h.members[h.next] = m
		return m, nil
	}
}

func (m *member) BindPort(ps verbs.PortSpace, addr netip.Addr, port uint16) (uint16, func(), error) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	for _, o := range m.hub.members {
		if o == m {
			continue
		}
		o.localShare.mu.Lock()
		taken := len(o.bound[listenKey{ps, port}]) > 0
		o.localShare.mu.Unlock()
		if port != 0 && taken {
			return 0, nil, &share.InUseError{Target: share.Target{PortSpace: ps, Port: port}}
		}
	}
	return m.localShare.BindPort(ps, addr, port)
}

func (m *member) HandOver(to share.Target, p *netio.Packet) error {
	m.hub.mu.Lock()
	owner := m.hub.members[to.Slot]
	if to.Slot == 0 {
		for _, o := range m.hub.members {
			o.localShare.mu.Lock()
			if len(o.bound[listenKey{to.PortSpace, to.Port}]) > 0 {
				owner = o
			}
			o.localShare.mu.Unlock()
		}
	}
	lost := m.hub.lose != nil && m.hub.lose(to)
	if owner != nil && owner != m && !lost {
		m.hub.handed++
	}
	m.hub.mu.Unlock()
	switch {
	case owner == nil:
		return share.ErrUnclaimed
	case owner == m:
		return share.ErrOwn
	case lost:
		return share.ErrDropped
	}
	c := *p
	c.Data = append([]byte(nil), p.Data...)
	go owner.received(&c)
	return nil
}

func (m *member) Watch(slot uint8, died func()) (func(), error) {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	o := m.hub.members[slot]
	if o == nil {
		return nil, share.ErrUnclaimed
	}
	o.watchID++
	id := o.watchID
	o.watchers[id] = died
	return func() {
		m.hub.mu.Lock()
		defer m.hub.mu.Unlock()
		delete(o.watchers, id)
	}, nil
}

func (m *member) Close() error {
	m.hub.kill(m.slot)
	return nil
}

// kill ends a member as the death of its process does.
func (h *hub) kill(slot uint8) {
	h.mu.Lock()
	m := h.members[slot]
	if m == nil {
		h.mu.Unlock()
		return
	}
	delete(h.members, slot)
	ws := m.watchers
	m.watchers = nil
	h.mu.Unlock()
	for _, w := range ws {
		w()
	}
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.handed
}

// sharedNet is a host with three providers on one UDP port, and a host by itself.
type sharedNet struct {
	*simnet.Network
	*hub
	far *Provider
	ps  []*Provider
}

func newSharedNet() *sharedNet {
	n := &sharedNet{Network: simnet.New(3, simnet.Options{Delay: 50 * time.Microsecond}), hub: &hub{members: map[uint8]*member{}}}
	n.far = New(&Config{Open: n.Host(addrA, addrA6).Open})
	h := n.Host(addrB, addrB6)
	for range 3 {
		cfg := &Config{Open: h.Open}
		n.join(cfg)
		n.ps = append(n.ps, New(cfg))
	}
	return n
}

// TestSharedPort: whichever process the network gives a packet to, it reaches
// the one that it is for.
func TestSharedPort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		var ls []verbs.Listener
		for i, p := range n.ps {
			ls = append(ls, mustListen(t, p, netip.MustParseAddrPort(fmt.Sprint("0.0.0.0:", 7471+i)), nil))
		}
		farL := mustListen(t, n.far, netip.AddrPortFrom(addrA, 7471), nil)
		_, err := n.ps[0].Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("0.0.0.0:7472")})
		require.ErrorIs(t, err, syscall.EADDRINUSE)

		var sides []*side
		link := func(from *Provider, to netip.AddrPort, l verbs.Listener) {
			t.Helper()
			x := resolveSide(t, from, to)
			done := x.dial(background())
			y := accept(t, l)
			require.NoError(t, done())
			x.ping(y)
			y.ping(x)
			sides = append(sides, x, y)
		}
		for range 5 {
			for i, l := range ls {
				to := netip.AddrPortFrom(addrB, l.Addr().Port())
				link(n.far, to, l)
				link(n.ps[i], farL.Addr(), farL)
				for _, from := range n.ps {
					link(from, to, l) // between processes of one host, or in one
				}
			}
		}
		require.Positive(t, n.count(), "the network never chose wrong")
		for _, s := range sides {
			s.close()
		}
		// Nobody in any process.
		x := resolveSide(t, n.far, netip.AddrPortFrom(addrB, 9))
		_, err = x.id.Connect(background(), &param)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		x.close()
		for _, l := range append(ls, farL) {
			require.NoError(t, l.Close())
		}
		unused(t, append(n.ps, n.far)...)
	})
}

// TestHandOverFails: what another process does not take is sent again.
func TestHandOverFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		l := mustListen(t, n.ps[0], netip.AddrPortFrom(addrB, 7471), nil)
		for _, p := range n.ps[1:] {
			defer mustListen(t, p, netip.AddrPortFrom(addrB, 0), nil).Close()
		}
		var k int
		n.hub.lose = func(share.Target) bool { k++; return k%3 != 0 }
		for range 10 {
			x := resolveSide(t, n.far, l.Addr())
			done := x.dial(background())
			y := accept(t, l)
			require.NoError(t, done())
			require.NoError(t, x.id.Disconnect())
			y.wait(1)
			time.Sleep(5 * time.Second)
			x.close()
			y.close()
		}
		require.Positive(t, k)
		require.NoError(t, l.Close())
		unused(t, n.ps[0], n.far)
		synctest.Wait()
	})
}

// TestSharedWithdrawn: a REQ that is taken back reaches the process that has it.
func TestSharedWithdrawn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		var ls []verbs.Listener
		for _, p := range n.ps {
			ls = append(ls, mustListen(t, p, netip.AddrPortFrom(addrB, 0), nil))
		}
		for range 5 {
			for _, l := range ls {
				x := resolveSide(t, n.far, l.Addr())
				ctx, cancel := context.WithCancel(background())
				done := x.dial(ctx)
				time.Sleep(time.Millisecond)
				synctest.Wait()
				require.EqualValues(t, 1, l.Stats().Requests)
				cancel()
				require.ErrorIs(t, done(), context.Canceled)
				time.Sleep(time.Millisecond)
				synctest.Wait()
				require.Zero(t, l.Stats().Requests)
				x.close()
			}
		}
		require.Positive(t, n.count())
		for _, l := range ls {
			require.NoError(t, l.Close())
		}
		unused(t, append(n.ps, n.far)...)
	})
}

// TestProcessDies: the connections of a process end with it, at once.
func TestProcessDies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		l0 := mustListen(t, n.ps[0], netip.AddrPortFrom(addrB, 7471), nil)
		l1 := mustListen(t, n.ps[1], netip.AddrPortFrom(addrB, 7472), nil)
		link := func(from *Provider, l verbs.Listener) (x, y *side) {
			x = resolveSide(t, from, l.Addr())
			done := x.dial(background())
			y = accept(t, l)
			require.NoError(t, done())
			y.wait(1)
			return x, y
		}
		active, ap := link(n.ps[0], l1)
		pa, passive := link(n.ps[1], l0)
		inside, inside2 := link(n.ps[0], l0)
		bystander, bp := link(n.ps[2], l0)
		afar, afp := link(n.far, l1)

		active.post()
		start := time.Now()
		n.kill(ap.id.Device().(*device).slot)
		e := active.wait(1)
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, e)
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, passive.wait(2))
		require.Equal(t, deathGrace, active.at[0].Sub(start))
		require.Equal(t, verbs.WRFlushErr, active.completion().Status, "the queue pair failed")
		time.Sleep(time.Second)
		require.Len(t, active.types(), 1)
		require.Empty(t, inside.types())
		require.Len(t, inside2.types(), 1)
		require.Empty(t, bystander.types())
		require.Len(t, bp.types(), 1)
		require.Empty(t, afar.types(), "keep-alive finds out, from afar")
		require.Len(t, afp.types(), 1)

		// A DREQ for the dead is answered in its place.
		require.NoError(t, afar.id.Disconnect())
		require.NoError(t, afar.wait(1).Err)

		for _, s := range []*side{active, ap, pa, passive, inside, inside2, bystander, bp, afar, afp} {
			s.close()
		}
		require.NoError(t, l0.Close())
		require.NoError(t, l1.Close())
		unused(t, append(n.ps, n.far)...)
	})
}

// TestProcessDiedBefore: one that died between its REP and now.
func TestProcessDiedBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		l := mustListen(t, n.ps[0], netip.AddrPortFrom(addrB, 7471), nil)
		x := resolveSide(t, n.ps[1], l.Addr())
		remove := n.Filter(isAttr(ibcm.AttrRTU))
		done := x.dial(background())
		id, err := l.GetRequest(background())
		require.NoError(t, err)
		y := newSide(t, id)
		n.kill(x.id.Device().(*device).slot)
		require.NoError(t, id.Accept(&param))
		e := y.wait(1)
		require.Equal(t, verbs.EventConnectError, e.Type)
		// Seen to be gone, or its slot's REP refused by another: whichever is first.
		require.True(t, errors.Is(e.Err, syscall.ECONNRESET) || errors.Is(e.Err, syscall.ECONNABORTED), "%v", e.Err)
		remove()
		x.close()
		_ = done()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.ps[0], n.ps[1])
	})
}

// TestOrderlyEnd: a process that takes its leave before it goes is not one that died.
func TestOrderlyEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		l := mustListen(t, n.ps[0], netip.AddrPortFrom(addrB, 7471), nil)
		x := resolveSide(t, n.ps[1], l.Addr())
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		y.wait(1)
		slot := x.id.Device().(*device).slot
		require.NoError(t, x.id.Disconnect())
		n.kill(slot) // the DREQ is on its way
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected}, y.wait(2))
		time.Sleep(time.Second)
		require.Len(t, y.types(), 2)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.ps[0], n.ps[1])
	})
}

// TestLocalShare: the rules of ports in one process.
func TestLocalShare(t *testing.T) {
	s := newLocalShare(&Config{})
	require.NotZero(t, s.Slot())
	a4, b4, any4, any6 := addrA, addrB, netip.IPv4Unspecified(), netip.IPv6Unspecified()
	bind := func(a netip.Addr, port uint16) (func(), error) {
		_, free, err := s.BindPort(verbs.PSTCP, a, port)
		return free, err
	}
	for _, c := range []struct {
		a, b netip.Addr
		ok   bool
	}{
		{a4, b4, true}, {a4, a4, false}, {a4, any4, false}, {any4, any4, false}, {any4, any6, true}, {any4, addrA6, true},
		{netip.Addr{}, a4, false}, {netip.Addr{}, any6, false}, {netip.Addr{}, netip.Addr{}, false}, {any6, addrA6, false},
	} {
		for _, p := range [][2]netip.Addr{{c.a, c.b}, {c.b, c.a}} {
			free, err := bind(p[0], 7)
			require.NoError(t, err)
			free2, err := bind(p[1], 7)
			if c.ok {
				require.NoError(t, err, "%v", p)
				free2()
			} else {
				require.ErrorIs(t, err, syscall.EADDRINUSE, "%v", p)
			}
			free()
			free()
		}
	}
	require.Empty(t, s.bound)
	seen := map[uint16]bool{}
	for range 1000 {
		port, _, err := s.BindPort(verbs.PSTCP, a4, 0)
		require.NoError(t, err)
		require.False(t, seen[port])
		require.GreaterOrEqual(t, port, uint16(firstFreePort))
		seen[port] = true
	}
}

type preferCounter struct {
	netio.Conn
	n int
}

func (c *preferCounter) Prefer(netip.Addr, netip.AddrPort) { c.n++ }

// Packets for a queue pair that is not there may come from any number of ports, and those of a peer that looks for a
// way come from all of its.
func TestFlowsToNobodyAreNotPreferred(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var conn preferCounter
		p := New(&Config{Open: func(h netio.Handler) (netio.Conn, error) {
			c, err := simnet.New(1, simnet.Options{}).Host(addrA).Open(h)
			conn.Conn = c
			return &conn, err
		}})
		in, err := p.use()
		require.NoError(t, err)
		domain, err := in.dev.AllocPD()
		require.NoError(t, err)
		c, err := in.dev.CreateCQ(&verbs.CQAttr{Depth: 1})
		require.NoError(t, err)
		q, err := in.dev.newQP(domain.(*pd), &verbs.QPInitAttr{Type: verbs.RC, SendCQ: c, RecvCQ: c})
		require.NoError(t, err)
		packet := func(port uint16, qpn uint32) {
			in.received(&netio.Packet{
				Local: addrA, Remote: netip.AddrPortFrom(addrB, port), Data: rawPacket(byte(wire.RCSendOnly), qpn, 0),
			})
		}
		for i := range 10 * settledAfter {
			packet(uint16(i/probePackets), q.num)
			packet(5000, q.num^0x101)
			packet(5000, q.num^1)
		}
		require.Zero(t, conn.n)
		for range settledAfter {
			packet(6000, q.num)
		}
		require.Equal(t, 1, conn.n)
		for _, x := range []interface{ Close() error }{q, c, domain, in.dev} {
			require.NoError(t, x.Close())
		}
	})
}
