package softroce

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestManyWaysAreTried: while nothing comes back the sender looks for another way all the time, at first ten times a
// second. Where most ways lead to processes that are stopped, that many attempts are needed.
func TestManyWaysAreTried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{Delay: time.Millisecond})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x, y := n.connect(t, l)
		x.ping(y)
		time.Sleep(time.Second)
		var mu sync.Mutex
		var sent []uint16
		restore := n.Filter(func(f *simnet.Frame) bool {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, f.Src.Port())
			return true
		})
		ports := func() []uint16 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(sent)
		}
		y.post()
		_, err := x.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("late")}})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.GreaterOrEqual(t, len(ports()), 10)
		require.LessOrEqual(t, len(ports()), 20)
		time.Sleep(9 * time.Second)
		require.GreaterOrEqual(t, len(ports()), 25)
		require.LessOrEqual(t, len(ports()), 60, "not as many for ever")
		ways := ports()
		slices.Sort(ways)
		require.Greater(t, len(slices.Compact(ways)), 1)
		restore()
		begin := time.Now()
		require.Equal(t, "late", y.heard())
		require.Less(t, time.Since(begin), 2*time.Second)
		x.completion()
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}
