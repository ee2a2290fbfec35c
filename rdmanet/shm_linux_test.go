package rdmanet_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/go-rdma/rdma/rdmanet"
)

func shmListen(t testing.TB) net.Listener {
	l, err := (&rdmanet.ListenConfig{Device: "shm"}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

func shmDial(addr string) (net.Conn, error) {
	return (&rdmanet.Dialer{Device: "shm"}).Dial("rdma", addr)
}

// TestShmConn is nettest over shared memory.
func TestShmConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) { return pipe(shmDial, shmListen(t)) })
}

// TestShmNamed: shared memory is used if it is named, and not otherwise.
func TestShmNamed(t *testing.T) {
	l := shmListen(t)
	defer l.Close()
	_, err := rdmaDial(l.Addr().String())
	require.Error(t, err)
	c, s, stop, err := pipe(shmDial, shmListen(t))
	require.NoError(t, err)
	defer stop()
	assert.Equal(t, "shm", c.(*rdmanet.Conn).Stats().Provider)
	assert.Equal(t, "shm", s.(*rdmanet.Conn).Stats().Provider)
	assert.Equal(t, c.LocalAddr().String(), s.RemoteAddr().String())
	other, err := rdmaListen()
	require.NoError(t, err)
	defer other.Close()
	_, err = shmDial(other.Addr().String())
	require.Error(t, err, "nobody listens over shared memory")
}

// TestShmHTTP is net/http over shared memory.
func TestShmHTTP(t *testing.T) {
	l := shmListen(t)
	body := strings.Repeat("shared memory ", 100_000)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != int64(len(body)) {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, body)
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	tr := &http.Transport{DialContext: (&rdmanet.Dialer{Device: "shm"}).DialContext}
	client := &http.Client{Transport: tr}
	for range 20 {
		resp, err := client.Post("http://"+l.Addr().String()+"/", "text/plain", strings.NewReader(body))
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Len(t, got, len(body))
		if body != string(got) {
			require.Fail(t, "another body")
		}
	}
	tr.CloseIdleConnections()
	require.NoError(t, srv.Close())
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		require.NoError(t, err)
	}
}
