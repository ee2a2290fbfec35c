package softroce_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

const ownNetEnv = "SOFTROCE_TEST_NETWORK"

// inOwnNetwork runs the calling test again, in a process with a network of its own, where there is an interface that
// can do multicast, and tells whether this is that process.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownNetEnv) == t.Name() {
		for _, args := range []string{
			"link set lo up", "link add va type veth peer name vb", "link set vb up", "link set va up",
			"addr add 10.9.0.1/24 dev va", "addr add fd09::1/64 dev va nodad", "addr add fe80::a/64 dev va nodad",
		} {
			out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
			require.NoError(t, err, "ip %s (package iproute2): %s", args, out)
		}
		// What is sent before the kernel has noticed the carrier is dropped, and IPv6 has no routes.
		require.Eventually(t, func() bool {
			va, err := net.InterfaceByName("va")
			return err == nil && va.Flags&net.FlagRunning != 0
		}, 10*time.Second, time.Millisecond)
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), ownNetEnv+"="+t.Name())
	cmd.SysProcAttr = testnet.Attr(0, 0)
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		if os.Getenv("CI") == "true" {
			t.Fatalf("this system does not let us have a network namespace: %v", err)
		}
		t.Skipf("this system does not let us have a network namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	return false
}

// memberships are the groups of the tests that this network namespace knows, by IGMP and MLD.
func memberships(t testing.TB) (l []string) {
	t.Helper()
	for _, f := range []string{"/proc/self/net/igmp", "/proc/self/net/igmp6"} {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, line := range strings.Split(string(b), "\n") {
			// 239.255.71.x as a little or big endian word, ff15::7171:x, ff18::9.
			if strings.Contains(line, "47FFEF") || strings.Contains(line, "EFFF47") || strings.Contains(line, "ff15000000000000") ||
				strings.Contains(line, "ff18000000000000") {
				l = append(l, strings.TrimSpace(line))
			}
		}
	}
	return l
}

// TestConformanceGroups runs the rows of datagrams on an interface that can do multicast, where loopback cannot, or not in the
// same way: between a provider and itself, and between two.
func TestConformanceGroups(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	one, other := provider(t, &softroce.Config{}), provider(t, &softroce.Config{})
	for name, passive := range map[string]*softroce.Provider{"Self": one, "Two": other} {
		for _, addr := range []string{"10.9.0.1", "fd09::1", "fe80::a%va"} {
			a := netip.MustParseAddr(addr)
			t.Run(name+"/"+addr, func(t *testing.T) {
				verbstest.TestDatagrams(t, verbstest.Config{
					Active: one, Passive: passive, Listen: a, Dial: a, Groups: groups(a),
					Overtakes: name == "Two",
				})
			})
		}
	}
	require.Empty(t, memberships(t), "all has been left")
}
