package softroce_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

// provider returns a provider that has told all peers when the test ends, so that
// no goroutine is left.
func provider(t *testing.T, cfg *softroce.Config) *softroce.Provider {
	p := softroce.New(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, p.Drain(ctx))
	})
	return p
}

// groups are multicast addresses that only these tests use.
func groups(like netip.Addr) []netip.Addr {
	if like.Is4() {
		return []netip.Addr{netip.MustParseAddr("239.255.71.1"), netip.MustParseAddr("239.255.71.2"), netip.MustParseAddr("224.0.0.251")}
	}
	return []netip.Addr{netip.MustParseAddr("ff15::7171:1"), netip.MustParseAddr("ff15::7171:2"), netip.MustParseAddr("ff18::9")}
}

// loss drops some packets of connections, refusals included. Datagrams of the
// communication manager get through, whose repetition takes seconds.
func loss(p float64) func(f *simnet.Frame) bool {
	rng := rand.New(rand.NewPCG(1, 2))
	return func(f *simnet.Frame) bool {
		var h wire.Packet
		if h.Decode(f.Data) != nil || h.DestQP == wire.QPNGSI {
			return false
		}
		return rng.Float64() < p
	}
}

// TestConformanceSimulated runs the suite between two hosts of a simulated network,
// good and bad.
func TestConformanceSimulated(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b string
		opts simnet.Options
	}{
		{"Good", "fd00::1", "fd00::2", simnet.Options{}},
		{"Bad", "10.0.0.1", "10.0.0.2", simnet.Options{
			MTU: 1500, Dup: 0.005, Reorder: 0.005, Delay: 50 * time.Microsecond, Jitter: 50 * time.Microsecond,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := netip.MustParseAddr(c.a), netip.MustParseAddr(c.b)
			network := simnet.New(1, c.opts)
			if c.name == "Bad" {
				network.Filter(loss(0.005))
			}
			verbstest.TestProvider(t, verbstest.Config{
				Active:  provider(t, &softroce.Config{Open: network.Host(a).Open}),
				Passive: provider(t, &softroce.Config{Open: network.Host(b).Open}),
				Listen:  b, Dial: b, Allocates: c.name == "Bad",
				NoDatagrams: c.name == "Bad", // see TestDatagramsOnBadNetwork
				Groups:      groups(b), PersistentMemory: persistentMemory,
			})
		})
	}
}

// TestConformancePathMTU runs what depends on it at each path MTU, over IPv4 and IPv6, between hosts whose interfaces are just long enough.
// Packets that are longer than that are lost on this network.
func TestConformancePathMTU(t *testing.T) {
	for i, mtu := range []verbs.MTU{256, 512, 1024, 2048, 4096} {
		t.Run(fmt.Sprint(int(mtu)), func(t *testing.T) {
			a, b := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
			if i%2 == 0 {
				a, b = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
			}
			network := simnet.New(1, simnet.Options{MTU: int(mtu) + 96}) // what rdma_cm leaves for headers
			verbstest.TestSegmentation(t, verbstest.Config{
				Active:  provider(t, &softroce.Config{Open: network.Host(a).Open}),
				Passive: provider(t, &softroce.Config{Open: network.Host(b).Open}),
				Listen:  b, Dial: b, PathMTU: mtu,
			})
		})
	}
}

// TestConformanceLoopback runs the suite over UDP sockets of this host: between a
// provider and itself, and between two that share the port as two processes do.
func TestConformanceLoopback(t *testing.T) {
	one, other := provider(t, &softroce.Config{}), provider(t, &softroce.Config{})
	others := []verbs.Provider{provider(t, &softroce.Config{}), provider(t, &softroce.Config{})}
	for _, c := range []struct {
		name            string
		active, passive *softroce.Provider
		listen, dial    string
		groups          []netip.Addr
	}{
		{"Self", one, one, "0.0.0.0", "127.0.0.1", groups(netip.IPv4Unspecified())},
		{"Two", one, other, "::1", "::1", nil}, // see TestConformanceGroups: lo has no route to IPv6 groups
	} {
		t.Run(c.name, func(t *testing.T) {
			verbstest.TestProvider(t, verbstest.Config{
				Active: c.active, Passive: c.passive,
				Listen: netip.MustParseAddr(c.listen), Dial: netip.MustParseAddr(c.dial),
				Groups: c.groups, PersistentMemory: persistentMemory, Overtakes: c.name == "Two", Others: others,
			})
		})
	}
}
