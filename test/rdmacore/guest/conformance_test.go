//go:build guest

package guest

import (
	"context"
	"flag"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

var addr = flag.String("addr", "10.9.0.1", "an address of the RDMA device")

// lacking are the operations that neither the provider nor rdma_rxe of Linux 6.1 has.
var lacking = []verbs.Opcode{verbs.OpFlush, verbs.OpAtomicWrite}

// patience is longer than the kernel repeats a message that nobody answers: 16 times 6.1 s. It does not
// destroy an identifier meanwhile.
const patience = 3 * time.Minute

// provider returns a provider that has told all peers when the test ends.
func provider(t testing.TB) *rdmacore.Provider {
	p := rdmacore.New(&rdmacore.Config{})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Drain(ctx))
	})
	return p
}

func TestConformance(t *testing.T) {
	p := provider(t)
	a := netip.MustParseAddr(*addr)
	verbstest.TestProvider(t, verbstest.Config{
		Active: p, Passive: p, Listen: a, Dial: a, Unsupported: lacking, NoInvalidate: true, NoOverrun: true, UncountedDrops: true, SilentRefusals: true,
		LocalErrors: []verbs.Status{verbs.LocProtErr, verbs.LocQPOpErr}, Timeout: 30 * time.Second,
		Groups: groups(a), RoutedHopLimit: true, NoQKeyRule: true, ShortReceiveFatal: true, NoFreshGroups: true, NoBlockLoopback: true,
		PersistentMemory: verbstest.MapFile,
	})
}

// groups are multicast addresses of the family of like that this device has: on RoCE Linux has none of IPv6.
func groups(like netip.Addr) (as []netip.Addr) {
	if like.Is4() {
		for i := range byte(4) {
			as = append(as, netip.AddrFrom4([4]byte{239, 77, 0, i + 1}))
		}
	}
	return as
}
