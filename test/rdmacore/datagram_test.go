package rdmacore

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestDatagrams has datagrams on rxe0, over both address families, and groups, which the kernel has of IPv4 only.
func TestDatagrams(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest", "-race")
	require.NoError(t, err)
	for name, addr := range map[string]netip.Addr{"IPv4": p.Near.V4, "IPv6": p.Near.V6} {
		t.Run(name, func(t *testing.T) {
			runTests(t, g, 5*time.Minute, nil, prog, "-addr="+addr.String(),
				"-test.run=^(TestDatagrams|TestGRHFirst|TestLookupFails|TestUdaddy)$")
		})
	}
	t.Run("groups", func(t *testing.T) {
		runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-device="+p.Near.RDMA,
			"-test.run=^(TestGroup|TestGroupClasses|TestGroupRefused|TestMckey|TestJoins|TestJoinWhileClosing)$")
	})
	t.Run("memory", func(t *testing.T) { // which the libraries have: it is looked for at the end
		prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest", "-asan")
		require.NoError(t, err)
		runTests(t, g, 5*time.Minute, []string{"ASAN_OPTIONS=detect_leaks=1"}, prog, "-addr="+p.Near.V4.String(), "-device="+p.Near.RDMA,
			"-test.run=^(TestGroup|TestGroupRefused|TestJoins|TestJoinWhileClosing|TestLookupFails)$")
	})
}

// bond is an interface above two, of which one is in use at a time, each with its own hardware address.
const bond = `set -e
modprobe bonding
ip link add bond9 type bond mode active-backup fail_over_mac active
for i in 0 1; do
	ip link add slave$i type veth peer name behind$i
	ip link set behind$i up
	ip link set slave$i master bond9
done
ip addr add 10.77.0.1/24 dev bond9
ip link set bond9 up
rdma link add rxe9 type rxe netdev bond9
`

// TestDatagramEvents has what happens to members of groups, in a guest of its own: a new hardware address, and the removal of the device.
func TestDatagramEvents(t *testing.T) {
	g := vmtest.Start(t, vm.Config{})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest", "-race")
	require.NoError(t, err)
	t.Run("removal", func(t *testing.T) {
		runTests(t, g, 3*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-device="+p.Near.RDMA, "-iface="+p.Near.Interface,
			"-test.run=^TestDatagramRemoval$")
	})
	t.Run("hardware address", func(t *testing.T) {
		out, err := g.Script(t.Context(), bond)
		require.NoError(t, err, "%s", out)
		runTests(t, g, 3*time.Minute, nil, prog, "-addr=10.77.0.1", "-device=rxe9", "-iface=bond9", "-test.run=^TestAddrChange$")
	})
}
