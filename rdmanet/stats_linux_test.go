package rdmanet

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that no packet reaches unchanged, behind NAT for example, has no connection; its statistics tell why.
func TestAllStatsOfListenerAlone(t *testing.T) {
	devices.Lock()
	used := devices.m
	devices.m = map[[2]string]*totals{} // as if nothing had been connected yet
	devices.Unlock()
	defer func() {
		devices.Lock()
		devices.m = used
		devices.Unlock()
	}()
	l, err := Listen("rdma", ":0")
	require.NoError(t, err)
	defer l.Close()
	badICRC := func() (n uint64) {
		for _, d := range AllStats() {
			require.NotEmpty(t, d.Device)
			n += d.BadICRC
		}
		return n
	}
	before := badICRC()
	require.Eventually(t, func() bool {
		// Each comes from another port, since processes share the receiving one.
		c, err := net.Dial("udp", "127.0.0.1:4791")
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(bytes.Repeat([]byte{4}, 64)) // no ICRC
		require.NoError(t, err)
		return badICRC() > before
	}, 10*time.Second, time.Millisecond)
}
