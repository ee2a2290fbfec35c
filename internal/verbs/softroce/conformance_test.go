package softroce_test

import (
	"context"
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

// lacking are the operations that the device does not have.
var lacking = []verbs.Opcode{
	verbs.OpSendWithInv, verbs.OpFlush, verbs.OpAtomicWrite,
}

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
				Listen:  b, Dial: b, Unsupported: lacking, Allocates: c.name == "Bad",
			})
		})
	}
}

// TestConformanceLoopback runs the suite over UDP sockets of this host: between a
// provider and itself, and between two that share the port as two processes do.
func TestConformanceLoopback(t *testing.T) {
	one, other := provider(t, &softroce.Config{}), provider(t, &softroce.Config{})
	for _, c := range []struct {
		name            string
		active, passive *softroce.Provider
		listen, dial    string
	}{
		{"Self", one, one, "0.0.0.0", "127.0.0.1"},
		{"Two", one, other, "::1", "::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			verbstest.TestProvider(t, verbstest.Config{
				Active: c.active, Passive: c.passive,
				Listen: netip.MustParseAddr(c.listen), Dial: netip.MustParseAddr(c.dial), Unsupported: lacking,
			})
		})
	}
}
