package rpma_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSharedMemory runs the other tests on shared memory.
func TestSharedMemory(t *testing.T) {
	if onShm || os.Getenv("RPMA_TEST_ADDR") != "" {
		t.Skip("they run on another device")
	}
	args := []string{"-test.shuffle=on", "-test.timeout=4m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "RDMANET_DEVICE=shm")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
