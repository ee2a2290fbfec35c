package simnet

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

type counter struct{ got []netio.Packet }

func (c *counter) HandlePackets(ps []netio.Packet) { c.got = append(c.got, ps...) }

// TestGroups: each process that is a member gets its own copy, with a fate of its own.
func TestGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		net := New(1, Options{Loss: 0.2, Delay: time.Millisecond})
		group, other := netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("239.1.1.2")
		var cs [4]*counter
		var conns [4]netio.Conn
		var leave [4]func()
		a := net.Host(netip.MustParseAddr("10.0.0.1"))
		b := net.Host(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2"))
		for i, h := range []*Host{a, b, b, b} {
			var err error
			cs[i] = new(counter)
			conns[i], err = h.Open(cs[i])
			require.NoError(t, err)
			g := group
			if i == 3 {
				g = other
			}
			leave[i], err = conns[i].JoinGroup(g, 1)
			require.NoError(t, err)
		}
		r, err := conns[0].GroupRoute(netip.Addr{}, group)
		require.NoError(t, err)
		require.Equal(t, 1, r.Index)
		path := &netio.Path{Local: r.Local, Remote: r.Remote, Interface: r.Index}
		send := func() {
			for range n / 50 {
				tb := netio.NewTxBatch()
				for range 50 {
					h := tb.Add(path, 12)
					clear(h)
					h[0], h[5], h[6], h[7] = 0x64, 0xff, 0xff, 0xff
				}
				require.NoError(t, conns[0].Send(tb))
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		send()
		for i := range 3 {
			require.InDelta(t, n*0.8, len(cs[i].got), n*0.05)
			for _, p := range cs[i].got {
				require.Equal(t, group, p.Local)
				require.Equal(t, 1, p.Interface)
			}
		}
		require.NotEqual(t, len(cs[0].got), len(cs[1].got))
		require.Empty(t, cs[3].got)
		leave[1]()
		leave[1]()
		was := len(cs[1].got)
		net.Partition(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
		before := len(cs[2].got)
		send()
		require.Len(t, cs[1].got, was)
		require.Len(t, cs[2].got, before, "cut off")
		require.Greater(t, len(cs[0].got), n, "its own host is not")

		_, err = conns[0].JoinGroup(netip.MustParseAddr("10.0.0.2"), 1)
		require.Error(t, err)
		_, err = conns[0].JoinGroup(group, 2)
		require.Error(t, err)
		_, err = conns[0].GroupRoute(netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
		require.Error(t, err)
		for _, c := range conns {
			require.NoError(t, c.Close())
		}
	})
}
