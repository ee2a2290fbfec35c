//go:build guest

package guest

import (
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// streamPair connects two streams over the device.
func streamPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	lc := rdmanet.ListenConfig{Device: "rdmacore"}
	l, err := lc.Listen(t.Context(), "rdma", netip.AddrPortFrom(netip.MustParseAddr(*addr), 0).String())
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	a, err = (&rdmanet.Dialer{Device: "rdmacore"}).Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	b = <-accepted
	require.NotNil(t, b)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// TestBulk moves much data one way, in writes of several sizes, and tells how fast.
func TestBulk(t *testing.T) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		a, b := streamPair(t)
		const total = 64 << 20
		start := time.Now()
		go func() {
			buf := make([]byte, size)
			for sent := 0; sent < total; sent += size {
				if _, err := a.Write(buf); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		buf := make([]byte, size)
		_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(b, total), buf)
		require.NoError(t, err)
		took := time.Since(start)
		st := a.(*rdmanet.Conn).Stats()
		t.Logf("%d KiB: %.1f MB/s in %v; %+v", size>>10, total/1e6/took.Seconds(), took, st)
	}
}

// TestLatency plays ping-pong with 64 bytes.
func TestLatency(t *testing.T) {
	a, b := streamPair(t)
	const rounds = 3000
	done := make(chan error, 1)
	go func() {
		buf := make([]byte, 64)
		for range rounds {
			if _, err := io.ReadFull(b, buf); err != nil {
				done <- err
				return
			}
			if _, err := b.Write(buf); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	buf := make([]byte, 64)
	start := time.Now()
	for range rounds {
		_, err := a.Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(a, buf)
		require.NoError(t, err)
	}
	require.NoError(t, <-done)
	t.Logf("half a round trip of 64 bytes: %v on %d processors", time.Since(start)/rounds/2, runtime.GOMAXPROCS(0))
}
