package rdmanet_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// rsockets' fork mode (RDMAV_FORK_SAFE under librspreload) begins on TCP: the client connects there,
// waits for four zero bytes, and connects by RDMA then. It is not spoken.

// TestForkModeClientIsRefused: there is nothing on TCP for it to wait at, and a client that is not in that mode
// is served all the same.
func TestForkModeClientIsRefused(t *testing.T) {
	l := listen(t, nil)
	_, err := net.Dial("tcp", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	dial(t, nil, l.Addr())
	accept(t, l)
}

// TestForkModeServerIsNotMet: a server in that mode is a TCP listener until its first client has come.
func TestForkModeServerIsNotMet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = rdmanet.DialTimeout("rdma", l.Addr().String(), 10*time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = l.Accept()
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	assert.True(t, ne.Timeout(), "nobody has asked over TCP")
}
