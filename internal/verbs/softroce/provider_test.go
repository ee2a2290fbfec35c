package softroce

import (
	"context"
	"errors"
	"fmt"
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

// TestLostCM loses each message of a connection's life in turn.
func TestLostCM(t *testing.T) {
	for _, attr := range []ibcm.Attr{ibcm.AttrREQ, ibcm.AttrREP, ibcm.AttrRTU, ibcm.AttrDREQ, ibcm.AttrDREP} {
		for _, count := range []int{1, 3} {
			t.Run(fmt.Sprint(attr, count), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					n := newCMNet(simnet.Options{Delay: time.Millisecond})
					l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
					n.DropNext(count, isAttr(attr))
					x, y := n.connect(t, l)
					x.ping(y)
					y.ping(x)
					require.EqualValues(t, 1, l.Stats().Requests)
					require.NoError(t, x.id.Disconnect())
					time.Sleep(4 * time.Second)
					synctest.Wait()
					require.Equal(t, []verbs.EventType{verbs.EventDisconnected}, x.types())
					require.Equal(t, []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}, y.types())
					if attr != ibcm.AttrDREP || count == 1 {
						require.NoError(t, x.events[0].Err)
					}
					require.NoError(t, y.events[1].Err)
					x.close()
					y.close()
					require.NoError(t, l.Close())
					unused(t, n.a, n.b)
				})
			})
		}
	}
}

// TestDuplicatedCM: a network that delivers everything twice.
func TestDuplicatedCM(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Dup: 1, Reorder: 0.3})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB6, 0), nil)
		for range 20 {
			x, y := n.connect(t, l)
			x.ping(y)
			y.ping(x)
			x.close()
			y.wait(2)
			require.Equal(t, []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}, y.types())
			y.close()
		}
		require.EqualValues(t, 20, l.Stats().Requests)
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestLostRTU: data stands for an RTU that never comes.
func TestLostRTU(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		n.Filter(isAttr(ibcm.AttrRTU))
		x, y := n.connect(t, l)
		synctest.Wait()
		require.Empty(t, y.types())
		x.ping(y)
		synctest.Wait()
		require.Equal(t, []verbs.EventType{verbs.EventEstablished}, y.types())
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestSilence: nobody is there, or not any more.
func TestSilence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		// Nobody has this address.
		x := resolveSide(t, n.a, netip.MustParseAddrPort("10.0.0.9:7471"))
		start := time.Now()
		_, err := x.id.Connect(background(), &param)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Equal(t, 98304*time.Millisecond, time.Since(start))
		x.close()

		x = resolveSide(t, n.a, netip.MustParseAddrPort("10.0.0.9:7471"))
		ctx, cancel := context.WithTimeout(background(), 700*time.Millisecond)
		start = time.Now()
		_, err = x.id.Connect(ctx, &param)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 700*time.Millisecond, time.Since(start))
		cancel()
		x.close()

		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x, y := n.connect(t, l)
		n.Partition(addrA, addrB)
		start = time.Now()
		require.NoError(t, x.id.Disconnect())
		require.ErrorIs(t, n.a.Drain(background()), nil, "nothing is closed yet")
		e := x.wait(1)
		require.Equal(t, verbs.EventDisconnected, e.Type)
		require.Equal(t, syscall.ETIMEDOUT, e.Err)
		require.Equal(t, 3*time.Second, x.at[0].Sub(start))
		require.Equal(t, []verbs.EventType{verbs.EventEstablished}, y.types())

		// Whoever closes does not wait; Drain does.
		start = time.Now()
		y.close()
		require.Zero(t, time.Since(start))
		ctx, cancel = context.WithTimeout(background(), time.Second)
		require.ErrorIs(t, n.b.Drain(ctx), context.DeadlineExceeded)
		cancel()
		require.NoError(t, n.b.Drain(background()))
		require.Equal(t, 3*time.Second, time.Since(start))
		x.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

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

// TestREPLost: the passive side gives up when no answer to its REP comes.
func TestREPLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		n.Filter(isAttr(ibcm.AttrREP))
		x := resolveSide(t, n.a, l.Addr())
		ctx, cancel := context.WithTimeout(background(), 5*time.Second)
		defer cancel()
		n.Filter(isAttr(ibcm.AttrREJ))
		done := x.dial(ctx)
		y := accept(t, l)
		require.ErrorIs(t, done(), context.DeadlineExceeded)
		for len(y.types()) == 0 {
			time.Sleep(time.Second)
		}
		require.Equal(t, verbs.EventConnectError, y.types()[0])
		require.ErrorIs(t, y.events[0].Err, syscall.ETIMEDOUT)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// narrow is a network whose routes have another MTU than it says.
type narrow struct {
	netio.Conn
	mtu int
}

func (n narrow) Route(local, remote netip.Addr) (netio.Route, error) {
	r, err := n.Conn.Route(local, remote)
	r.MTU = n.mtu
	return r, err
}

// TestPathMTU: the active side's interface decides; a passive side that cannot
// follow refuses.
func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		a, b int
		want verbs.MTU // 0: refused
	}{
		{1500, 1500, 1024}, {1500, 9000, 1024}, {9000, 9000, 4096}, {65536, 65536, 4096}, {352, 352, 256}, {607, 1500, 256}, {9000, 1500, 0},
	} {
		bubble(t, func(t *testing.T) {
			n := simnet.New(1, simnet.Options{})
			open := func(h *simnet.Host, mtu int) *Provider {
				return New(&Config{Open: func(hd netio.Handler) (netio.Conn, error) {
					conn, err := h.Open(hd)
					return narrow{conn, mtu}, err
				}})
			}
			a, b := open(n.Host(addrA), c.a), open(n.Host(addrB), c.b)
			l := mustListen(t, b, netip.AddrPortFrom(addrB, 0), nil)
			x := resolveSide(t, a, l.Addr())
			if c.want == 0 {
				_, err := x.id.Connect(background(), &param)
				var rej *verbs.RejectError
				require.ErrorAs(t, err, &rej)
				require.Equal(t, verbs.RejInvalidMTU, rej.Reason)
			} else {
				done := x.dial(background())
				y := accept(t, l)
				require.NoError(t, done())
				require.Equal(t, c.want, x.qp.Cap().PathMTU)
				require.Equal(t, c.want, y.qp.Cap().PathMTU)
				y.close()
			}
			x.close()
			require.NoError(t, l.Close())
			unused(t, a, b)
		})
	}
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{MTU: 300})
		a := New(&Config{Open: n.Host(addrA).Open})
		_, err := a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB, 1)})
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		unused(t, a)
	})
}

// TestTrafficClass: the active side's traffic class is that of all packets.
func TestTrafficClass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		id, err := n.a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), TrafficClass: 0x68})
		require.NoError(t, err)
		x := newSide(t, id)
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		for _, s := range []*side{x, y} {
			q := s.qp.(*qp)
			require.EqualValues(t, 0x68, q.rc.path.TrafficClass)
		}
		// One flow label, one source port in both directions, as rdma_cm has it.
		require.Equal(t, x.qp.(*qp).rc.path.Flow(), y.qp.(*qp).rc.path.Flow())
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
	// Seen: 33232*31+7174 = 0xFD436, port 0xD409 (roce-rping-v4).
	require.EqualValues(t, 0xfd436, rdmaFlowLabel(33232, 7174))
	require.EqualValues(t, 0xd409, flowOf(0xfd436, 17, 17))
	require.EqualValues(t, 0xc000|17*17, flowOf(0, 17, 17))
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

// TestResolveErrors: what is wrong before anything is sent.
func TestResolveErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		a := New(&Config{Open: n.Host(addrA).Open, Name: "here0"})
		to := netip.AddrPortFrom(addrB, 7)
		canceled, cancel := context.WithCancel(background())
		cancel()
		for name, c := range map[string]struct {
			attr verbs.CMIDAttr
			ctx  context.Context
			want error
		}{
			"no device":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Device: "softroce0"}, nil, verbs.ErrNoDevice},
			"no port":         {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Port: 2}, nil, verbs.ErrNoDevice},
			"port space":      {verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: to}, nil, errors.ErrUnsupported},
			"no route":        {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB6, 7)}, nil, syscall.ENETUNREACH},
			"multicast":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("239.1.1.1:7")}, nil, syscall.ENETUNREACH},
			"no address":      {verbs.CMIDAttr{PortSpace: verbs.PSTCP}, nil, syscall.EINVAL},
			"another's":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Local: netip.AddrPortFrom(addrB, 0)}, nil, syscall.EADDRNOTAVAIL},
			"context":         {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to}, canceled, context.Canceled},
			"the port, taken": {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Local: netip.AddrPortFrom(addrA, 77)}, nil, syscall.EADDRINUSE},
		} {
			l := mustListen(t, a, netip.MustParseAddrPort("0.0.0.0:77"), nil)
			if c.ctx == nil {
				c.ctx = background()
			}
			id, err := a.Resolve(c.ctx, &c.attr)
			require.ErrorIs(t, err, c.want, name)
			require.Nil(t, id)
			require.NoError(t, l.Close())
			unused(t, a)
		}

		// A port of choice, and its freedom afterwards.
		for range 2 {
			id, err := a.Resolve(background(), &verbs.CMIDAttr{
				PortSpace: verbs.PSTCP, Remote: to, Device: "here0", Port: 1, Local: netip.AddrPortFrom(addrA, 78),
			})
			require.NoError(t, err)
			require.Equal(t, netip.AddrPortFrom(addrA, 78), id.LocalAddr())
			require.NoError(t, id.Close())
			require.NoError(t, id.Close())
			require.NoError(t, id.Disconnect())
		}
		// The unspecified address is this host.
		id, err := a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("0.0.0.0:7")})
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddrPort("127.0.0.1:7"), id.RemoteAddr())
		require.NoError(t, id.Close())
		unused(t, a)
	})
}

// TestNoNetwork: a network that cannot be opened is a device that cannot be used.
func TestNoNetwork(t *testing.T) {
	cause := &netio.PortBusyError{Port: 4791, UID: 1000}
	p := New(&Config{Open: func(netio.Handler) (netio.Conn, error) { return nil, cause }})
	infos, err := p.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.Equal(t, "softroce0", infos[0].Name)
	require.ErrorIs(t, infos[0].Unusable, verbs.ErrNoDevice)
	for name, err := range map[string]error{
		"Resolve": second(p.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB, 7)})),
		"Listen":  second(p.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP})),
		"Open":    second(p.Open("softroce0")),
	} {
		require.ErrorIs(t, err, verbs.ErrNoDevice, name)
		require.ErrorIs(t, err, syscall.EADDRINUSE, name)
		require.ErrorContains(t, err, "uid 1000", name)
	}
	_, err = p.Open("")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.NotErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, p.Drain(background()))
}

func second[T any](_ T, err error) error { return err }

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
		q := req(nil)
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

// TestReopen: the device comes and goes with its users.
func TestReopen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		var slots []uint8
		for range 3 {
			l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 7471), nil)
			x, y := n.connect(t, l)
			x.ping(y)
			slots = append(slots, x.id.Device().(*device).slot)
			x.close()
			y.close()
			require.NoError(t, l.Close())
			unused(t, n.a, n.b)
		}
		require.NotContains(t, slots, uint8(0))
		dev, err := n.a.Open("softroce0")
		require.NoError(t, err)
		infos, err := n.a.Devices()
		require.NoError(t, err)
		require.Equal(t, []netip.Addr{addrA, addrA6}, infos[0].Ports[0].GIDs)
		require.NoError(t, infos[0].Unusable)
		require.NoError(t, dev.Close())
		unused(t, n.a)
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

// TestEventQueue: order, one at a time, and no handler after close.
func TestEventQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var q eventQueue
		var got []int
		var in int
		q.post(verbs.Event{Type: 1})
		q.post(verbs.Event{Type: 2})
		h := func(e verbs.Event) {
			in++
			require.Equal(t, 1, in)
			time.Sleep(time.Second)
			got = append(got, int(e.Type))
			in--
		}
		q.setHandler(h)
		require.Equal(t, []int{1, 2}, got, "delivered before it returns")
		q.post(verbs.Event{Type: 3})
		q.post(verbs.Event{Type: 4})
		time.Sleep(1500 * time.Millisecond) // within the second
		q.setHandler(nil)
		q.post(verbs.Event{Type: 5})
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []int{1, 2, 3, 4}, got)
		q.setHandler(h)
		require.Equal(t, []int{1, 2, 3, 4, 5}, got)
		q.post(verbs.Event{Type: 6})
		q.post(verbs.Event{Type: 7})
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		q.close()
		require.Equal(t, 500*time.Millisecond, time.Since(start), "until the handler is out")
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, got)
		q.post(verbs.Event{Type: 8})
		q.setHandler(h)
		require.Len(t, got, 6)
	})
}
