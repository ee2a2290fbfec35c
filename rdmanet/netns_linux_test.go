package rdmanet_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
)

const ownNetEnv = "RDMANET_TEST_NETWORK"

// inOwnNetwork runs the calling test again, in a process with a network of its own, and tells whether this is
// that process: what the test does to others reaches only those that it starts.
func inOwnNetwork(t *testing.T, limit time.Duration) bool {
	t.Helper()
	if os.Getenv(ownNetEnv) == t.Name() {
		require.NoError(t, testnet.Up())
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), ownNetEnv+"="+t.Name())
	cmd.SysProcAttr = testnet.Attr(0, 0)
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		cannot(t, "a network namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return false
}

// cannot skips a test for which the system lacks something. Where everything has to be tested it fails.
func cannot(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this system does not let us have "+format, args...)
	}
	t.Skipf("this system does not let us have "+format, args...)
}
