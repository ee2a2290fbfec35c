package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseEndpoint(t *testing.T) {
	for s, want := range map[string]Endpoint{
		"tcp://127.0.0.1:80":       {"tcp", "127.0.0.1:80"},
		"rdma://:6379":             {"rdma", ":6379"},
		"rdma6:[fe80::1%eth0]:1":   {"rdma6", "[fe80::1%eth0]:1"},
		"unix:///run/x.sock":       {"unix", "/run/x.sock"},
		"unix://@abstract":         {"unix", "@abstract"},
		"tcp4://server.example:80": {"tcp4", "server.example:80"},
	} {
		e, err := ParseEndpoint(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, e)
		again, err := ParseEndpoint(e.String())
		require.NoError(t, err)
		assert.Equal(t, e, again)
	}
	for s, want := range map[string]string{
		"":             "write network://address",
		":80":          "write network://address",
		"udp://:80":    "write network://address",
		"server:80":    "write network://address",
		"tcp://":       "an address is missing",
		"unix:":        "an address is missing",
		"rdma://a":     "missing port",
		"rdma://::1:1": "too many colons",
	} {
		_, err := ParseEndpoint(s)
		assert.ErrorContains(t, err, want, s)
	}
}

// script is a listener whose Accept does one thing after the other.
type script struct {
	steps chan any
	done  chan struct{}
}

func (s *script) Accept() (net.Conn, error) {
	select {
	case x := <-s.steps:
		if err, ok := x.(error); ok {
			return nil, err
		}
		return x.(net.Conn), nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *script) Close() error {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	return nil
}

func (s *script) Addr() net.Addr { return nil }

// What is short may come back: accepting goes on, after pauses that grow. What is no shortage ends it.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &script{steps: make(chan any, 20), done: make(chan struct{})}
		for range 12 {
			l.steps <- syscall.EMFILE
		}
		ours, theirs := net.Pipe()
		l.steps <- ours
		failures := 0
		r := &Relay{
			Dial:   func(context.Context) (net.Conn, error) { return nil, errors.New("nobody") },
			Failed: func(uint64, error) { failures++ },
		}
		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- r.Serve(t.Context(), l) }()
		_, err := theirs.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
		synctest.Wait()
		assert.Equal(t, 13, failures)
		assert.Equal(t, 5*time.Millisecond*(1+2+4+8+16+32+64+128)+4*time.Second, time.Since(start))
		l.steps <- syscall.EINVAL
		assert.ErrorIs(t, <-done, syscall.EINVAL)
	})
}

// No more connections than there may be, and the next one when one has ended.
func TestMaxConns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &script{steps: make(chan any, 20), done: make(chan struct{})}
		var opened atomic.Int32
		r := &Relay{
			MaxConns: 2,
			Dial: func(context.Context) (net.Conn, error) {
				a, b := net.Pipe()
				go func() { _, _ = io.Copy(b, b) }()
				return a, nil
			},
			Opened: func(uint64, net.Conn, net.Conn) { opened.Add(1) },
		}
		var clients []net.Conn
		for range 3 {
			a, b := net.Pipe()
			l.steps <- a
			clients = append(clients, b)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Serve(ctx, l) }()
		synctest.Wait()
		assert.EqualValues(t, 2, opened.Load())
		clients[0].Close()
		clients[1].Close()
		synctest.Wait()
		// A pipe has no half-close, so these two end only with their other ends.
		cancel()
		assert.NoError(t, <-done)
		clients[2].Close()
	})
}

// Connections that do not end in time are ended.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &script{steps: make(chan any, 20), done: make(chan struct{})}
		a, b := net.Pipe()
		l.steps <- a
		left := 0
		r := &Relay{
			Grace: 7 * time.Second,
			Dial: func(context.Context) (net.Conn, error) {
				a, b := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, b) }()
				return a, nil
			},
			Waiting: func(n int) { left = n },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Serve(ctx, l) }()
		_, err := b.Write([]byte("x"))
		require.NoError(t, err)
		start := time.Now()
		cancel()
		assert.NoError(t, <-done)
		assert.Equal(t, 7*time.Second, time.Since(start))
		assert.Equal(t, 1, left)
		_, err = b.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
	})
}
