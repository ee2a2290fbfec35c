//go:build linux

package shm

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestWayToNoPort: who asks for the way to an address, at port 0, needs nobody that listens, and is not kept by a process that
// has taken that port's name and says nothing.
func TestWayToNoPort(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: portName(portKey{verbs.PSTCP, 0})}))
	require.NoError(t, unix.Listen(fd, 8))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	id, err := New().Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("127.0.0.1:0")})
	require.NoError(t, err)
	require.Equal(t, "shm0", id.Device().Info().Name)
	require.NoError(t, id.Close())
}
