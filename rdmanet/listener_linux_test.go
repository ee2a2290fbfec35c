package rdmanet_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func TestListenAddr(t *testing.T) {
	for _, c := range []struct{ network, address, host string }{
		{"rdma", "127.0.0.1:0", "127.0.0.1"},
		{"rdma", "[::1]:0", "::1"},
		{"rdma", ":0", "::"},
		{"rdma", "", "::"},
		{"tcp", "0.0.0.0:0", "::"},
		{"rdma4", ":0", "0.0.0.0"},
		{"rdma6", ":0", "::"},
		{"rdma", "localhost:0", "127.0.0.1"},
	} {
		l, err := rdmanet.Listen(c.network, c.address)
		require.NoError(t, err, "%v", c)
		assert.Equal(t, "rdma", l.Addr().Network())
		host, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		assert.Equal(t, c.host, host)
		assert.NotEqual(t, "0", port, "the real port")
		require.NoError(t, l.Close())
	}
}

func TestListenPortInUse(t *testing.T) {
	l := listen(t, nil)
	for _, address := range []string{l.Addr().String(), ":" + port(t, l)} {
		l2, err := rdmanet.Listen("rdma", address)
		require.ErrorIs(t, err, syscall.EADDRINUSE, address)
		require.True(t, noListener(l2))
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.Equal(t, "listen", op.Op)
		e, ok := op.Err.(*rdmanet.Error)
		require.True(t, ok)
		assert.Contains(t, e.Hint, "another port")
	}
	require.NoError(t, l.Close())
	l2, err := rdmanet.Listen("rdma", l.Addr().String())
	require.NoError(t, err, "the port is free once closed")
	require.NoError(t, l2.Close())
}

// RDMA's port numbers are not TCP's.
func TestListenBesideTCP(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	l, err := rdmanet.Listen("rdma", tcp.Addr().String())
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestListenAddressOfAnother(t *testing.T) {
	_, err := rdmanet.Listen("rdma", "203.0.113.77:0")
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	var e *rdmanet.Error
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Hint, "this host's")
}

func TestListenerClose(t *testing.T) {
	l := listen(t, nil)
	client := dial(t, nil, l.Addr())
	server := accept(t, l)
	errc := make(chan error, 1)
	require.NoError(t, l.SetDeadline(time.Time{}))
	go func() {
		_, err := l.Accept()
		errc <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, l.Close())
	within(t, 5*time.Second, "Accept", func() {
		err := <-errc
		require.ErrorIs(t, err, net.ErrClosed)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.Equal(t, "accept", op.Op)
		assert.Equal(t, net.ErrClosed, op.Err)
	})
	c, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.True(t, noConn(c))
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	require.ErrorIs(t, l.SetDeadline(time.Now()), net.ErrClosed)

	// What was accepted lives on.
	_, err = client.Write([]byte("still here"))
	require.NoError(t, err)
	b := make([]byte, 10)
	_, err = io.ReadFull(server, b)
	require.NoError(t, err)
	assert.Equal(t, "still here", string(b))
}

// Connections that wait for Accept end with the listener.
func TestListenerCloseRejectsWaiting(t *testing.T) {
	l := listen(t, nil)
	client := dial(t, nil, l.Addr())
	require.Eventually(t, func() bool { return l.Stats().Waiting == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	require.NoError(t, client.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := client.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = rdmanet.Dial("rdma", l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestListenerDeadline(t *testing.T) {
	l := listen(t, nil)
	require.NoError(t, l.SetDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	assert.True(t, ne.Timeout())

	require.NoError(t, l.SetDeadline(time.Time{}))
	errc := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		errc <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, l.SetDeadline(time.Unix(1, 0)), "also for one who waits already")
	within(t, 5*time.Second, "Accept", func() { require.ErrorIs(t, <-errc, os.ErrDeadlineExceeded) })

	require.NoError(t, l.SetDeadline(time.Time{}))
	dial(t, nil, l.Addr())
	c, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestAdmit(t *testing.T) {
	var asked atomic.Int32
	refuse := atomic.Bool{}
	var seen atomic.Pointer[rdmanet.Request]
	l := listen(t, &rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		asked.Add(1)
		seen.Store(r)
		if refuse.Load() {
			return errors.New("not today")
		}
		return nil
	}})
	client := dial(t, nil, l.Addr())
	server := accept(t, l)
	assert.EqualValues(t, 1, asked.Load())
	r := seen.Load()
	assert.Equal(t, server.LocalAddr(), r.Local)
	assert.Equal(t, client.LocalAddr(), r.Remote)
	assert.Equal(t, provider(), r.Provider)
	assert.NotEmpty(t, r.Device)
	if provider() == "shm" {
		assert.Equal(t, &rdmanet.Cred{PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid()}, r.Cred)
	} else {
		assert.Nil(t, r.Cred, "no kernel vouches for a packet")
	}

	refuse.Store(true)
	_, e := dialError(t, new(rdmanet.Dialer), "rdma", l.Addr().String())
	require.ErrorIs(t, e, syscall.ECONNREFUSED)
	var rej *rdmanet.RejectError
	require.ErrorAs(t, e, &rej)
	assert.Equal(t, 28, rej.Reason, "told apart from a port without a listener")
	assert.Contains(t, e.Hint, "Admit")
	assert.EqualValues(t, 1, l.Stats().Rejected)

	refuse.Store(false)
	dial(t, nil, l.Addr())
	accept(t, l)
}

// An Admit that takes long holds up nobody else.
func TestAdmitSlow(t *testing.T) {
	release := make(chan struct{})
	var first atomic.Bool
	l := listen(t, &rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		if first.CompareAndSwap(false, true) {
			<-release
		}
		return nil
	}})
	slow := make(chan error, 1)
	go func() {
		c, err := rdmanet.Dial("rdma", l.Addr().String())
		if err == nil {
			c.Close()
		}
		slow <- err
	}()
	require.Eventually(t, first.Load, 5*time.Second, time.Millisecond)
	within(t, 5*time.Second, "Dial", func() { dial(t, nil, l.Addr()) })
	close(release)
	within(t, 20*time.Second, "Dial", func() { require.NoError(t, <-slow) })
}

// Many at once, and Accept is slow: below the backlog nobody is refused.
func TestManyDialsAtOnce(t *testing.T) {
	const n = 200
	l := listen(t, nil)
	errs := make(chan error, n)
	conns := make(chan net.Conn, n)
	for range n {
		go func() {
			c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 30*time.Second)
			if err == nil {
				conns <- c
			}
			errs <- err
		}()
	}
	for range n {
		accept(t, l)
		time.Sleep(time.Millisecond)
	}
	for range n {
		require.NoError(t, <-errs)
	}
	close(conns)
	for c := range conns {
		require.NoError(t, c.Close())
	}
	s := l.Stats()
	assert.EqualValues(t, n, s.Accepted)
	assert.Zero(t, s.Failed)
	assert.Zero(t, s.Rejected)
	assert.Zero(t, s.Waiting)
}

// Beyond the backlog requests are dropped, not refused, and a dialer that
// keeps trying gets in once there is room.
func TestBacklog(t *testing.T) {
	t.Parallel() // it mostly waits
	l := listen(t, &rdmanet.ListenConfig{Backlog: 4})
	const n = 12
	errs := make(chan error, n)
	for range n {
		go func() {
			c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 40*time.Second)
			if err == nil {
				c.Close()
			}
			errs <- err
		}()
	}
	require.Eventually(t, func() bool { return l.Stats().Dropped > 0 }, 10*time.Second, time.Millisecond)
	assert.LessOrEqual(t, l.Stats().Waiting, uint64(4))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for range n {
		require.NoError(t, <-errs)
	}
	require.Eventually(t, func() bool { return l.Stats().Accepted == n }, 20*time.Second, time.Millisecond, "none is lost")
	assert.Zero(t, l.Stats().Failed)
}

// A peer that dies while it waits for Accept does not make Accept fail.
func TestAcceptDeadPeer(t *testing.T) {
	l := listen(t, nil)
	for range 5 {
		c := dial(t, nil, l.Addr())
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
	good := dial(t, nil, l.Addr())
	for {
		c := accept(t, l)
		if c.RemoteAddr().String() == good.LocalAddr().String() {
			break
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}
