package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func TestExample(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	for _, c := range []struct {
		name     string
		fallback bool
		onTCP    string
	}{
		{"beside", false, "404 Not Found"},
		{"both", true, "at your service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, newExample(c.fallback).Run(t.Context(), &out, nil))
			assert.Contains(t, out.String(), "client: httpGet /livez: alive\n")
			assert.Contains(t, out.String(), "client: httpGet /readyz: ready\n")
			assert.Contains(t, out.String(), "client: tcpSocket: connected\n")
			assert.Contains(t, out.String(), "client: client on RDMA: at your service\n")
			assert.Regexp(t, "client: client on TCP: .*"+c.onTCP+"\n", out.String())
		})
	}
}

// A service that RDMA does not reach is alive, and not ready.
func TestNotReady(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce")
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	h := health(l.Addr().String())
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		assert.Equal(t, want, w.Code, "%s: %s", path, w.Body)
	}
}
