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

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

const guestPkg = "github.com/go-rdma/rdma/test/packets/guest"

// TestKernel runs the table against rdma_rxe. Over IPv6 it is shorter: what a responder does with a request does not depend on the
// family, but the headers of datagrams do.
func TestKernel(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	for _, c := range []struct {
		family    string
		near, far netip.Addr
		rows      string
	}{{"IPv4", p.Near.V4, p.Far.V4, ""}, {"IPv6", p.Near.V6, p.Far.V6, "(UD|READ_of)"}} {
		t.Run(c.family, func(t *testing.T) {
			run := "^TestPacketTable$"
			if c.rows != "" && !long {
				run += "/" + c.rows
			}
			out, err := judge(ctx, t, g, p, prog, c.near, c.far, "-test.run="+run).CombinedOutput()
			require.NoError(t, err, "%s", failures(string(out)))
			require.NotContains(t, string(out), "no tests to run")
			t.Logf("%d rows, of which the kernel has %d otherwise",
				strings.Count(string(out), "--- PASS: TestPacketTable/"), strings.Count(string(out), "rdma_rxe of Linux 6.1: "))
		})
	}
}

// judge is a command that runs the table.
func judge(ctx context.Context, t *testing.T, g *vm.Guest, p *vm.Peer, prog string, near, far netip.Addr, args ...string) *vm.Cmd {
	other := far.Next() // a third host on the wire
	_, err := g.Command(ctx, "ip", "-n", p.Netns, "addr", "replace", netip.PrefixFrom(other, far.BitLen()).String(),
		"dev", p.Far.Interface, "nodad").Output()
	require.NoError(t, err)
	return g.Command(ctx, prog, append(args, "-test.v", "-test.timeout=4m", "-device="+p.Near.RDMA,
		"-addr="+near.String(), "-peer="+far.String(), "-stranger="+other.String(), "-netns="+p.Netns)...)
}

// TestPanics shows that the kernel does not survive what it is spared in TestKernel, in a guest of its own.
func TestPanics(t *testing.T) {
	if !long {
		t.Skip("RDMA_LONG is not set")
	}
	g := vmtest.Start(t, vm.Config{})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := judge(ctx, t, g, p, prog, p.Near.V4, p.Far.V4, "-panics").CombinedOutput()
	require.ErrorIs(t, err, vm.ErrPanic, "%s", failures(string(out)))
	require.Contains(t, g.Console(), "rxe_mr_copy")
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
