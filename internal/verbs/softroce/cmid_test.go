package softroce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
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
		require.NoError(t, n.a.Drain(background()), "nothing is closed yet")
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

// starved is a network that has no descriptor left for the next few routes.
type starved struct {
	netio.Conn
	left *atomic.Int32
}

func (s starved) Route(local, remote netip.Addr) (netio.Route, error) {
	if s.left.Add(-1) >= 0 {
		return netio.Route{}, syscall.EMFILE
	}
	return s.Conn.Route(local, remote)
}

// TestShortageIsNoRefusal: a peer that has run out of something for a moment is asked again.
func TestShortageIsNoRefusal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		var left atomic.Int32
		a := New(&Config{Open: n.Host(addrA).Open})
		b := New(&Config{Open: func(h netio.Handler) (netio.Conn, error) {
			conn, err := n.Host(addrB).Open(h)
			return starved{conn, &left}, err
		}})
		l := mustListen(t, b, netip.AddrPortFrom(addrB, 0), nil)
		x := resolveSide(t, a, l.Addr())
		left.Store(3)
		done := make(chan error, 1)
		go func() {
			_, err := x.id.Connect(background(), &param)
			done <- err
		}()
		time.Sleep(10 * time.Second) // the peer asks again
		synctest.Wait()
		require.EqualValues(t, 3, l.Stats().Dropped)
		if len(done) == 1 {
			require.NoError(t, <-done)
		}
		id, err := l.GetRequest(background())
		require.NoError(t, err)
		y := newSide(t, id)
		require.NoError(t, id.Accept(&param))
		require.NoError(t, <-done)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, a, b)
	})
}

// TestPathMTU: the active side's interface decides, unless the passive side cannot
// follow and refuses: then the next smaller one is tried.
func TestPathMTU(t *testing.T) {
	for _, c := range []struct {
		a, b int
		want verbs.MTU // 0: refused
	}{
		{1500, 1500, 1024}, {1500, 9000, 1024}, {9000, 9000, 4096}, {65536, 65536, 4096}, {352, 352, 256}, {607, 1500, 256},
		{9000, 1500, 1024}, {1500, 9000, 1024}, {2200, 352, 256}, {9000, 352, 256}, {9000, 351, 0}, {352, 300, 0},
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
				require.Equal(t, verbs.ListenerStats{Requests: 1}, l.Stats())
				x.ping(y)
				y.ping(x)
				x.close()
				y.wait(2)
				require.Equal(t, []verbs.EventType{verbs.EventEstablished, verbs.EventDisconnected}, y.types())
				y.close()
				x = nil
			}
			if x != nil {
				x.close()
			}
			require.NoError(t, a.Drain(background()))
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

// TestPathMTULost: smaller MTUs are tried with messages being lost, and given up in the middle.
func TestPathMTULost(t *testing.T) {
	for _, end := range []string{"connected", "context", "close"} {
		bubble(t, func(t *testing.T) {
			n := simnet.New(1, simnet.Options{Delay: 10 * time.Millisecond})
			open := func(h *simnet.Host, mtu int) *Provider {
				return New(&Config{Open: func(hd netio.Handler) (netio.Conn, error) {
					conn, err := h.Open(hd)
					return narrow{conn, mtu}, err
				}})
			}
			a, b := open(n.Host(addrA), 9000), open(n.Host(addrB), 352)
			l := mustListen(t, b, netip.AddrPortFrom(addrB, 0), nil)
			x := resolveSide(t, a, l.Addr())
			n.DropNext(2, isAttr(ibcm.AttrREJ))
			ctx, cancel := context.WithCancel(background())
			defer cancel()
			done := x.dial(ctx)
			switch end {
			case "connected":
				y := accept(t, l)
				require.NoError(t, done())
				require.EqualValues(t, 256, x.qp.Cap().PathMTU)
				x.ping(y)
				x.close()
				y.wait(2)
				y.close()
			case "context": // at a moment when some attempts have been refused
				time.Sleep(470 * time.Millisecond)
				cancel()
				require.ErrorIs(t, done(), context.Canceled)
				_, err := x.id.Connect(background(), &param)
				require.ErrorIs(t, err, syscall.EINVAL, "once only")
				x.close()
			case "close":
				time.Sleep(470 * time.Millisecond)
				require.NoError(t, x.id.Close())
				require.ErrorIs(t, done(), net.ErrClosed)
				x.close()
			}
			require.NoError(t, a.Drain(background()))
			require.NoError(t, l.Close())
			unused(t, a, b)
		})
	}
}

// TestPathShrinks: what was agreed on is too long for the way. The connection fails at once, its other
// messages do not.
func TestPathShrinks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{MTU: 1500, Delay: time.Millisecond})
		open := func(h *simnet.Host) *Provider {
			return New(&Config{Open: func(hd netio.Handler) (netio.Conn, error) {
				conn, err := h.Open(hd)
				return narrow{conn, 9000}, err
			}})
		}
		a, b := open(n.Host(addrA)), open(n.Host(addrB))
		l := mustListen(t, b, netip.AddrPortFrom(addrB, 0), nil)
		for _, size := range []uint32{4096, 10000} { // one too long, and one with a last packet that is not
			x := resolveSide(t, a, l.Addr())
			done := x.dial(background())
			y := accept(t, l)
			require.NoError(t, done())
			x.ping(y)
			start := time.Now()
			k, err := x.qp.PostSend([]verbs.SendWR{
				{ID: 7, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: size, LKey: x.mr.LKey()}}},
				{ID: 8, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("behind it")},
			})
			require.NoError(t, err)
			require.Equal(t, 2, k)
			wc := x.completion()
			require.Equal(t, verbs.LocLenErr, wc.Status)
			require.EqualValues(t, 7, wc.ID)
			require.Equal(t, verbs.WRFlushErr, x.completion().Status)
			require.Less(t, time.Since(start), time.Millisecond)
			require.NoError(t, x.id.Disconnect())
			require.Equal(t, verbs.EventDisconnected, y.wait(2).Type)
			x.close()
			y.close()
		}
		require.NoError(t, l.Close())
		unused(t, a, b)
	})
}

// TestListenerTrafficClass: a listener that has a class sends its own packets with it.
func TestListenerTrafficClass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l, err := n.b.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(addrB, 0), TrafficClass: 0x48})
		require.NoError(t, err)
		id, err := n.a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr(), TrafficClass: 0x68})
		require.NoError(t, err)
		x := newSide(t, id)
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		require.EqualValues(t, 0x68, x.qp.(*qp).rc.path.TrafficClass)
		require.EqualValues(t, 0x48, y.qp.(*qp).rc.path.TrafficClass)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
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
		// One flow label picks one of the ways to either process.
		fx, fy := x.qp.(*qp).rc.path.Flow(), y.qp.(*qp).rc.path.Flow()
		require.Equal(t, fx%partWays, fy%partWays)
		require.Equal(t, partFlow(y.qp.Num(), fx), fx)
		require.Equal(t, partFlow(x.qp.Num(), fy), fy)
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
