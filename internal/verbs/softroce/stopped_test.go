package softroce

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// stoppable is what becomes of a process's packets when the process can be stopped: they stay in its queue.
type stoppable struct {
	netio.Handler
	conn    netio.Conn
	stopped atomic.Bool
}

func (s *stoppable) HandlePackets(ps []netio.Packet) {
	if !s.stopped.Load() {
		s.Handler.HandlePackets(ps)
	}
}

// stoppedNet is a host with two processes that run and four that are stopped, and a host with one. The
// stopped ones have taken every flow for themselves from the ports that are open.
type stoppedNet struct {
	*sharedNet
	x, y *Provider // the two
}

func newStoppedNet(t *testing.T) *stoppedNet {
	n := &stoppedNet{sharedNet: &sharedNet{
		Network: simnet.New(3, simnet.Options{Delay: 50 * time.Microsecond}), hub: &hub{members: map[uint8]*member{}},
	}}
	n.far = New(&Config{Open: n.Host(addrA).Open})
	h := n.Host(addrB)
	stopped := map[uint8]bool{}
	n.hub.lose = func(to share.Target) bool { return stopped[to.Slot] }
	var hogs []*stoppable
	for i := range 6 {
		s := &stoppable{}
		cfg := &Config{Open: func(to netio.Handler) (_ netio.Conn, err error) {
			s.Handler = to
			s.conn, err = h.Open(s)
			return s.conn, err
		}}
		n.join(cfg)
		p := New(cfg)
		in, err := p.use()
		require.NoError(t, err)
		t.Cleanup(in.dev.release)
		n.ps = append(n.ps, p)
		if i > 1 {
			s.stopped.Store(true)
			stopped[in.share.Slot()] = true
			hogs = append(hogs, s)
		}
	}
	in, err := n.far.use()
	require.NoError(t, err)
	t.Cleanup(in.dev.release)
	n.x, n.y = n.ps[0], n.ps[1]
	const ports, first = 4 * 7, 49153 // four of each process
	for i := range uint16(ports) {
		for _, a := range []netip.Addr{addrA, addrB} {
			hogs[i%4].conn.Prefer(addrB, netip.AddrPortFrom(a, first+i))
		}
	}
	return n
}

// exchange connects and sends messages each way. It returns how long connecting and the messages took.
func (n *stoppedNet) exchange(t *testing.T, from *Provider) (connect, talk time.Duration) {
	l := mustListen(t, n.y, netip.AddrPortFrom(addrB, 0), nil)
	x := resolveSide(t, from, l.Addr())
	begin := time.Now()
	done := x.dial(background())
	y := accept(t, l)
	require.NoError(t, done())
	connect = time.Since(begin)
	begin = time.Now()
	for range 2 * settledAfter {
		x.ping(y)
		y.ping(x)
	}
	talk = time.Since(begin)
	x.close()
	y.close()
	require.NoError(t, l.Close())
	for _, p := range []*Provider{from, n.y} {
		require.NoError(t, p.Drain(background()))
	}
	return connect, talk
}

// TestStoppedHaveAllWays: processes of a host that are stopped may be preferred for all ways there are. Others of their
// host need one repetition to do without these, and peers elsewhere some.
func TestStoppedHaveAllWays(t *testing.T) {
	t.Run("one host", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			n := newStoppedNet(t)
			for range 10 {
				connect, talk := n.exchange(t, n.x)
				t.Log(connect, talk)
				require.Less(t, connect, 201*time.Millisecond, "only the REQ, once")
				require.Less(t, talk, 2*time.Second)
			}
		})
	})
	t.Run("inside one process", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			n := newStoppedNet(t)
			connect, talk := n.exchange(t, n.y)
			t.Log(connect, talk)
			require.Less(t, connect, 201*time.Millisecond)
			require.Less(t, talk, 2*time.Second)
		})
	})
	t.Run("two hosts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			n := newStoppedNet(t)
			for range 10 {
				connect, talk := n.exchange(t, n.far)
				t.Log(connect, talk)
				require.Less(t, connect, 30*time.Second, "a REQ to another host is repeated late, and its peer gives up after 98 s")
				require.Less(t, talk, 4*time.Second)
			}
		})
	})
}
