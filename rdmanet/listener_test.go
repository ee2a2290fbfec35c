package rdmanet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// brokenListener is a provider's listener whose end the test decides.
type brokenListener struct {
	fail   chan error
	closed atomic.Bool
}

func (l *brokenListener) Addr() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:7") }
func (l *brokenListener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	select {
	case err := <-l.fail:
		return nil, err
	case <-ctx.Done():
		return nil, net.ErrClosed
	}
}
func (l *brokenListener) Stats() verbs.ListenerStats { return verbs.ListenerStats{Dropped: 3} }
func (l *brokenListener) Close() error               { l.closed.Store(true); return nil }

func brokenParts(n int) (*cm.Listener, []*brokenListener) {
	l := new(cm.Listener)
	var bs []*brokenListener
	for range n {
		b := &brokenListener{fail: make(chan error)}
		bs = append(bs, b)
		l.Parts = append(l.Parts, cm.Part{Listener: b, Provider: "softroce"})
	}
	return l, bs
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A server goes on after files or memory ran out while a connection was set up.
func TestAcceptOutOfResources(t *testing.T) {
	parts, _ := brokenParts(1)
	l := newListener("rdma", ListenConfig{}, parts, 4, make(chan error, 1))
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENOMEM, syscall.ENFILE} {
		for range 3 { // the same trouble is told once
			l.slots <- struct{}{}
			l.done(nil, nil, &os.SyscallError{Syscall: "mmap", Err: errno})
		}
		_, err := l.Accept()
		require.ErrorIs(t, err, errno)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.True(t, op.Temporary(), "else http.Server ends")
		assert.False(t, op.Timeout())
	}
	// Whatever else a peer brings about is counted only.
	for _, err := range []error{syscall.ETIMEDOUT, ErrProtocol, &RejectError{Reason: 4}, syscall.ECONNRESET} {
		l.slots <- struct{}{}
		l.done(nil, nil, err)
	}
	require.NoError(t, l.SetDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.EqualValues(t, 13, l.Stats().Failed)
	assert.EqualValues(t, 3, l.Stats().Dropped)
	require.NoError(t, l.Close())
}

func TestAcceptOutOfResourcesHTTP(t *testing.T) {
	parts, _ := brokenParts(1)
	l := newListener("rdma", ListenConfig{}, parts, 4, make(chan error, 1))
	s := &http.Server{ErrorLog: slog.NewLogLogger(quiet().Handler(), slog.LevelError)}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	l.slots <- struct{}{}
	l.done(nil, nil, syscall.EMFILE)
	select {
	case err := <-done:
		require.NoError(t, err, "the server ended")
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
}

// One provider of several may go; with the last, Accept fails for good.
func TestListenerLosesProviders(t *testing.T) {
	parts, bs := brokenParts(2)
	var log bytes.Buffer
	l := newListener("rdma", ListenConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}, parts, 4, make(chan error, 1))
	bs[0].fail <- syscall.ENODEV
	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, l.SetDeadline(time.Time{}))

	bs[1].fail <- syscall.ENODEV
	for range 2 {
		_, err = l.Accept()
		require.ErrorIs(t, err, syscall.ENODEV)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.False(t, op.Temporary())
		var e *Error
		require.True(t, errors.As(err, &e))
		assert.Equal(t, "softroce", e.Provider)
	}
	require.NoError(t, l.Close())
	assert.True(t, bs[0].closed.Load())
	assert.True(t, bs[1].closed.Load())
	assert.Equal(t, 2, bytes.Count(log.Bytes(), []byte("lost a provider")))
}

// oddTCP is TCP's listener, whose Accept the test decides.
type oddTCP struct {
	net.Listener
	errs chan error
}

func (l *oddTCP) Accept() (net.Conn, error) {
	select {
	case err := <-l.errs:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	default:
		return l.Listener.Accept()
	}
}

// With TCP beside it a listener goes on when all providers are lost, and when TCP runs out of files.
func TestListenerOfBothGoesOn(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	odd := &oddTCP{tcp, make(chan error, 1)}
	odd.errs <- syscall.EMFILE
	parts, bs := brokenParts(1)
	l := newListenerOfBoth("rdma", ListenConfig{Logger: quiet()}, parts, odd, 4, make(chan error, 1))
	_, err = l.Accept()
	require.ErrorIs(t, err, syscall.EMFILE)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.True(t, op.Temporary(), "else http.Server ends")
	assert.Equal(t, "rdma", op.Net)

	bs[0].fail <- syscall.ENODEV
	c, err := net.Dial("tcp", tcp.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	s, err := l.Accept()
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), s)
	require.NoError(t, s.Close())
	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = l.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, l.Close())
}
