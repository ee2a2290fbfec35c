// Package iwarp runs streams over iWARP, in a guest whose kernel gets SoftiWARP: package rdmanet's own tests, and
// its peer in C. There are no immediates then, and what an acknowledgement is of InfiniBand's is a completion that says
// no more than that TCP has taken the data.
package iwarp

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

const (
	rdmanetPkg = "github.com/go-rdma/rdma/rdmanet"
	rstreamPkg = "github.com/go-rdma/rdma/test/interop/cmd/rstream"
)

var addrs = []netip.Addr{netip.MustParseAddr("10.10.0.1"), netip.MustParseAddr("fd0a::1")}

// device makes siw0 on a veth of the shared guest.
func device(t *testing.T) *vm.Guest {
	t.Helper()
	g := vmtest.Shared(t)
	vmtest.Require(t, vm.Package{Name: "rdmacm-utils", File: "/usr/bin/rstream"})
	if _, err := g.Script(t.Context(), "[ -e /sys/class/infiniband/siw0 ]"); err == nil {
		return g
	}
	_, err := g.Script(t.Context(), fmt.Sprintf(`
ip link add viw type veth peer name wiw
ip addr add %s/24 dev viw
ip addr add %s/64 dev viw nodad
ip link set viw up
ip link set wiw up
`, addrs[0], addrs[1]))
	require.NoError(t, err)
	vmtest.Check(t, g.AddSIW(t.Context(), "siw0", "viw"))
	return g
}

// waitListen waits until a connection can come. rdma_cm counts an identifier as listening before it asks the device to, whose socket this is.
func waitListen(ctx context.Context, g *vm.Guest, port int) error {
	if err := g.WaitListen(ctx, port); err != nil {
		return err
	}
	_, err := g.Script(ctx, fmt.Sprintf(`
n=0
until cat /proc/net/tcp /proc/net/tcp6 | grep -q '^ *[0-9]*: [0-9A-F]*:%04X [0-9A-F]*:0000 0A '; do
	[ $((n += 1)) -lt 100 ] || { echo 'nobody listens on TCP port %[1]d' >&2; cat /proc/net/tcp /proc/net/tcp6 >&2; exit 1; }
	sleep 0.1
done
`, port))
	return err
}

// TestRDMANet has package rdmanet's tests of connections.
func TestRDMANet(t *testing.T) {
	g := device(t)
	prog, err := g.BuildTest(t.Context(), rdmanetPkg)
	require.NoError(t, err)
	const limit = 5 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	cmd := g.Command(ctx, prog, "-test.v", "-test.timeout", limit.String(), "-test.run=^(TestConn|TestConnIPv6|TestHTTP|TestAddresses|"+
		"TestFullWindowsBothWays|TestWriteOfAnyLength|TestWritesDoNotMix|TestCopyFile|TestReadFromLeavesWriters|TestWriteBuffers|"+
		"TestClose.*|TestLinger|TestReadsAfterPeerClosed|TestPeerClosesWhileReading|TestDrain|TestBothCloseWriteAtOnce|TestWriteToClosedPeer)$")
	cmd.Env = []string{"RDMANET_DEVICE=siw0", fmt.Sprintf("RDMANET_TEST_ADDRS=%s,%s", addrs[0], addrs[1])}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for l := range strings.Lines(string(out)) {
		if strings.HasPrefix(l, "--- ") {
			t.Log(strings.TrimRight(l, "\n"))
		}
	}
}

// TestRstream has librdmacm's program at the other end, in both roles; both verify what they get.
func TestRstream(t *testing.T) {
	g := device(t)
	prog, err := g.Build(t.Context(), rstreamPkg)
	require.NoError(t, err)
	port := 7471
	for i, r := range []struct {
		size, count, iters int
		c, inGo            []string
	}{
		{1000, 50, 4, nil, nil},
		{1, 200, 2, []string{"-T", "b"}, nil},
		{10, 1000, 2, []string{"-T", "b"}, nil}, // more messages than C's queue has
		{65536, 4, 2, []string{"-T", "b"}, nil},
		{524289, 2, 1, []string{"-T", "b"}, []string{"-style", "pieces"}},
		{4097, 20, 2, []string{"-T", "b", "-B", "2049"}, nil}, // a descriptor every KiB
		{30000, 5, 2, []string{"-T", "b"}, []string{"-B", "4096"}},
		{3000, 5, 2, []string{"-T", "b"}, []string{"-end", "close"}},
	} {
		for _, cServes := range []bool{true, false} {
			port++
			t.Run(fmt.Sprintf("%d,%d,%v", r.size, r.count, cServes), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				addr := addrs[i%2].String()
				common := []string{"-p", strconv.Itoa(port), "-S", strconv.Itoa(r.size), "-C", strconv.Itoa(r.count), "-I", strconv.Itoa(r.iters)}
				end := map[bool]string{true: "-b", false: "-s"}
				inC := g.Command(ctx, "rstream", append(append(common[:len(common):len(common)], end[cServes], addr, "-T", "v"), r.c...)...)
				inGo := g.Command(ctx, prog, append(append(common[:len(common):len(common)], end[!cServes], addr, "-v"), r.inGo...)...)
				inGo.Env = []string{"RDMANET_DEVICE=siw0"}
				server, client := inC, inGo
				if !cServes {
					server, client = inGo, inC
				}
				var said bytes.Buffer
				server.Stdout, server.Stderr = &said, &said
				require.NoError(t, server.Start())
				err := waitListen(ctx, g, port)
				var out []byte
				if err == nil {
					out, err = client.CombinedOutput()
				}
				if err != nil {
					_ = server.Kill() // it would wait
				}
				serverErr := server.Wait()
				assert.NoError(t, err, "%s", out)
				assert.NoError(t, serverErr, "%s", &said)
			})
		}
	}
}
