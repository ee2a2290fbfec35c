package rdmanet_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const inGVisor = "GO_RDMA_TEST_GVISOR"

// TestUnderGVisor runs some of these tests in a sandbox of gVisor, whose kernel is a program and has no RDMA devices, and whose
// network is its own too.
func TestUnderGVisor(t *testing.T) {
	if os.Getenv(inGVisor) != "" {
		t.Fatal("within itself")
	}
	runsc, err := exec.LookPath("runsc")
	switch {
	case runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64":
		t.Skipf("gVisor does not run on %s", runtime.GOARCH)
	case err != nil:
		cannot(t, "gVisor (Debian: apt-get install runsc): %v", err)
	case os.Geteuid() != 0:
		cannot(t, "gVisor, whose runsc do needs root")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tests := []string{
		"TestConn", "TestHTTP", "TestReverseProxy", "TestPacketConn", "TestCloseWrite", "TestDialNoListener", "TestListenPortInUse",
		"TestPeerClosesWhileReading",
	}
	cmd := exec.CommandContext(ctx, runsc, "--root="+t.TempDir(), "--network=none", "--ignore-cgroups", "do",
		self, "-test.v", "-test.timeout=110s", "-test.run=^("+strings.Join(tests, "|")+")$")
	cmd.Env = append(os.Environ(), inGVisor+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range tests {
		require.Contains(t, string(out), "--- PASS: "+name+" ", "%s", out)
	}
}
