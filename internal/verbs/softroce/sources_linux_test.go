package softroce

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Descriptors are for what a process shares with others: an outgoing connection
// costs none, or a busy client would run out of them.
func TestActiveIdentifierCostsNoDescriptor(t *testing.T) {
	p := New(&Config{})
	count := func() int {
		es, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(es)
	}
	attr := &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("127.0.0.1:7")}
	first, err := p.Resolve(t.Context(), attr)
	require.NoError(t, err)
	before := count()
	seen := map[uint16]bool{first.LocalAddr().Port(): true}
	ids := []verbs.CMID{first}
	for range 200 {
		id, err := p.Resolve(t.Context(), attr)
		require.NoError(t, err)
		require.False(t, seen[id.LocalAddr().Port()], "a port twice")
		seen[id.LocalAddr().Port()] = true
		ids = append(ids, id)
	}
	require.LessOrEqual(t, count(), before+2) // the runtime may open its own
	for _, id := range ids {
		require.NoError(t, id.Close())
	}
}
