package softroce

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// lonelyREQ is a request whose sender will not say anything more, and that asks for the longest patience there is.
func lonelyREQ(port uint16) *ibcm.REQ {
	q := &ibcm.REQ{
		LocalCommID: 77, ServiceID: ibcm.ServiceID(uint16(verbs.PSTCP), port), LocalCAGUID: 99, LocalQPN: 0x1234,
		RemoteCMResponseTimeout: 31, LocalCMResponseTimeout: 31, MaxCMRetries: 15,
		TransportServiceType: ibcm.TransportRC, StartingPSN: 5, PKey: 0xffff, PathMTU: 3, RetryCount: 7, RNRRetryCount: 7,
		Primary: ibcm.PathRecord{LocalGID: ibcm.GID(addrA), RemoteGID: ibcm.GID(addrB), HopLimit: 64, LocalACKTimeout: 31},
	}
	h := ibcm.IPHeader{Source: netip.AddrPortFrom(addrA, 5), Destination: addrB}
	h.Put(q.PrivateData[:])
	return q
}

// TestUnansweredREQDrawsLittle: a REQ whose source is forged makes whoever is named there get
// fewer datagrams than the kernel's 16 REPs, whatever becomes of the connection here.
func TestUnansweredREQDrawsLittle(t *testing.T) {
	for _, closedAfter := range []time.Duration{0, 300 * time.Millisecond, 500 * time.Second} {
		t.Run(fmt.Sprint("closed after ", closedAfter), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := simnet.New(5, simnet.Options{})
				b := New(&Config{Open: n.Host(addrB).Open})
				g := &gsiPeer{t: t, path: &netio.Path{Local: addrA, Remote: addrB}}
				var err error
				g.conn, err = n.Host(addrA).Open(g)
				require.NoError(t, err)
				l := mustListen(t, b, netip.AddrPortFrom(addrB, 7), nil)
				drawn := len(g.ask(lonelyREQ(7)))
				y := accept(t, l)
				time.Sleep(closedAfter)
				y.close()
				time.Sleep(10 * time.Second)
				g.mu.Lock()
				drawn += len(g.got)
				g.mu.Unlock()
				require.NoError(t, l.Close())
				unused(t, b)
				require.NoError(t, g.conn.Close())
				require.Less(t, drawn, 16)
				require.Greater(t, drawn, 1)
				t.Log(drawn)
			})
		})
	}
}

// TestWays: a message that is repeated takes several ways at once, none of which was used before.
func TestWays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		x, err := n.a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB, 7)})
		require.NoError(t, err)
		var ports []uint16
		defer n.Filter(func(f *simnet.Frame) bool { ports = append(ports, f.Src.Port()); return true })()
		seen := map[uint16]bool{}
		for _, a := range []struct{ attempt, ways int }{{0, 1}, {1, manyWays}, {2, manyWays}, {-1, 1}, {-2, 1}, {3, manyWays}} {
			ports = nil
			require.NoError(t, n.a.inst.send(ibcm.Path{Local: addrA, Remote: addrB}, make([]byte, ibcm.MADSize), a.attempt))
			require.Len(t, ports, a.ways)
			for _, p := range ports {
				require.False(t, seen[p])
				seen[p] = true
			}
		}
		ports = nil
		require.NoError(t, n.a.inst.send(ibcm.Path{Local: addrA, Remote: addrB}, make([]byte, ibcm.MADSize), 0))
		require.True(t, seen[ports[0]], "a first one keeps to the ports that are open anyway")
		// To this host one of them surely leads to a process that runs.
		var sure []uint16
		m := ibcm.Encode(ibcm.NewHeader(5, lonelyREQ(7)), lonelyREQ(7))
		for i, mad := range [][]byte{m[:], make([]byte, ibcm.MADSize)} {
			for _, attempt := range []int{0, 1, -1, 2, -2}[1-i:] {
				ports = nil
				require.NoError(t, n.a.inst.send(ibcm.Path{Local: addrA, Remote: addrA}, mad, attempt))
				sure = append(sure, ports[0])
			}
		}
		require.Len(t, slices.Compact(sure), 1)
		ports = nil
		require.NoError(t, n.a.inst.send(ibcm.Path{Local: addrA, Remote: addrA}, m[:], 0))
		require.NotEqual(t, sure[0], ports[0], "a process may be able to do without")
		require.NoError(t, x.Close())
		unused(t, n.a, n.b)
	})
}
