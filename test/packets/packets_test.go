// Package packets judges the kernel's Soft-RoCE by the table of crafted packets that softroce is judged by, in a guest.
package packets

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

// TestKernel runs the table against rdma_rxe. Over IPv6 it is shorter: what a responder does with a request does not depend on the
// family, but the headers of datagrams do.
func TestKernel(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), "github.com/go-rdma/rdma/test/packets/guest", "-tags=guest")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, c := range []struct {
		family    string
		near, far netip.Addr
		rows      string
	}{{"IPv4", p.Near.V4, p.Far.V4, ""}, {"IPv6", p.Near.V6, p.Far.V6, "UD|READ_of|[oO]nly_of"}} {
		t.Run(c.family, func(t *testing.T) {
			run := "^TestPacketTable$"
			if c.rows != "" && !long {
				run += "/" + c.rows
			}
			out, err := g.Command(ctx, prog, "-test.v", "-test.run="+run, "-test.timeout=4m",
				"-device="+p.Near.RDMA, "-addr="+c.near.String(), "-peer="+c.far.String(), "-netns="+p.Netns).CombinedOutput()
			require.NoError(t, err, "%s", failures(string(out)))
			require.NotContains(t, string(out), "no tests to run")
			t.Logf("%d rows, of which the kernel has %d otherwise",
				strings.Count(string(out), "--- PASS: TestPacketTable/"), strings.Count(string(out), "rdma_rxe of Linux 6.1: "))
		})
	}
}

// failures is what a test binary says, without what has passed.
func failures(out string) string {
	var b strings.Builder
	for l := range strings.Lines(out) {
		if !strings.Contains(l, "--- PASS") && !strings.Contains(l, "=== RUN") {
			b.WriteString(l)
		}
	}
	return b.String()
}
