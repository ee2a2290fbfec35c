package rdmacore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestCalls counts calls into C, and allocations.
func TestCalls(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	runTests(t, g, 3*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-test.run=^TestCalls")
}
