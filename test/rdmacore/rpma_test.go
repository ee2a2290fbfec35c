package rdmacore

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// notHere are those of package rpma's tests that say nothing of a device in a guest, and why.
var notHere = map[string]string{
	"Example.*":          "they show 127.0.0.1, which the embedded device has",
	"TestAdviceErrors":   "it puts faults into the embedded device",
	"TestAttributes":     "it listens to what the embedded device is asked for",
	"TestClientProcess":  "TestClientProcesses starts it",
	"TestFaults":         "it puts faults into the embedded device",
	"TestKeepAlive":      "it is on a simulated network",
	"TestLastWord":       "it is on a simulated network",
	"TestLibrpmaTable":   "it reads the project's pages",
	"TestLoss":           "it is on a simulated network",
	"TestRegisterMuch":   "a device pins what is registered",
	"TestRequests":       "it listens to what the embedded device is asked for",
	"TestResolveTimeout": "it is on a simulated network",
	"TestServerProcess":  "TestKilled starts it",
	"TestSharedMemory":   "it runs the others on another device",
	"TestUnreachable":    "it is on a simulated network",
}

// TestRPMA runs all other tests of package rpma on rxe0.
func TestRPMA(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), "github.com/go-rdma/rdma/rpma")
	require.NoError(t, err)
	names := strings.Fields(run(t, g, prog, "-test.list=."))
	skip := slices.Sorted(maps.Keys(notHere))
	for _, pattern := range skip {
		there := regexp.MustCompile("^" + pattern + "$")
		assert.True(t, slices.ContainsFunc(names, there.MatchString), "%s is no test any more", pattern)
	}
	env := []string{"RDMANET_DEVICE=rdmacore", "RPMA_TEST_ADDR=" + p.Near.V4.String()}
	out := runTests(t, g, 5*time.Minute, env, prog, "-test.run=.", "-test.skip=^("+strings.Join(skip, "|")+")$")
	assert.NotContains(t, out, "--- SKIP", "what is not for here is in the list")
}
