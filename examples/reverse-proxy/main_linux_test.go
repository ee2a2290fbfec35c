package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func TestExample(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	var out bytes.Buffer
	require.NoError(t, newExample().Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), "client: 200 OK: PUT /some/path for 127.0.0.1\n")
	assert.Contains(t, out.String(), "client: echo: here\n")
	assert.Contains(t, out.String(), "client: echo: and there\n")
	assert.Contains(t, out.String(), "client: both ends have ended\n")
	assert.Contains(t, out.String(), "server: an upgraded connection, on RDMA\n")
}

// newBackEnd serves a handler on RDMA.
func newBackEnd(t *testing.T, h http.HandlerFunc) (addr string, stop func()) {
	t.Helper()
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(l) })
	stop = func() {
		srv.Close()
		wg.Wait()
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func newFrontEnd(t *testing.T, addr string) *httptest.Server {
	t.Helper()
	proxy := newProxy(addr)
	front := httptest.NewServer(proxy)
	t.Cleanup(func() {
		front.Close()
		proxy.Transport.(*http.Transport).CloseIdleConnections()
	})
	return front
}

// Large bodies both ways, from many clients.
func TestBodies(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce")
	body := make([]byte, 3<<20)
	_, _ = rand.Read(body)
	sum := sha256.Sum256(body)
	addr, _ := newBackEnd(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		_, err := io.Copy(h, r.Body)
		assert.NoError(t, err)
		w.Header().Set("Sum", hex.EncodeToString(h.Sum(nil)))
		_, _ = w.Write(body)
	})
	front := newFrontEnd(t, addr)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			resp, err := front.Client().Post(front.URL, "", bytes.NewReader(body))
			if !assert.NoError(t, err) {
				return
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, hex.EncodeToString(sum[:]), resp.Header.Get("Sum"))
			assert.True(t, bytes.Equal(body, got))
		})
	}
	wg.Wait()
}

// A client that goes away ends what the back end does for it.
func TestClientGoesAway(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce")
	begun, ended := make(chan struct{}), make(chan struct{})
	addr, _ := newBackEnd(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	front := newFrontEnd(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL, http.NoBody)
	require.NoError(t, err)
	_, err = front.Client().Do(req)
	require.ErrorIs(t, err, context.Canceled)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		require.FailNow(t, "the back end goes on")
	}
}

// A back end that is not there is a 502, at once.
func TestNoBackEnd(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce")
	addr, stop := newBackEnd(t, func(http.ResponseWriter, *http.Request) {})
	front := newFrontEnd(t, addr)
	status := func() int {
		resp, err := front.Client().Get(front.URL)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, status())
	stop()
	begun := time.Now()
	require.Equal(t, http.StatusBadGateway, status())
	require.Less(t, time.Since(begun), 5*time.Second)
}
