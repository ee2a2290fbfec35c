package rdmanet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func TestCloseDeliversWhatWasWritten(t *testing.T) {
	for _, size := range []int{1, 1000, 64 << 10, 300 << 10} {
		client, server := pair(t)
		require.NoError(t, writePattern(client, size, size))
		require.NoError(t, client.Close())
		time.Sleep(10 * time.Millisecond) // the reader comes late
		require.NoError(t, readPattern(server, size))
		n, err := server.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Equal(t, io.EOF, err, "bare, as package net gives it")
	}
}

func TestCloseTwice(t *testing.T) {
	client, _ := pair(t)
	require.NoError(t, client.Close())
	err := client.Close()
	require.ErrorIs(t, err, net.ErrClosed)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "close", op.Op)
	assert.Equal(t, net.ErrClosed, op.Err, "no *Error in between")
}

func TestAfterClose(t *testing.T) {
	client, _ := pair(t)
	require.NoError(t, client.Close())
	_, rerr := client.Read(make([]byte, 1))
	_, werr := client.Write(make([]byte, 1))
	_, rferr := client.ReadFrom(&io.LimitedReader{R: zeros{}, N: 1})
	_, wterr := client.WriteTo(io.Discard)
	_, wberr := client.WriteBuffers(&net.Buffers{{1}})
	for op, errs := range map[string][]error{
		"read":  {rerr, wterr},
		"write": {werr, rferr, wberr},
		"close": {client.CloseRead(), client.CloseWrite()},
		"set": {
			client.SetDeadline(time.Now()), client.SetReadDeadline(time.Now()), client.SetWriteDeadline(time.Now()),
			client.SetKeepAlive(true), client.SetKeepAlivePeriod(time.Second), client.SetKeepAliveConfig(net.KeepAliveConfig{}),
			client.SetLinger(1), client.SetReadBuffer(1 << 20), client.SetWriteBuffer(1 << 20), client.SetBusyPoll(0),
		},
	} {
		for i, err := range errs {
			require.ErrorIs(t, err, net.ErrClosed, "%s %d", op, i)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			assert.Equal(t, op, oe.Op)
			assert.Equal(t, client.LocalAddr(), oe.Source)
			assert.Equal(t, client.RemoteAddr(), oe.Addr)
		}
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestCloseInterrupts(t *testing.T) {
	for name, block := range map[string]func(c *rdmanet.Conn) error{
		"Read":     func(c *rdmanet.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"Write":    func(c *rdmanet.Conn) error { _, err := c.Write(make([]byte, 16<<20)); return err },
		"ReadFrom": func(c *rdmanet.Conn) error { _, err := c.ReadFrom(zeros{}); return err },
		"WriteTo":  func(c *rdmanet.Conn) error { _, err := c.WriteTo(io.Discard); return err },
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := pair(t)
			require.NoError(t, client.SetLinger(0))
			errc := make(chan error, 1)
			go func() { errc <- block(client) }()
			time.Sleep(20 * time.Millisecond)
			within(t, 5*time.Second, "Close", func() { client.Close() })
			within(t, 5*time.Second, name, func() { assert.ErrorIs(t, <-errc, net.ErrClosed) })
		})
	}
}

func TestReadsAfterPeerClosed(t *testing.T) {
	client, server := pair(t)
	require.NoError(t, client.Close())
	for range 20 {
		n, err := server.Read(make([]byte, 8))
		assert.Zero(t, n)
		require.Equal(t, io.EOF, err)
	}
	// The peer's own acknowledgement may be on its way, but soon every write fails.
	var err error
	within(t, 5*time.Second, "Write", func() {
		for err == nil {
			_, err = server.Write(make([]byte, 1))
		}
	})
	require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
	for range 20 {
		_, err = server.Write(make([]byte, 1))
		require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
	}
}

func TestPeerClosesWhileReading(t *testing.T) {
	client, server := pair(t)
	errc := make(chan error, 1)
	go func() {
		_, err := server.Read(make([]byte, 1))
		errc <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, client.Close())
	within(t, 5*time.Second, "Read", func() { assert.Equal(t, io.EOF, <-errc) })
}

// A linger of 0 throws away what was written and shows the peer a reset, not an end.
func TestLingerZero(t *testing.T) {
	client, server := pair(t)
	more := make([]byte, 32<<20) // than both rings hold
	require.NoError(t, client.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
	_, err := client.Write(more)
	require.Error(t, err)
	require.NoError(t, client.SetLinger(0))
	within(t, time.Second, "Close", func() { require.NoError(t, client.Close()) })
	_, err = io.Copy(io.Discard, server)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = server.Write([]byte{1})
	require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
}

// A peer that does not read cannot hold Close up for longer than it lingers.
func TestLinger(t *testing.T) {
	t.Parallel()                 // it mostly waits
	more := make([]byte, 32<<20) // than both rings hold; to make it may take longer than a deadline below
	for _, c := range []struct {
		sec      int
		min, max time.Duration
	}{{-1, 1900 * time.Millisecond, 3 * time.Second}, {1, 950 * time.Millisecond, 1900 * time.Millisecond}} {
		client, _ := pair(t)
		for n := 1; n > 0; {
			var err error
			require.NoError(t, client.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
			n, err = client.Write(more)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		require.NoError(t, client.SetLinger(c.sec))
		start := time.Now()
		_ = client.Close()
		took := time.Since(start)
		assert.GreaterOrEqual(t, took, c.min, "%+v", client.Stats())
		assert.Less(t, took, c.max)
	}
}

func TestDrain(t *testing.T) {
	client, server := pair(t)
	require.NoError(t, writePattern(client, 100<<10, 100<<10))
	require.NoError(t, client.Close())
	require.NoError(t, readPattern(server, 100<<10))
	require.NoError(t, server.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, rdmanet.Drain(ctx))

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := rdmanet.Drain(canceled); err != nil { // there may be nothing to wait for
		assert.ErrorIs(t, err, context.Canceled)
	}
}

// Both ends close at once: neither hangs, neither sees a failure.
func TestBothCloseAtOnce(t *testing.T) {
	rounds := 300
	switch {
	case long:
		rounds = 10_000
	case testing.Short():
		rounds = 50
	}
	l := listen(t, nil)
	for i := range rounds {
		client, err := rdmanet.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		server, err := l.Accept()
		require.NoError(t, err)
		if i%2 == 0 {
			_, err = client.Write([]byte("something on its way"))
			require.NoError(t, err)
		}
		var wg sync.WaitGroup
		for _, c := range []net.Conn{client, server} {
			wg.Go(func() { assert.NoError(t, c.Close()) })
		}
		within(t, 10*time.Second, "closing both ends", wg.Wait)
	}
}

// Eight goroutines dial and close against one listener that closes as well.
func TestDialCloseStress(t *testing.T) {
	const workers = 8
	rounds := 60
	switch {
	case long:
		rounds = 50_000 / workers
	case testing.Short():
		rounds = 10
	}
	l := listen(t, nil)
	var served atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err == nil {
					served.Add(1)
				}
			}()
		}
	}()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 20*time.Second)
				if !assert.NoError(t, err) {
					return
				}
				if (i+w)%3 == 0 {
					msg := []byte{byte(i), byte(w)}
					_, err = c.Write(msg)
					assert.NoError(t, err)
					got := make([]byte, 2)
					_, err = io.ReadFull(c, got)
					assert.NoError(t, err)
					assert.Equal(t, msg, got)
				}
				assert.NoError(t, c.Close())
			}
		})
	}
	within(t, 10*time.Minute, "dialing and closing", wg.Wait)
	// Those that were dialed and closed last may still wait for Accept.
	assert.Eventually(t, func() bool { return l.Stats().Accepted == uint64(workers*rounds) }, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	<-done
	assert.EqualValues(t, workers*rounds, l.Stats().Accepted)
}
