package rdmanet_test

import (
	"crypto/rand"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rdmanet"
)

// setMTU changes an interface.
func setMTU(t *testing.T, name string, mtu uint32) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	require.NoError(t, err)
	req.SetUint32(mtu)
	require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFMTU, req))
}

// portMTU is what the built-in device's port tells of itself.
func portMTU(t *testing.T) int {
	t.Helper()
	ds, err := rdmanet.Devices()
	require.NoError(t, err)
	for _, d := range ds {
		if d.Provider == "softroce" {
			return d.Ports[0].MTU
		}
	}
	t.Fatal("no device")
	return 0
}

// TestMTUShrinks: a connection whose packets do not fit the way any more says so at once, its peer when it is closed, and the
// next one has shorter packets.
func TestMTUShrinks(t *testing.T) {
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		setMTU(t, "lo", 9000)
		require.Equal(t, 4096, portMTU(t))
		l, err := rdmanet.Listen("rdma", addr)
		require.NoError(t, err)
		pair := func() (c, s net.Conn) {
			accepted := make(chan net.Conn, 1)
			go func() {
				s, err := l.Accept()
				if err == nil {
					accepted <- s
				}
			}()
			c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 10*time.Second)
			require.NoError(t, err)
			return c, <-accepted
		}
		data := make([]byte, 100_000)
		_, _ = rand.Read(data)
		transfer := func(c, s net.Conn) {
			go func() { _, _ = c.Write(data) }()
			got := make([]byte, len(data))
			_, err := io.ReadFull(s, got)
			require.NoError(t, err)
			require.Equal(t, data, got)
		}
		c, s := pair()
		transfer(c, s)
		setMTU(t, "lo", 1500)
		start := time.Now()
		for err = nil; err == nil; {
			_, err = c.Write(data)
		}
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		require.ErrorContains(t, err, "4096 bytes")
		require.ErrorContains(t, err, "connect again")
		t.Log(err)
		_ = c.Close() // tells of data that was not delivered
		_, err = io.Copy(io.Discard, s)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Less(t, time.Since(start), 5*time.Second)
		require.NoError(t, s.Close())

		require.Equal(t, 1024, portMTU(t))
		c, s = pair()
		transfer(c, s)
		transfer(s, c)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		require.NoError(t, l.Close())
	}
}
