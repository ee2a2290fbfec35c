package rdmanet_test

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCloseWrite(t *testing.T) {
	const back = 1 << 20
	client, server := pair(t)
	require.NoError(t, writePattern(client, 100<<10, 1000))
	require.NoError(t, client.CloseWrite())

	require.NoError(t, readPattern(server, 100<<10))
	for range 3 {
		_, err := server.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, writePattern(server, back, 64<<10))
		assert.NoError(t, server.CloseWrite())
	})
	require.NoError(t, readPattern(client, back), "the other direction is open")
	_, err := client.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	wg.Wait()

	_, err = client.Write([]byte{1})
	require.ErrorIs(t, err, syscall.EPIPE)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
}

func TestCloseWriteTwice(t *testing.T) {
	client, server := pair(t)
	require.NoError(t, client.CloseWrite())
	_ = client.CloseWrite() // as on TCP, whatever it says
	_, err := server.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = server.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(client, make([]byte, 1))
	require.NoError(t, err)
}

func TestCloseReadWakesReader(t *testing.T) {
	client, _ := pair(t)
	errc := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		errc <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, client.CloseRead())
	within(t, 5*time.Second, "Read", func() { assert.Equal(t, io.EOF, <-errc) })
	_, err := client.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

func TestCloseReadLeavesWriting(t *testing.T) {
	client, server := pair(t)
	require.NoError(t, client.CloseRead())
	require.NoError(t, writePattern(client, 1<<10, 100))
	require.NoError(t, readPattern(server, 1<<10))
	_, err := server.Write(make([]byte, 100)) // the peer is not told
	require.NoError(t, err)
}

// A half-closed connection keeps its deadlines.
func TestCloseWriteKeepsDeadline(t *testing.T) {
	client, _ := pair(t)
	require.NoError(t, client.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	require.NoError(t, client.CloseWrite())
	start := time.Now()
	_, err := client.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.Greater(t, time.Since(start), 150*time.Millisecond)
}

func TestBothCloseWriteAtOnce(t *testing.T) {
	for range 50 {
		client, server := pair(t)
		var wg sync.WaitGroup
		for _, c := range []interface {
			io.Reader
			CloseWrite() error
		}{client, server} {
			wg.Go(func() {
				assert.NoError(t, c.CloseWrite())
				_, err := c.Read(make([]byte, 1))
				assert.Equal(t, io.EOF, err)
			})
		}
		within(t, 10*time.Second, "ending both directions", wg.Wait)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// A peer that closes while we still write.
func TestWriteToClosedPeer(t *testing.T) {
	client, server := pair(t)
	go func() {
		time.Sleep(50 * time.Millisecond)
		server.Close()
	}()
	var err error
	within(t, 10*time.Second, "Write", func() {
		for err == nil {
			_, err = client.Write(make([]byte, 64<<10))
		}
	})
	require.True(t, errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET), "%v", err)
}
