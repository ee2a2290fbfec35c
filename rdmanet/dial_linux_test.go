package rdmanet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// unusedPort is a port that nobody listens on.
func unusedPort(t *testing.T) string {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// dialError dials in vain and looks at what every error must have.
func dialError(t *testing.T, d *rdmanet.Dialer, network, address string) (*net.OpError, *rdmanet.Error) {
	t.Helper()
	c, err := d.Dial(network, address)
	require.Error(t, err)
	require.True(t, noConn(c), "a failed Dial returns a nil interface, not a typed nil")
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "dial", op.Op)
	e, ok := op.Err.(*rdmanet.Error)
	require.True(t, ok, "%T", op.Err)
	assert.NotEmpty(t, e.Phase)
	return op, e
}

func TestDialNoListener(t *testing.T) {
	addr := unusedPort(t)
	op, e := dialError(t, new(rdmanet.Dialer), "rdma", addr)
	require.ErrorIs(t, op, syscall.ECONNREFUSED)
	assert.Equal(t, "rdma", op.Net)
	assert.Equal(t, addr, op.Addr.String())
	assert.Equal(t, rdmanet.Phase("connect"), e.Phase)
	assert.Equal(t, "softroce", e.Provider)
	assert.NotEmpty(t, e.Device)
	assert.NotEmpty(t, e.Hint)
	var rej *rdmanet.RejectError
	require.ErrorAs(t, op, &rej)
	assert.Equal(t, 8, rej.Reason)
	assert.False(t, op.Timeout())
}

// A client that starts early finds the server later.
func TestDialBeforeListen(t *testing.T) {
	addr := unusedPort(t)
	for range 20 {
		_, err := rdmanet.Dial("rdma", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	l, err := rdmanet.Listen("rdma", addr)
	require.NoError(t, err)
	defer l.Close()
	c, err := rdmanet.Dial("rdma", addr)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestDialUnknownNetwork(t *testing.T) {
	op, e := dialError(t, new(rdmanet.Dialer), "sctp", "127.0.0.1:80")
	var unknown net.UnknownNetworkError
	require.ErrorAs(t, op, &unknown)
	assert.Equal(t, net.UnknownNetworkError("sctp"), unknown)
	assert.Equal(t, "sctp", op.Net)
	assert.Contains(t, e.Hint, `"rdma"`)
	_, err := rdmanet.Listen("sctp", "127.0.0.1:80")
	require.ErrorAs(t, err, &unknown)
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "listen", op.Op)
}

// The functions for streams refuse datagram networks, and the other way round.
func TestNetworksOfTheOtherKind(t *testing.T) {
	for _, network := range []string{"rdma-ud", "rdma-ud4", "rdma-ud6", "udp", "udp4", "udp6"} {
		_, err := rdmanet.Listen(network, "127.0.0.1:0")
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	for _, network := range []string{"rdma", "rdma4", "rdma6", "tcp", "tcp4", "tcp6"} {
		_, err := rdmanet.ListenPacket(network, "127.0.0.1:0")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = rdmanet.ListenMulticast(network, nil, new(rdmanet.Addr))
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
}

func TestDialBadAddress(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1", "::1:80", "127.0.0.1:80:90", "[::1", "127.0.0.1:65536", "127.0.0.1:nosuchservice"} {
		op, e := dialError(t, new(rdmanet.Dialer), "rdma", address)
		assert.Equal(t, rdmanet.Phase("resolve"), e.Phase, address)
		var ae *net.AddrError
		var de *net.DNSError
		assert.True(t, errors.As(op, &ae) || errors.As(op, &de), "%s: %v", address, op)
	}
	dialError(t, new(rdmanet.Dialer), "rdma4", "[::1]:80")
	dialError(t, new(rdmanet.Dialer), "rdma6", "127.0.0.1:80")
	for _, address := range []string{"127.0.0.1", "127.0.0.1:65536", "239.1.1.1:80"} {
		l, err := rdmanet.Listen("rdma", address)
		require.Error(t, err)
		require.True(t, noListener(l))
	}
}

func TestDialUnknownDevice(t *testing.T) {
	op, e := dialError(t, &rdmanet.Dialer{Device: "mlx5_77"}, "rdma", "127.0.0.1:80")
	require.ErrorIs(t, op, rdmanet.ErrNoDevice)
	assert.Equal(t, rdmanet.Phase("device"), e.Phase)
	assert.Contains(t, op.Error(), "mlx5_77: no device of that name: there are shm, rdmacore, softroce")
	assert.NotEmpty(t, e.Hint)

	op, _ = dialError(t, &rdmanet.Dialer{Device: "shm,rdmacore"}, "rdma", "192.0.2.1:80")
	require.ErrorIs(t, op, rdmanet.ErrNoDevice)
	assert.Contains(t, op.Error(), "shared memory reaches this host")
	assert.Contains(t, op.Error(), "rdmacore: this host has no RDMA device")

	op, e = dialError(t, &rdmanet.Dialer{Device: "softroce,,"}, "rdma", "127.0.0.1:80")
	require.ErrorIs(t, op, syscall.EINVAL)
	assert.Contains(t, e.Hint, "softroce")

	_, err := (&rdmanet.ListenConfig{Device: "mlx5_77"}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, rdmanet.ErrNoDevice)
}

func TestDialByDeviceName(t *testing.T) {
	l := listen(t, nil)
	devs, err := rdmanet.Devices()
	require.NoError(t, err)
	for _, dev := range devs {
		if dev.Provider != "softroce" {
			continue
		}
		require.NoError(t, dev.Unusable)
		require.NotEmpty(t, dev.Ports)
		for _, name := range []string{dev.Name, dev.Name + "/1", "mlx5_77," + dev.Name} {
			c, err := (&rdmanet.Dialer{Device: name}).Dial("rdma", l.Addr().String())
			require.NoError(t, err, name)
			rc, ok := rdmanet.Unwrap(c)
			require.True(t, ok)
			assert.Equal(t, dev.Name, rc.Stats().Device)
			require.NoError(t, c.Close())
		}
	}
}

func TestDialUnspecified(t *testing.T) {
	l, err := rdmanet.Listen("rdma", ":0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	for _, c := range []struct{ network, address, remote string }{
		{"rdma", ":" + port, "127.0.0.1:" + port},
		{"tcp", ":" + port, "127.0.0.1:" + port},
		{"rdma4", ":" + port, "127.0.0.1:" + port},
		{"rdma6", ":" + port, "[::1]:" + port},
		{"rdma", "0.0.0.0:" + port, "127.0.0.1:" + port},
		{"rdma", "[::]:" + port, "[::1]:" + port},
		{"rdma", "localhost:" + port, ""},
	} {
		conn, err := rdmanet.Dial(c.network, c.address)
		require.NoError(t, err, "%v", c)
		if c.remote != "" {
			assert.Equal(t, c.remote, conn.RemoteAddr().String())
		}
		server, err := l.Accept()
		require.NoError(t, err)
		assert.Equal(t, conn.LocalAddr(), server.RemoteAddr())
		require.NoError(t, conn.Close())
		require.NoError(t, server.Close())
	}
}

func TestDialLocalAddr(t *testing.T) {
	l, err := rdmanet.Listen("rdma4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, local := range []net.Addr{
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)},
		&net.IPAddr{IP: net.IPv4(127, 0, 0, 1)},
		rdmanet.AddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")),
		&net.TCPAddr{},
		(*net.TCPAddr)(nil),
	} {
		c, err := (&rdmanet.Dialer{LocalAddr: local}).Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		host, _, err := net.SplitHostPort(c.LocalAddr().String())
		require.NoError(t, err)
		assert.Equal(t, "127.0.0.1", host)
		require.NoError(t, c.Close())
	}
	op, e := dialError(t, &rdmanet.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 77)}}, "rdma", l.Addr().String())
	require.ErrorIs(t, op, syscall.EADDRNOTAVAIL)
	assert.NotEmpty(t, e.Hint)
	assert.Contains(t, op.Source.String(), "203.0.113.77")
	dialError(t, &rdmanet.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv6loopback}}, "rdma", l.Addr().String())
	dialError(t, &rdmanet.Dialer{LocalAddr: &net.UnixAddr{Name: "x", Net: "unix"}}, "rdma", l.Addr().String())
}

// silent is a listener that answers nothing: its backlog is full.
func silent(t *testing.T) string {
	l := listen(t, &rdmanet.ListenConfig{Backlog: 1})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for range 4 {
		wg.Go(func() {
			if c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", l.Addr().String()); err == nil {
				<-ctx.Done()
				c.Close()
			}
		})
	}
	require.Eventually(t, func() bool { return l.Stats().Dropped > 0 }, 5*time.Second, time.Millisecond)
	return l.Addr().String()
}

func TestDialContextEnds(t *testing.T) {
	addr := silent(t)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", addr)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, noConn(c))
	assert.Less(t, time.Since(start), 2*time.Second)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	assert.False(t, ne.Timeout())

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, f := range []func() error{
		func() error { _, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", addr); return err },
		func() error { _, err := rdmanet.DialTimeout("rdma", addr, 50*time.Millisecond); return err },
		func() error {
			_, err := (&rdmanet.Dialer{Deadline: time.Now().Add(50 * time.Millisecond)}).Dial("rdma", addr)
			return err
		},
		func() error { _, err := (&rdmanet.Dialer{Deadline: time.Unix(1, 0)}).Dial("rdma", addr); return err },
	} {
		start := time.Now()
		err := f()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorAs(t, err, &ne)
		assert.True(t, ne.Timeout())
		assert.Less(t, time.Since(start), 2*time.Second)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.True(t, op.Addr == nil || op.Addr.String() == addr)
	}

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = new(rdmanet.Dialer).DialContext(ctx, "rdma", addr)
	require.ErrorIs(t, err, context.Canceled)
	_, err = new(rdmanet.ListenConfig).Listen(ctx, "rdma", "127.0.0.1:0")
	require.ErrorIs(t, err, context.Canceled)
}

// The context ends the dial only.
func TestContextAfterDial(t *testing.T) {
	l := listen(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	cancel()
	time.Sleep(20 * time.Millisecond)
	server := accept(t, l)
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, readOne(server))
}

func readOne(c net.Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

// Errors read well: who, what, where, and what to do, in one line.
func TestDialErrorText(t *testing.T) {
	addr := unusedPort(t)
	_, err := rdmanet.Dial("rdma", addr)
	text := err.Error()
	t.Log(text)
	assert.True(t, strings.HasPrefix(text, "dial rdma "+addr+": softroce"), text)
	assert.Contains(t, text, "nobody listens")
	assert.NotContains(t, text, "\n")
}
