package rdmacore

import (
	"testing"
	"time"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// packetTests are those of rdmanet's datagrams that take their addresses from the environment.
const packetTests = "^(TestPacketConn|TestPacketZeroAndWhole|TestPacketBatch|TestPacketManners|TestPacketAdmit|TestPacketProcesses|" +
	"TestPacketRawPeer|TestListenMulticast)$"

// TestRDMANetDatagrams runs package rdmanet's tests of datagrams on rxe0.
func TestRDMANetDatagrams(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), rdmanetPkg)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"RDMANET_DEVICE=rdmacore", "RDMANET_TEST_ADDRS=" + p.Near.V4.String() + "," + p.Near.V6.String()}
	runTests(t, g, 5*time.Minute, env, prog, "-test.v", "-test.run="+packetTests)
}
