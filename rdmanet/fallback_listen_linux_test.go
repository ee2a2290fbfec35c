package rdmanet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// listenBoth listens by RDMA and TCP until the test ends.
func listenBoth(t *testing.T, lc rdmanet.ListenConfig, network, address string) *rdmanet.Listener {
	t.Helper()
	lc.Fallback = new(net.ListenConfig)
	l, err := lc.Listen(t.Context(), network, address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	require.IsType(t, (*rdmanet.Listener)(nil), l)
	return l.(*rdmanet.Listener)
}

// One listener takes both, at one number.
func TestListenFallback(t *testing.T) {
	for _, c := range []struct{ network, address, host string }{
		{"rdma", "127.0.0.1:0", "127.0.0.1"},
		{"rdma", "[::1]:0", "[::1]"},
		{"tcp", ":0", "127.0.0.1"},
		{"rdma", "0.0.0.0:0", "[::1]"},
		{"rdma4", ":0", "127.0.0.1"},
		{"rdma6", ":0", "[::1]"},
	} {
		l := listenBoth(t, rdmanet.ListenConfig{}, c.network, c.address)
		require.IsType(t, (*rdmanet.Addr)(nil), l.Addr())
		addr := c.host + ":" + port(t, l)
		tcp, err := net.Dial("tcp", addr)
		require.NoError(t, err, "%v", c)
		s, err := l.Accept()
		require.NoError(t, err)
		require.IsType(t, (*net.TCPConn)(nil), s)
		assert.Equal(t, tcp.LocalAddr().String(), s.RemoteAddr().String())
		s.Close()
		tcp.Close()

		rdma, err := rdmanet.Dial("rdma", addr)
		require.NoError(t, err)
		s, err = l.Accept()
		require.NoError(t, err)
		require.IsType(t, (*rdmanet.Conn)(nil), s)
		s.Close()
		rdma.Close()
		st := l.Stats()
		assert.Equal(t, rdmanet.ListenerStats{Accepted: 2, TCP: 1}, st)
		require.NoError(t, l.Close())
	}
	l4 := listenBoth(t, rdmanet.ListenConfig{}, "rdma4", ":0")
	_, err := net.Dial("tcp", "[::1]:"+port(t, l4))
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "one family is one family")
}

// A port that either has is in use, and of what was taken nothing stays.
func TestListenFallbackPortInUse(t *testing.T) {
	lc := &rdmanet.ListenConfig{Fallback: new(net.ListenConfig)}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = lc.Listen(t.Context(), "rdma", tcp.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	var e *rdmanet.Error
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Hint, "another port")
	l, err := rdmanet.Listen("rdma", tcp.Addr().String())
	require.NoError(t, err)
	require.NoError(t, tcp.Close())
	_, err = lc.Listen(t.Context(), "rdma", l.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	tcp, err = net.Listen("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, tcp.Close())
	require.NoError(t, l.Close())
}

func TestListenFallbackClose(t *testing.T) {
	l := listenBoth(t, rdmanet.ListenConfig{}, "rdma", "127.0.0.1:0")
	addr := l.Addr().String()

	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, l.SetDeadline(time.Time{}))

	accepted, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer accepted.Close()
	s, err := l.Accept()
	require.NoError(t, err)
	defer s.Close()
	var waiting []net.Conn // one of them in our hands, one in the kernel's
	for range 2 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		waiting = append(waiting, c)
	}
	require.Eventually(t, func() bool { return l.Stats().Waiting == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	assert.Zero(t, l.Stats().Waiting)
	for _, c := range waiting {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	for _, network := range []string{"tcp", "rdma"} {
		dial := net.Dial
		if network == "rdma" {
			dial = rdmanet.Dial
		}
		_, err = dial(network, addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, network)
	}
	_, err = s.Write([]byte("still here"))
	require.NoError(t, err)
	b := make([]byte, 10)
	_, err = io.ReadFull(accepted, b)
	require.NoError(t, err)

	// One who waits is told.
	l = listenBoth(t, rdmanet.ListenConfig{}, "rdma", "127.0.0.1:0")
	errc := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		errc <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-errc, net.ErrClosed)
}

// Who is kept out by RDMA does not come in by TCP.
func TestListenFallbackAdmit(t *testing.T) {
	asked := make(chan *rdmanet.Request, 10)
	release := make(chan struct{})
	l := listenBoth(t, rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		asked <- r
		if r.Provider == "tcp" {
			<-release
		}
		return errors.New("not today")
	}}, "rdma", "127.0.0.1:0")
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	r := <-asked
	assert.Equal(t, "tcp", r.Provider)
	assert.Empty(t, r.Device)
	assert.Equal(t, c.LocalAddr().String(), r.Remote.String())
	assert.Equal(t, l.Addr().String(), r.Local.String())

	d, _ := falling(t)
	d.Fallback = nil
	_, err = d.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "it holds nobody up")
	close(release)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.EqualValues(t, 2, l.Stats().Rejected)
	assert.Zero(t, l.Stats().Waiting)
}

// Without a device TCP serves alone, which the log tells; without Fallback it is an error.
func TestListenFallbackNoDevice(t *testing.T) {
	log := new(logLines)
	lc := rdmanet.ListenConfig{Device: "mlx5_77", Logger: log.logger()}
	_, err := lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, rdmanet.ErrNoDevice)
	assert.Empty(t, log.all())

	l := listenBoth(t, lc, "rdma", "127.0.0.1:0")
	require.Len(t, log.all(), 1)
	assert.Contains(t, log.all()[0], "listening by TCP only")
	assert.Contains(t, log.all()[0], "mlx5_77")
	echoing(t, l)
	d, _ := falling(t)
	overTCP(t, d, l.Addr().String())
	assert.Equal(t, rdmanet.ListenerStats{Accepted: 1, TCP: 1}, l.Stats())

	lc.Fallback, lc.Device = new(net.ListenConfig), "softroce,,"
	_, err = lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, syscall.EINVAL, "a mistake")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lc.Device = ""
	_, err = lc.Listen(ctx, "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, context.Canceled)
	assert.Len(t, log.all(), 1, strings.Join(log.all(), "\n"))
}
