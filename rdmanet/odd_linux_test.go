package rdmanet_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// TestNotOneHost: addresses of many hosts cannot be dialed nor listened on, and the error says what to do.
func TestNotOneHost(t *testing.T) {
	for _, addr := range []string{"255.255.255.255:7", "127.255.255.255:7", "224.0.0.1:7", "[ff02::1]:7", "[ff02::1%lo]:7"} {
		_, err := rdmanet.DialTimeout("rdma", addr, 10*time.Second)
		require.ErrorIs(t, err, syscall.ENETUNREACH)
		if addr != "127.255.255.255:7" { // whose routes tell what it is
			require.ErrorContains(t, err, "dial that host's own address")
		} else {
			require.ErrorContains(t, err, "ip route get 127.255.255.255")
		}
		l, err := rdmanet.Listen("rdma", addr)
		require.Nil(t, l)
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.ErrorContains(t, err, "of this host")
	}
}
