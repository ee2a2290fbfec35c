package softroce

import (
	"net/netip"
	"testing"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

// notYet are the operations that the device lacks.
var notYet = []verbs.Opcode{
	verbs.OpSendWithInv, verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpFlush, verbs.OpAtomicWrite,
}

// TestConformanceSimnet runs the suite between two hosts of a simulated network.
func TestConformanceSimnet(t *testing.T) {
	net := simnet.New(1, simnet.Options{MTU: 1500})
	verbstest.TestProvider(t, verbstest.Config{
		Active: New(&Config{Open: net.Host(addrA, addrA6).Open}), Passive: New(&Config{Open: net.Host(addrB, addrB6).Open}),
		Listen: addrB, Dial: addrB, Unsupported: notYet, Connections: 100,
	})
}

// TestConformanceLoopback runs the suite over real sockets, on both families.
func TestConformanceLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			p := New(&Config{})
			verbstest.TestProvider(t, verbstest.Config{
				Active: p, Passive: p, Listen: netip.MustParseAddr(addr), Dial: netip.MustParseAddr(addr),
				Unsupported: notYet, Connections: 100,
			})
		})
	}
}
