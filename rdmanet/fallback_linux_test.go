package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// logLines is a log that tests read.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.FieldsFunc(l.b.String(), func(r rune) bool { return r == '\n' })
}

// counted sums up a counter of all devices.
func counted(f func(*rdmanet.DeviceStats) uint64) (n uint64) {
	for _, d := range rdmanet.AllStats() {
		n += f(&d)
	}
	return n
}

func fallbacks() uint64 {
	return counted(func(d *rdmanet.DeviceStats) uint64 { return d.Fallbacks })
}

func rdmaDials() uint64 {
	return counted(func(d *rdmanet.DeviceStats) uint64 { return d.Dials })
}

// falling returns a Dialer that falls back to TCP, with nothing remembered, and its log.
func falling(t *testing.T) (*rdmanet.Dialer, *logLines) {
	rdmanet.ForgetDetours()
	t.Cleanup(rdmanet.ForgetDetours)
	log := new(logLines)
	// RDMA is never slow here, however slow the machine is.
	return &rdmanet.Dialer{Fallback: new(net.Dialer), FallbackAfter: time.Minute, Logger: log.logger()}, log
}

// stuckTCP makes d's TCP stop in the middle of connecting, until it is given up. begun and over are closed when it does.
func stuckTCP(d *rdmanet.Dialer) (begun, over chan struct{}) {
	begun, over = make(chan struct{}), make(chan struct{})
	d.Fallback = &net.Dialer{ControlContext: func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		close(begun)
		<-ctx.Done()
		close(over)
		return ctx.Err()
	}}
	return begun, over
}

// echoing takes connections of l, whose bytes come back, until the test ends.
func echoing(t *testing.T, l net.Listener) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				io.Copy(struct{ io.Writer }{c}, c) // else package net keeps pipes, for splice
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
}

// tcpEcho is a server that knows nothing of RDMA.
func tcpEcho(t *testing.T, address string) net.Listener {
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	echoing(t, l)
	return l
}

// works tells whether the connection carries bytes, and closes it.
func works(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	b := make([]byte, 5)
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(b))
}

// overTCP and overRDMA dial, and see what the connection is and that it works.
func overTCP(t *testing.T, d *rdmanet.Dialer, address string) {
	t.Helper()
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), c)
	works(t, c)
}

func overRDMA(t *testing.T, d *rdmanet.Dialer, address string) {
	t.Helper()
	c, err := d.Dial("rdma", address)
	require.NoError(t, err)
	require.IsType(t, (*rdmanet.Conn)(nil), c)
	works(t, c)
}

// TCP serves when it is asked for. The cause is logged once, each connection counted, and
// for a while nobody waits for RDMA in vain.
func TestFallback(t *testing.T) {
	addr := tcpEcho(t, "127.0.0.1:0").Addr().String()
	d, log := falling(t)
	_, err := (&rdmanet.Dialer{}).Dial("tcp", addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "nobody asked for it")

	n, dials := fallbacks(), rdmaDials()
	overTCP(t, d, addr)
	assert.Equal(t, n+1, fallbacks())
	assert.Equal(t, dials+1, rdmaDials())
	require.Len(t, log.all(), 1)
	line := log.all()[0]
	t.Log(line)
	for _, s := range []string{"level=WARN", "TCP instead of RDMA", "addr=" + addr, "nobody listens"} {
		assert.Contains(t, line, s)
	}

	overTCP(t, d, addr)
	assert.Equal(t, n+2, fallbacks())
	assert.Equal(t, dials+1, rdmaDials(), "RDMA is left alone")
	rdmanet.EndDetours()
	overTCP(t, d, addr)
	assert.Equal(t, n+3, fallbacks())
	assert.Equal(t, dials+2, rdmaDials(), "and tried again later")
	assert.Len(t, log.all(), 1)

	for _, s := range rdmanet.AllStats() {
		if s.Fallbacks > 0 && s.Provider == "softroce" {
			return
		}
	}
	assert.Fail(t, "not counted on the device that failed")
}

// The network of RDMA is TCP's, too.
func TestFallbackNetworks(t *testing.T) {
	_, p, err := net.SplitHostPort(tcpEcho(t, ":0").Addr().String())
	require.NoError(t, err)
	d, _ := falling(t)
	for _, c := range []struct{ network, address, remote string }{
		{"rdma", "127.0.0.1:" + p, "127.0.0.1:" + p},
		{"rdma6", "[::1]:" + p, "[::1]:" + p},
		{"tcp4", ":" + p, "127.0.0.1:" + p},
		{"rdma6", ":" + p, "[::1]:" + p},
	} {
		conn, err := d.Dial(c.network, c.address)
		require.NoError(t, err, "%v", c)
		assert.Equal(t, c.remote, conn.RemoteAddr().String())
		works(t, conn)
	}
	d.Resolver = names(t, "127.0.0.1") // nobody else knows that name
	overTCP(t, d, "host.test:"+p)
}

// RDMA that takes too long is not waited for, and given up.
func TestFallbackFromSlow(t *testing.T) {
	addr := silent(t)
	tcpEcho(t, addr)
	d, log := falling(t)
	d.FallbackAfter = 50 * time.Millisecond
	start := time.Now()
	overTCP(t, d, addr)
	assert.GreaterOrEqual(t, time.Since(start), d.FallbackAfter)
	require.Len(t, log.all(), 1)
	assert.Contains(t, log.all()[0], "not connected after 50ms")
	dials := rdmaDials()
	overTCP(t, d, addr)
	assert.LessOrEqual(t, rdmaDials(), dials+1, "that of the first dial, given up")
	assert.Len(t, log.all(), 1)
}

// Where there is a deadline, TCP gets half of the time.
func TestFallbackHalfOfTheTime(t *testing.T) {
	addr := silent(t)
	tcpEcho(t, addr)
	for _, after := range []time.Duration{-1, time.Hour} {
		d, log := falling(t)
		d.FallbackAfter, d.Timeout = after, 2*time.Second
		start := time.Now()
		overTCP(t, d, addr)
		assert.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
		assert.Len(t, log.all(), 1)
	}
}

// TCP that is on its way ends when RDMA is first.
func TestFallbackGivenUp(t *testing.T) {
	d, log := falling(t)
	begun, over := stuckTCP(d)
	d.FallbackAfter = time.Nanosecond
	l := listen(t, &rdmanet.ListenConfig{Admit: func(*rdmanet.Request) error {
		<-begun
		return nil
	}})
	echoing(t, l)
	n := fallbacks()
	overRDMA(t, d, l.Addr().String())
	within(t, 10*time.Second, "giving TCP up", func() { <-over })
	assert.Equal(t, n, fallbacks())
	assert.Empty(t, log.all())
}

// The context ends both.
func TestFallbackContextEnds(t *testing.T) {
	addr := silent(t)
	for _, after := range []time.Duration{time.Nanosecond, time.Minute} { // TCP is on its way, or not yet
		d, log := falling(t)
		d.FallbackAfter = after
		begun, over := stuckTCP(d)
		ctx, cancel := context.WithCancel(t.Context())
		if after == time.Minute {
			time.AfterFunc(50*time.Millisecond, cancel)
		} else {
			go func() {
				<-begun
				cancel()
			}()
		}
		n := fallbacks()
		start := time.Now()
		c, err := d.DialContext(ctx, "rdma", addr)
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, noConn(c))
		assert.Less(t, time.Since(start), 5*time.Second)
		if after != time.Minute {
			within(t, 10*time.Second, "giving TCP up", func() { <-over })
		}
		assert.Equal(t, n, fallbacks())
		assert.Empty(t, log.all())
	}
	d, _ := falling(t)
	stuckTCP(d)
	d.Timeout = 100 * time.Millisecond
	_, e := dialError(t, d, "rdma", addr)
	require.ErrorIs(t, e, context.DeadlineExceeded)
	assert.True(t, e.Timeout())
}

// Where neither works, the error tells of both, and nothing is remembered.
func TestFallbackNeither(t *testing.T) {
	addr := unusedPort(t)
	d, log := falling(t)
	n := fallbacks()
	op, e := dialError(t, d, "rdma", addr)
	t.Log(op)
	require.ErrorIs(t, op, syscall.ECONNREFUSED)
	assert.Equal(t, addr, op.Addr.String())
	assert.Contains(t, op.Error(), "(by TCP: dial tcp "+addr+": connect: connection refused)")
	assert.True(t, errors.As(op, new(*rdmanet.RejectError)))
	assert.False(t, op.Timeout())
	assert.Equal(t, rdmanet.PhaseConnect, e.Phase)
	assert.NotEmpty(t, e.Hint)
	assert.Equal(t, n, fallbacks())
	assert.Empty(t, log.all())

	l, err := rdmanet.Listen("rdma", addr)
	require.NoError(t, err)
	echoing(t, l)
	overRDMA(t, d, addr)

	// No device at all, and TCP's silence.
	d, _ = falling(t)
	_, over := stuckTCP(d)
	d.Device, d.Timeout = "mlx5_77", 500*time.Millisecond
	_, e = dialError(t, d, "rdma", addr)
	require.ErrorIs(t, e, rdmanet.ErrNoDevice)
	assert.True(t, e.Timeout(), "that is what ended it: %v", e)
	<-over
}

// What TCP served is dialed by RDMA when TCP ends.
func TestFallbackFromTCP(t *testing.T) {
	addr := tcpEcho(t, "127.0.0.1:0")
	d, log := falling(t)
	overTCP(t, d, addr.Addr().String())
	addr.Close()
	l, err := rdmanet.Listen("rdma", addr.Addr().String())
	require.NoError(t, err)
	echoing(t, l)
	overRDMA(t, d, addr.Addr().String())
	dials := rdmaDials()
	overRDMA(t, d, addr.Addr().String())
	assert.Equal(t, dials+1, rdmaDials())
	assert.Len(t, log.all(), 1)
}

// A caller's mistake is not hidden by TCP.
func TestFallbackMistakes(t *testing.T) {
	addr := tcpEcho(t, "127.0.0.1:0").Addr().String()
	d, log := falling(t)
	d.Device = "softroce,,"
	_, e := dialError(t, d, "rdma", addr)
	require.ErrorIs(t, e, syscall.EINVAL)
	assert.Contains(t, e.Error(), "device list")
	d.Device = ""
	dialError(t, d, "sctp", addr)
	dialError(t, d, "rdma", "127.0.0.1")
	d.LocalAddr = &net.UnixAddr{Name: "x", Net: "unix"}
	dialError(t, d, "rdma", addr)
	assert.Empty(t, log.all())
}
