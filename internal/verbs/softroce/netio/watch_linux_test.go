package netio

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// countingHandler counts packets.
type countingHandler struct{ n atomic.Int64 }

func (h *countingHandler) HandlePackets(ps []Packet) { h.n.Add(int64(len(ps))) }

// TestQuiet: the goroutine of a quiet socket sleeps while packets come, which Poll finds, and is told of those that are
// there when the quiet ends.
func TestQuiet(t *testing.T) {
	h := &countingHandler{}
	port := freePort(t)
	rx := listen(t, Config{Port: port, Handler: h, SourcePorts: 1})
	tx := listen(t, Config{Port: freePort(t), RemotePort: port, Handler: newSink(), SourcePorts: 1})
	local := addr("127.0.0.1")
	path := &Path{Local: local, Remote: local}
	send := func() {
		t.Helper()
		b := NewTxBatch()
		hdr := b.Add(path, 12)
		hdr[0] = 4
		b.Payload(make([]byte, 64))
		require.NoError(t, tx.Send(b))
	}
	arrived := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool { return h.n.Load() == n }, 5*time.Second, time.Millisecond)
	}
	rx.Attend(ByNobody)
	send()
	arrived(1) // no socket had traffic yet, so none is quiet
	for n := int64(1); n < 20; n += 3 {
		rx.Attend(ByNobody)
		rx.Attend(ByNobody)
		send()
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, n, h.n.Load(), "taken by the goroutine")
		require.Equal(t, 1, rx.Poll())
		for range 2 * coldAfter {
			require.Zero(t, rx.Poll())
		}
		send()
		time.Sleep(time.Millisecond)
		require.Equal(t, n+1, h.n.Load())
		rx.Attend(ByOwn)
		arrived(n + 2)
		send()
		arrived(n + 3)
	}

	// Where the traffic goes by another socket, that one becomes quiet.
	rx.Attend(ByNobody)
	require.Same(t, rx.hot.Load(), rx.away)
	old := rx.away
	other := new(rxSock)
	other.watch = watch{fd: -1, ep: -1, closed: true}
	rx.hot.Store(other)
	rx.Attend(ByNobody)
	require.Same(t, other, rx.away)
	require.False(t, old.watch.quiet())
	rx.Attend(ByOwn)
	require.Nil(t, rx.away)

	// A socket that is closed while it is quiet.
	rx.hot.Store(old)
	rx.Attend(ByNobody)
	require.NoError(t, rx.Close())
	rx.Attend(ByOwn)
}

// TestQuietOfABusySocket: whatever is switched when, no packet stays in the socket.
func TestQuietOfABusySocket(t *testing.T) {
	h := &countingHandler{}
	port := freePort(t)
	rx := listen(t, Config{Port: port, Handler: h, SourcePorts: 1})
	tx := listen(t, Config{Port: freePort(t), RemotePort: port, Handler: newSink(), SourcePorts: 1})
	local := addr("127.0.0.1")
	path := &Path{Local: local, Remote: local}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			rx.Attend(ByNobody)
			if i%3 == 0 {
				rx.Poll()
			}
			rx.Attend(ByOwn)
		}
	}()
	const packets = 500
	b := NewTxBatch()
	for i := range packets {
		hdr := b.Add(path, 12)
		hdr[0] = 4
		require.NoError(t, tx.Send(b))
		if i%50 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	<-done
	require.Eventually(t, func() bool { return h.n.Load() == packets }, 5*time.Second, time.Millisecond)
	require.Zero(t, tx.Stats().Unsent)
}

// TestTellsOnce: Linux says of a nested epoll instance that it is readable at each arrival. Under gVisor see rdmanet.
func TestTellsOnce(t *testing.T) {
	once, err := nestedTellsOnce()
	require.NoError(t, err)
	require.False(t, once)
}

// TestSettled: where it does not, nothing is lost, and nobody waits for what is there.
func TestSettled(t *testing.T) {
	was := tellsOnce
	tellsOnce = func() bool { return true }
	t.Cleanup(func() { tellsOnce = was }) // after those of the tests below, which close what reads it
	for _, f := range []func(*testing.T){TestQuiet, TestQuietOfABusySocket, TestSit, TestSitFollowsTraffic} {
		f(t)
	}
}
