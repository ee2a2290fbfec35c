package softroce

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestREQFromTheQueueOfAStoppedProcess: a copy of a request that comes when the connection is long over, because a
// process that was stopped had it, makes no connection: the other end refuses the answer at once.
func TestREQFromTheQueueOfAStoppedProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{Delay: 50 * time.Microsecond})
		hostA := n.Host(addrA)
		a, b := New(&Config{Open: hostA.Open}), New(&Config{Open: n.Host(addrB).Open})
		l := mustListen(t, b, netip.AddrPortFrom(addrB, 0), nil)
		keep := mustListen(t, a, netip.AddrPortFrom(addrA, 0), nil) // the device stays open
		var mu sync.Mutex
		var req []byte
		isREQ := isAttr(ibcm.AttrREQ)
		remove := n.Filter(func(f *simnet.Frame) bool {
			if isREQ(f) {
				mu.Lock()
				req = bytes.Clone(f.Data)
				mu.Unlock()
			}
			return false
		})
		x := resolveSide(t, a, l.Addr())
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		require.NoError(t, x.id.Disconnect())
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected}, y.wait(2))
		x.close()
		y.close()
		remove()
		time.Sleep(10 * time.Second)

		// Whoever had it has no part in the connection: its answers go to the provider.
		late, err := n.Host(netip.MustParseAddr("10.0.0.9")).Open(dropper{})
		require.NoError(t, err)
		path := &netio.Path{Local: addrA, Remote: addrB}
		tx := netio.NewTxBatch()
		mu.Lock()
		payload := madOf(req)
		copy(tx.Add(path, len(req)-len(payload)), req)
		tx.Payload(payload)
		mu.Unlock()
		require.NoError(t, late.Send(tx))
		begin := time.Now()
		y = accept(t, l)
		require.Equal(t, verbs.EventConnectError, y.wait(1).Type)
		require.Less(t, time.Since(begin), time.Second)
		y.close()
		require.NoError(t, late.Close())
		require.NoError(t, l.Close())
		require.NoError(t, keep.Close())
		unused(t, a, b)
	})
}

type dropper struct{}

func (dropper) HandlePackets([]netio.Packet) {}
