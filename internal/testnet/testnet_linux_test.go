package testnet

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if !Own() {
		outside, _ = os.Readlink("/proc/self/ns/net")
		os.Setenv("TESTNET_OUTSIDE", outside)
	}
	Main()
	os.Exit(m.Run())
}

var outside string

// TestOwnNetwork: there is a loopback interface, and nothing of the network outside.
func TestOwnNetwork(t *testing.T) {
	if !Own() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this system does not let us have a network namespace")
		}
		t.Skip("this system does not let us have a network namespace")
	}
	inside, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.NotEqual(t, os.Getenv("TESTNET_OUTSIDE"), inside)
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range ifs {
		require.Equal(t, i.Name == "lo", i.Flags&net.FlagUp != 0, i.Name)
	}
	for _, a := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", a)
		require.NoError(t, err)
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}
