package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/go-rdma/rdma/examples/grpc-over-rdma/calls"
	"github.com/go-rdma/rdma/rdmanet"
)

// transportGivesUp is when rdmanet would have noticed by itself that a peer is dead.
const transportGivesUp = 17 * time.Second

func dialed(t *testing.T, addr string) *client {
	t.Helper()
	c, err := dial(addr, "")
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// waiting makes a call of Wait and returns once the server is at it. What it ends with comes over the channel.
func waiting(t *testing.T, c *client) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(ctx, &calls.Span{Milliseconds: 3_600_000})
		ended <- err
	}()
	watch, err := c.Watch(ctx, &calls.Nothing{})
	require.NoError(t, err)
	for {
		w, err := watch.Recv()
		require.NoError(t, err)
		if w.GetWaiting() > 0 {
			return ended
		}
	}
}

// TestServerRestarts: a server that dies ends its calls at once, and the client finds the next one at the same address.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	addr, server := startServer(t, "127.0.0.1:0", "")
	c := dialed(t, addr)
	ended := waiting(t, c)
	require.NoError(t, server.Process.Kill())
	killed := time.Now()
	require.Equal(t, codes.Unavailable, status.Code(<-ended))
	require.Less(t, time.Since(killed), transportGivesUp)
	server.Wait()

	startServer(t, addr, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := c.Sum(ctx, &calls.Chunk{Data: []byte("again")}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.EqualValues(t, 5, d.GetBytes())
}

// TestServerStops: what a client is at ends after a while, though nothing else would end it.
func TestServerStops(t *testing.T) {
	t.Parallel()
	addr, server := startServer(t, "127.0.0.1:0", "")
	ended := waiting(t, dialed(t, addr))
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.Equal(t, codes.Unavailable, status.Code(<-ended))
	require.NoError(t, server.Wait())
}

// TestCloseWhileServerIsSilent: Close does not wait for a reader that waits for a server that says nothing any more.
func TestCloseWhileServerIsSilent(t *testing.T) {
	addr, server := startServer(t, "127.0.0.1:0", "")
	c := dialed(t, addr)
	ended := waiting(t, c)
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	start := time.Now()
	require.NoError(t, c.Close())
	require.Equal(t, codes.Canceled, status.Code(<-ended))
	require.Less(t, time.Since(start), transportGivesUp/2)
}

// TestClientFallsSilent: the server's keep-alive ends the calls of a client that does not answer, long before the transport
// would; and the client notices too when it is back.
func TestClientFallsSilent(t *testing.T) {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	srv := newServer(insecure.NewCredentials())
	go srv.Serve(l)
	t.Cleanup(srv.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	peer := program(t, "waiting client", l.Addr().String())
	peer.Stderr = os.Stderr
	require.NoError(t, peer.Start())
	t.Cleanup(func() {
		peer.Process.Kill()
		peer.Wait()
	})

	c := dialed(t, l.Addr().String())
	watch, err := c.Watch(ctx, &calls.Nothing{})
	require.NoError(t, err)
	until := func(f func(*calls.Waits) bool) {
		for {
			w, err := watch.Recv()
			require.NoError(t, err)
			if f(w) {
				return
			}
		}
	}
	until(func(w *calls.Waits) bool { return w.GetWaiting() == 1 })
	if long {
		time.Sleep(10 * time.Second) // it answers, so that nothing ends
	}
	w, err := c.Wait(ctx, &calls.Span{})
	require.NoError(t, err)
	require.EqualValues(t, 1, w.GetWaiting())
	require.Zero(t, w.GetCanceled())

	require.NoError(t, peer.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	until(func(w *calls.Waits) bool { return w.GetCanceled() == 1 })
	took := time.Since(stopped)
	require.Greater(t, took, 2*time.Second, "it has that long to answer")
	require.Less(t, took, transportGivesUp)
	t.Logf("noticed after %s", took)

	require.NoError(t, peer.Process.Signal(syscall.SIGCONT))
	require.NoError(t, peer.Wait())
}

// waitingClient calls Wait, and is content with what a client gets whose server has given it up.
func waitingClient(addr string) {
	c, err := dial(addr, "")
	if err == nil {
		_, err = c.Wait(context.Background(), &calls.Span{Milliseconds: 3_600_000})
	}
	if status.Code(err) != codes.Unavailable {
		fmt.Fprintln(os.Stderr, "waiting client:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestServerFallsSilent: the client's keep-alive, which grpc-go does not let be quicker than 10 s.
func TestServerFallsSilent(t *testing.T) {
	if !long {
		t.Skip("takes 12 s: RDMA_LONG=1 runs it")
	}
	addr, server := startServer(t, "127.0.0.1:0", "")
	ended := waiting(t, dialed(t, addr))
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	err := <-ended
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "keepalive ping failed")
	require.Less(t, time.Since(stopped), transportGivesUp)
}

// TestPeerAddress: what the server gets to see of its clients is what logs and limits expect.
func TestPeerAddress(t *testing.T) {
	t.Parallel()
	addr, _ := startServer(t, "[::1]:0", "")
	c := dialed(t, addr)
	_, err := c.unary(t.Context())
	require.NoError(t, err)
	host, _, err := net.SplitHostPort(c.carrier.Load().LocalAddr().String())
	require.NoError(t, err)
	require.Equal(t, "::1", host)
}
