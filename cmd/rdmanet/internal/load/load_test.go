package load

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeader(t *testing.T) {
	h := header(echo, 64)
	k, size, err := parseHeader(h)
	require.NoError(t, err)
	assert.Equal(t, echo, k)
	assert.Equal(t, 64, size)
	for want, change := range map[string]func(b []byte) []byte{
		"no rdmanet bench":           func(b []byte) []byte { b[0]++; return b },
		"this is no":                 func(b []byte) []byte { return b[1:] },
		"of version 2":               func(b []byte) []byte { b[4]++; return b },
		"wants something unknown":    func(b []byte) []byte { b[5] = 9; return b },
		"messages of 0 bytes":        func(b []byte) []byte { b[11] = 0; return b },
		"messages of 16777280 bytes": func(b []byte) []byte { b[8] = 1; return b },
	} {
		_, _, err := parseHeader(change(header(echo, 64)))
		assert.ErrorContains(t, err, want)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add(header(echo, 1))
	f.Add(header(sink, MaxSize))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, size, err := parseHeader(b)
		if err == nil {
			require.True(t, k == echo || k == sink)
			require.True(t, size >= 1 && size <= MaxSize)
		}
	})
}

// tcp is a server on TCP, and who dials it.
func tcp(t *testing.T) (Dialer, chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	failed := make(chan error, 10)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- Serve(ctx, l, func(_ net.Addr, err error) { failed <- err }) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}, failed
}

func TestLoad(t *testing.T) {
	dial, failed := tcp(t)
	took, err := RoundTrips(t.Context(), dial, 3, 20*time.Millisecond, nil, func(int) {})
	require.NoError(t, err)
	require.NotEmpty(t, took)
	n := len(took)
	took, err = RoundTrips(t.Context(), dial, MaxSize, 20*time.Millisecond, took, func(int) {})
	require.NoError(t, err)
	assert.Greater(t, len(took), n, "it adds to what was there")
	total, d, err := Stream(t.Context(), dial, 1000, 20*time.Millisecond, func(uint64) {})
	require.NoError(t, err)
	assert.NotZero(t, total)
	assert.Zero(t, total%1000)
	assert.GreaterOrEqual(t, d, 20*time.Millisecond)

	c, err := dial(t.Context())
	require.NoError(t, err)
	_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	assert.ErrorContains(t, <-failed, "this is no rdmanet bench")
	_, _ = io.Copy(io.Discard, c)
	c.Close()

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	_, err = RoundTrips(ctx, dial, 8, time.Hour, nil, func(int) {})
	assert.ErrorIs(t, err, cause)
	_, _, err = Stream(ctx, dial, 8, time.Hour, func(uint64) {})
	assert.ErrorIs(t, err, context.Canceled)
}
