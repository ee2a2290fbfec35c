package softroce

import (
	"context"
	"errors"
	"net"
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
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestStorm: more peers than the accepting side can take at once, within its
// backlog: none is refused, however slow it is.
func TestStorm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const peers = 500
		n := newCMNet(simnet.Options{Delay: 100 * time.Microsecond})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), func(a *verbs.ListenAttr) { a.Backlog = peers })
		var xs []*side
		var dones []func() error
		for range peers {
			x := resolveSide(t, n.a, l.Addr())
			xs, dones = append(xs, x), append(dones, x.dial(background()))
		}
		var ys []*side
		for range peers {
			time.Sleep(5 * time.Millisecond)
			ys = append(ys, accept(t, l))
		}
		for i, done := range dones {
			require.NoError(t, done(), "peer %d", i)
		}
		require.Equal(t, verbs.ListenerStats{Requests: peers}, l.Stats())
		for _, y := range ys {
			require.Equal(t, verbs.EventEstablished, y.wait(1).Type)
		}
		for i := range peers {
			xs[i].close()
			ys[i].close()
		}
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestSmallBacklog: what does not fit is dropped, and comes again.
func TestSmallBacklog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const peers = 64
		n := newCMNet(simnet.Options{Delay: 100 * time.Microsecond})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), func(a *verbs.ListenAttr) { a.Backlog = 8 })
		var xs []*side
		var dones []func() error
		for range peers {
			x := resolveSide(t, n.a, l.Addr())
			xs, dones = append(xs, x), append(dones, x.dial(background()))
		}
		var ys []*side
		for range peers {
			time.Sleep(5 * time.Millisecond)
			ys = append(ys, accept(t, l))
		}
		for i, done := range dones {
			require.NoError(t, done(), "peer %d", i)
		}
		require.EqualValues(t, peers, l.Stats().Requests)
		require.GreaterOrEqual(t, l.Stats().Dropped, uint64(peers-8-1))
		for i := range peers {
			xs[i].close()
			ys[i].close()
		}
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestWithdrawn: a request whose peer gave up does not reach GetRequest.
func TestWithdrawn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x := resolveSide(t, n.a, l.Addr())
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
		x, y := n.connect(t, l)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestWithdrawnLater: one that was taken hears of it, and Accept fails.
func TestWithdrawnLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x := resolveSide(t, n.a, l.Addr())
		ctx, cancel := context.WithCancel(background())
		done := x.dial(ctx)
		id, err := l.GetRequest(background())
		require.NoError(t, err)
		y := newSide(t, id)
		cancel()
		require.ErrorIs(t, done(), context.Canceled)
		e := y.wait(1)
		require.Equal(t, verbs.EventConnectError, e.Type)
		require.ErrorIs(t, e.Err, syscall.ECONNABORTED)
		require.ErrorIs(t, id.Accept(&param), syscall.ECONNABORTED)
		require.ErrorIs(t, id.Reject(nil), syscall.ECONNABORTED)
		require.NoError(t, id.Disconnect())
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestListenAddresses: who gets a request, and which addresses exclude each other.
func TestListenAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		other := netip.MustParseAddr("10.0.0.3")
		a := New(&Config{Open: n.Host(addrA, addrA6).Open})
		b := New(&Config{Open: n.Host(addrB, addrB6, other).Open})
		at := func(addr string, port uint16) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		}
		reaches := func(l verbs.Listener, to netip.Addr) {
			t.Helper()
			x := resolveSide(t, a, netip.AddrPortFrom(to, l.Addr().Port()))
			done := x.dial(background())
			y := accept(t, l)
			require.NoError(t, done())
			require.Equal(t, to, y.id.LocalAddr().Addr())
			require.Equal(t, x.id.LocalAddr(), y.id.RemoteAddr())
			x.close()
			y.close()
		}
		refused := func(to netip.AddrPort, reason int) {
			t.Helper()
			x := resolveSide(t, a, to)
			_, err := x.id.Connect(background(), &param)
			var rej *verbs.RejectError
			require.ErrorAs(t, err, &rej)
			require.Equal(t, reason, rej.Reason)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			x.close()
		}
		inUse := func(addr string, port uint16, dual bool) {
			t.Helper()
			_, err := b.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at(addr, port), DualStack: dual})
			require.ErrorIs(t, err, syscall.EADDRINUSE, "%s", addr)
			require.NotErrorIs(t, err, verbs.ErrNoDevice)
		}

		v4 := mustListen(t, b, at("0.0.0.0", 0), nil)
		port := v4.Addr().Port()
		require.Equal(t, netip.IPv4Unspecified(), v4.Addr().Addr())
		reaches(v4, addrB)
		reaches(v4, other)
		refused(netip.AddrPortFrom(addrB6, port), verbs.RejConsumer) // a listener, but not there
		inUse("10.0.0.2", port, false)
		inUse("::", port, true)
		v6 := mustListen(t, b, at("::", port), nil)
		reaches(v6, addrB6)
		reaches(v4, addrB)
		require.NoError(t, v4.Close())
		require.NoError(t, v6.Close())
		refused(netip.AddrPortFrom(addrB, port), verbs.RejInvalidServiceID)

		both := mustListen(t, b, at("::", port), func(a *verbs.ListenAttr) { a.DualStack = true })
		reaches(both, addrB)
		reaches(both, addrB6)
		inUse("0.0.0.0", port, false)
		inUse("fd00::2", port, false)
		// Another port space is another name space.
		ib := mustListen(t, b, at("::", port), func(a *verbs.ListenAttr) { a.PortSpace, a.DualStack = verbs.PSIB, true })
		require.NoError(t, ib.Close())
		require.NoError(t, both.Close())

		one := mustListen(t, b, at("10.0.0.2", port), nil)
		two := mustListen(t, b, at("10.0.0.3", port), nil)
		reaches(one, addrB)
		reaches(two, other)
		require.NoError(t, one.Close())
		refused(netip.AddrPortFrom(addrB, port), verbs.RejConsumer)
		require.NoError(t, two.Close())
		require.NoError(t, two.Close(), "again")

		for addr, want := range map[string]error{
			"10.0.0.1": syscall.EADDRNOTAVAIL, "fd00::9": syscall.EADDRNOTAVAIL, "239.1.1.1": syscall.EADDRNOTAVAIL,
		} {
			_, err := b.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at(addr, 0)})
			require.ErrorIs(t, err, want)
		}
		unused(t, a, b)
	})
}

// gsiPeer sends datagrams of its own making to a provider and collects answers.
type gsiPeer struct {
	t    *testing.T
	conn netio.Conn
	path *netio.Path

	mu  sync.Mutex
	got []ibcm.Message
}

func (g *gsiPeer) HandlePackets(ps []netio.Packet) {
	for i := range ps {
		_, m, err := ibcm.Decode(madOf(ps[i].Data))
		if err != nil {
			panic(err)
		}
		g.mu.Lock()
		g.got = append(g.got, m)
		g.mu.Unlock()
	}
}

// ask sends a message and returns what came back.
func (g *gsiPeer) ask(m ibcm.Message) []ibcm.Message {
	g.t.Helper()
	tx := netio.NewTxBatch()
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.QPNGSI},
		DETH: wire.DETH{QKey: wire.QKeyGSI, SrcQP: wire.QPNGSI},
	}
	p.PutHeaders(tx.Add(g.path, p.HeaderLen()))
	tx.Payload(ibcm.Encode(ibcm.NewHeader(1, m), m)[:])
	require.NoError(g.t, g.conn.Send(tx))
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	got := g.got
	g.got = nil
	return got
}

// TestRequestChecks: requests that no listener may see.
func TestRequestChecks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.MustParseAddrPort("0.0.0.0:7471"), nil)
		addrC := netip.MustParseAddr("10.0.0.7")
		g := &gsiPeer{t: t, path: newPath(addrC, addrB)}
		conn, err := n.Host(addrC).Open(g)
		require.NoError(t, err)
		g.conn = conn

		id := uint32(100)
		req := func(change func(q *ibcm.REQ, h *ibcm.IPHeader)) *ibcm.REQ {
			id++
			q := &ibcm.REQ{
				LocalCommID: id, ServiceID: ibcm.ServiceID(uint16(verbs.PSTCP), 7471), LocalCAGUID: 1, LocalQPN: id, PKey: 0xffff,
				PathMTU: 3, MaxCMRetries: 15, LocalCMResponseTimeout: 20,
				Primary: ibcm.PathRecord{LocalGID: ibcm.GID(addrC), RemoteGID: ibcm.GID(addrB), HopLimit: 64, LocalACKTimeout: 19},
			}
			h := ibcm.IPHeader{Source: netip.AddrPortFrom(addrC, 5000), Destination: addrB}
			if change != nil {
				change(q, &h)
			}
			h.Put(q.PrivateData[:])
			return q
		}
		for name, c := range map[string]struct {
			q    *ibcm.REQ
			want uint16
		}{
			"port":        {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.ServiceID++ }), 8},
			"space":       {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.ServiceID = ibcm.ServiceID(0x13f, 7471) }), 8},
			"service":     {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.ServiceID |= 1 << 40 }), 8},
			"source":      {req(func(_ *ibcm.REQ, h *ibcm.IPHeader) { h.Source = netip.AddrPortFrom(addrA, 5000) }), 28},
			"destination": {req(func(_ *ibcm.REQ, h *ibcm.IPHeader) { h.Destination = addrA }), 28},
			"MTU":         {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.PathMTU = 6 }), 26},
			"GID":         {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.Primary.LocalGID = ibcm.GID(addrA) }), 12},
			"queue pair":  {req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.LocalQPN = 1 }), 1},
		} {
			got := g.ask(c.q)
			require.Len(t, got, 1, name)
			require.Equal(t, c.want, got[0].(*ibcm.REJ).Reason, name)
		}
		q := req(func(q *ibcm.REQ, _ *ibcm.IPHeader) { q.ServiceID++ })
		for range 6 {
			require.Len(t, g.ask(q), 1, "an answer for a question, whoever it is from")
		}
		q = req(nil)
		q.PrivateData[0] = 0x10 // another major version of the header
		got := g.ask(q)
		require.EqualValues(t, 28, got[0].(*ibcm.REJ).Reason)
		require.Zero(t, l.Stats())

		// Of datagram services there are none; a DREQ of an unknown connection is answered.
		got = g.ask(&ibcm.SIDRREQ{RequestID: 5, ServiceID: ibcm.ServiceID(uint16(verbs.PSUDP), 7471)})
		require.Equal(t, []ibcm.Message{&ibcm.SIDRREP{RequestID: 5, ServiceID: 0x1111d2f, Status: ibcm.SIDRUnsupported}}, got)
		got = g.ask(&ibcm.DREQ{LocalCommID: 8, RemoteCommID: 0x33000001, RemoteQPN: 5})
		require.Equal(t, []ibcm.Message{&ibcm.DREP{LocalCommID: 0x33000001, RemoteCommID: 8}}, got)

		require.Empty(t, g.ask(req(nil)))
		require.EqualValues(t, 1, l.Stats().Requests)
		require.NoError(t, l.Close())
		synctest.Wait()
		g.mu.Lock()
		require.EqualValues(t, 28, g.got[0].(*ibcm.REJ).Reason, "closing refuses who waits")
		g.mu.Unlock()
		require.NoError(t, conn.Close())
		unused(t, n.a, n.b)
	})
}

// TestGetRequestWaiters: each request wakes one who waits, whoever else gives up.
func TestGetRequestWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const waiters = 20
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		ctx, cancel := context.WithCancel(background())
		got := make(chan error, 2*waiters)
		take := func(ctx context.Context) {
			id, err := l.GetRequest(ctx)
			if err == nil {
				err = id.Close()
			}
			got <- err
		}
		for range waiters {
			go take(ctx)
			go take(background())
		}
		synctest.Wait()
		cancel()
		var xs []*side
		var dones []func() error
		for range waiters {
			x := resolveSide(t, n.a, l.Addr())
			xs, dones = append(xs, x), append(dones, x.dial(background()))
		}
		var canceled int
		for range 2 * waiters {
			if err := <-got; errors.Is(err, context.Canceled) {
				canceled++
			} else {
				require.NoError(t, err)
			}
		}
		require.Equal(t, waiters, canceled)
		for i, done := range dones {
			require.ErrorIs(t, done(), syscall.ECONNREFUSED)
			xs[i].close()
		}
		go take(background())
		synctest.Wait()
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-got, net.ErrClosed)
		unused(t, n.a, n.b)
	})
}
