package rdmacore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// rpmaTests are those that take their address from the environment.
const rpmaTests = "^(TestDo|TestPost|TestFlushAnywhere|TestUnsignaled|TestQueueFull|TestParts|TestReceiveQueues|TestSharedReceives|TestAllocations|" +
	"TestPrivateData|TestRefused|TestContexts|TestEvents|TestRemoteAccess|TestLongMessage|TestCloseWithEverything|TestMixed|TestManyConnections|" +
	"TestCloseInAnyOrder|TestRules|TestPersistentFlush|TestRegions|TestPeerClose)$"

// TestRPMA runs package rpma's tests on rxe0.
func TestRPMA(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), "github.com/go-rdma/rdma/rpma")
	require.NoError(t, err)
	env := []string{"RDMANET_DEVICE=rdmacore", "RPMA_TEST_ADDR=" + p.Near.V4.String()}
	runTests(t, g, 5*time.Minute, env, prog, "-test.run="+rpmaTests)
}
