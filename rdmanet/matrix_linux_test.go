package rdmanet_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// chosenEnv keeps RDMANET_DEVICE as empty as the environment has it: what serves is chosen. Else tests are about softroce.
const chosenEnv = "RDMANET_TEST_CHOSEN"

// provider is what serves the connections of tests that name none.
func provider() string {
	switch {
	case os.Getenv(chosenEnv) != "":
		return "shm"
	case os.Getenv("RDMANET_TEST_ADDRS") != "":
		return "rdmacore"
	}
	return "softroce"
}

// matrix is what no layer above may tell providers apart by. Softroce has these tests under their own names; TestMatrix runs them on
// the others.
var matrix = []struct {
	name string
	test func(*testing.T)
}{
	{"TestConn", TestConn}, // nettest's
	{"TestConnIPv6", TestConnIPv6},

	{"TestHTTP", TestHTTP}, // over HTTP/1.1 and HTTP/2, in plain and inside TLS, as are those that follow
	{"TestHTTPLargeBodies", TestHTTPLargeBodies},
	{"TestHTTPShutdown", TestHTTPShutdown},
	{"TestHTTPClientCancels", TestHTTPClientCancels},
	{"TestHTTPStreaming", TestHTTPStreaming},
	{"TestHTTPManyConnections", TestHTTPManyConnections},
	{"TestHTTPServerTimeouts", TestHTTPServerTimeouts},
	{"TestHTTPHijack", TestHTTPHijack},
	{"TestHTTPServerClosesIdle", TestHTTPServerClosesIdle},
	{"TestTLSRefusalIsRead", TestTLSRefusalIsRead},
	{"TestReverseProxy", TestReverseProxy},
	{"TestReverseProxyUpgrade", TestReverseProxyUpgrade},
	{"TestNetRPC", TestNetRPC},

	{"TestAddresses", TestAddresses},
	{"TestFullWindowsBothWays", TestFullWindowsBothWays},
	{"TestWriteOfAnyLength", TestWriteOfAnyLength},
	{"TestWritesDoNotMix", TestWritesDoNotMix},
	{"TestCopyFile", TestCopyFile},
	{"TestReadFromLeavesWriters", TestReadFromLeavesWriters},
	{"TestReadFromNothing", TestReadFromNothing},
	{"TestWriteBuffers", TestWriteBuffers},
	{"TestBufferSizes", TestBufferSizes},
	{"TestStats", TestStats},

	{"TestCloseWrite", TestCloseWrite},
	{"TestCloseWriteTwice", TestCloseWriteTwice},
	{"TestCloseReadWakesReader", TestCloseReadWakesReader},
	{"TestCloseReadLeavesWriting", TestCloseReadLeavesWriting},
	{"TestCloseWriteKeepsDeadline", TestCloseWriteKeepsDeadline},
	{"TestBothCloseWriteAtOnce", TestBothCloseWriteAtOnce},
	{"TestWriteToClosedPeer", TestWriteToClosedPeer},
	{"TestCloseDeliversWhatWasWritten", TestCloseDeliversWhatWasWritten},
	{"TestCloseTwice", TestCloseTwice},
	{"TestCloseInterrupts", TestCloseInterrupts},
	{"TestReadsAfterPeerClosed", TestReadsAfterPeerClosed},
	{"TestPeerClosesWhileReading", TestPeerClosesWhileReading},
	{"TestBothCloseAtOnce", TestBothCloseAtOnce},
	{"TestLinger", TestLinger},
	{"TestDrain", TestDrain},
}

// hostMatrix needs both ends on one host, at addresses of the loopback interface, or many processes.
var hostMatrix = []struct {
	name string
	test func(*testing.T)
}{
	{"TestConnTLS", TestConnTLS},
	{"TestListenAddr", TestListenAddr},
	{"TestListenPortInUse", TestListenPortInUse},
	{"TestListenBesideTCP", TestListenBesideTCP},
	{"TestListenAddressOfAnother", TestListenAddressOfAnother},
	{"TestListenerClose", TestListenerClose},
	{"TestListenerCloseRejectsWaiting", TestListenerCloseRejectsWaiting},
	{"TestListenerDeadline", TestListenerDeadline},
	{"TestAdmit", TestAdmit},
	{"TestAdmitSlow", TestAdmitSlow},
	{"TestManyDialsAtOnce", TestManyDialsAtOnce},
	{"TestDialUnspecified", TestDialUnspecified},
	{"TestDialLocalAddr", TestDialLocalAddr},
	{"TestContextAfterDial", TestContextAfterDial},
	{"TestProcessesHTTP", TestProcessesHTTP},
	{"TestProcessesManyConnections", TestProcessesManyConnections},
	{"TestProcessesCancel", TestProcessesCancel},
	{"TestProcessesShutdown", TestProcessesShutdown},
	{"TestProcessesTimeouts", TestProcessesTimeouts},
	{"TestProcessesHijack", TestProcessesHijack},
	{"TestProcessesRestart", TestProcessesRestart},
	{"TestProcessesPortInUse", TestProcessesPortInUse},
	{"TestKilledPeer", TestKilledPeer},
	{"TestKilledClient", TestKilledClient},
	{"TestListenFallback", TestListenFallback},
	{"TestListenFallbackAdmit", TestListenFallbackAdmit},
	{"TestRollingUpgrade", TestRollingUpgrade},
}

// TestMatrix runs the tests of streams on the provider that is chosen on one host, shared memory, and in a guest on the device of
// RDMANET_DEVICE.
func TestMatrix(t *testing.T) {
	tests := matrix
	if provider() == "softroce" {
		choose(t)
		tests = append(tests, hostMatrix...)
	}
	require.Equal(t, os.Getenv(chosenEnv) == "", provider() == "rdmacore")
	t.Run(provider(), func(t *testing.T) {
		for _, m := range tests {
			t.Run(m.name, m.test)
		}
		client, server := pair(t)
		for _, c := range []*rdmanet.Conn{client, server} {
			require.Equal(t, provider(), c.Stats().Provider)
		}
	})
}

// choose leaves it to package rdmanet to choose a provider, here and in the processes that the test starts, until it ends. A test that runs beside
// others must not call it.
func choose(t *testing.T) {
	t.Helper()
	device := os.Getenv("RDMANET_DEVICE")
	os.Unsetenv("RDMANET_DEVICE")
	os.Setenv(chosenEnv, "1")
	t.Cleanup(func() {
		os.Setenv("RDMANET_DEVICE", device)
		os.Unsetenv(chosenEnv)
	})
}
