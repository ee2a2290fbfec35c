package rdmanet_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rdmanet"
)

// httpMode is one way of speaking HTTP.
type httpMode struct {
	name  string
	major int
	tls   bool
}

var httpModes = []httpMode{
	{"HTTP1", 1, false},
	{"HTTP1 TLS", 1, true},
	{"HTTP2", 2, false},
	{"HTTP2 TLS", 2, true},
}

func (m httpMode) url(l net.Listener) string {
	if m.tls {
		return "https://" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// transport is a client's side: net/http's own, but for the dialer.
func (m httpMode) transport(t testing.TB) *http.Transport {
	tr := &http.Transport{
		DialContext:       new(rdmanet.Dialer).DialContext,
		ForceAttemptHTTP2: m.major == 2 && m.tls,
		Protocols:         new(http.Protocols),
	}
	switch {
	case m.major == 1:
		tr.Protocols.SetHTTP1(true)
	case m.tls:
		tr.Protocols.SetHTTP2(true)
	default:
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// serve starts a server on l; change may alter it first.
func (m httpMode) serve(t testing.TB, l net.Listener, h http.Handler, change func(*http.Server)) (*httptest.Server, *http.Client) {
	ts := httptest.NewUnstartedServer(h)
	ts.Listener.Close()
	ts.Listener = l
	ts.Config.Protocols = new(http.Protocols)
	ts.Config.Protocols.SetHTTP1(m.major == 1)
	ts.Config.Protocols.SetHTTP2(m.major == 2 && m.tls)
	ts.Config.Protocols.SetUnencryptedHTTP2(m.major == 2 && !m.tls)
	if change != nil {
		change(ts.Config)
	}
	tr := m.transport(t)
	if m.tls {
		ts.EnableHTTP2 = m.major == 2
		ts.TLS, tr.TLSClientConfig = tlsConfigs(t)
		ts.StartTLS()
	} else {
		ts.Start()
	}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		ts.Close()
	})
	return ts, &http.Client{Transport: tr}
}

// eachMode runs a test in every mode.
func eachMode(t *testing.T, f func(t *testing.T, m httpMode)) {
	for _, m := range httpModes {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

func get(t testing.TB, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(b)
}

func TestHTTP(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		l := listen(t, nil)
		ts, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprint(w, r.Proto, " ", r.TLS != nil, " ", local, " ", host, " ", err)
		}), nil)
		for range 3 {
			resp, body := get(t, client, m.url(l)+"/")
			assert.Equal(t, m.major, resp.ProtoMajor)
			assert.Equal(t, fmt.Sprint(resp.Proto, " ", m.tls, " ", l.Addr(), " ", local4, " <nil>"), body)
		}
		assert.EqualValues(t, 1, l.Stats().Accepted, "kept alive")
		_ = ts
	})
}

// bodySize is that of the large bodies.
func bodySize(m httpMode) int64 {
	switch {
	case long:
		return 1 << 30
	case race.Enabled || testing.Short():
		return 4 << 20
	case m.major == 1 && !m.tls:
		return 1 << 30
	}
	return 128 << 20
}

// body is a stream of n bytes, and its checksum as far as it was read.
func body(n int64) (io.Reader, func() string) {
	h := sha256.New()
	return io.TeeReader(io.LimitReader(new(patternReader), n), h), func() string { return hex.EncodeToString(h.Sum(nil)) }
}

// patternReader is a fast endless stream without short repetitions.
type patternReader struct{ n uint64 }

func (p *patternReader) Read(b []byte) (int, error) {
	for i := 0; i+8 <= len(b); i += 8 {
		p.n = p.n*6364136223846793005 + 1442695040888963407
		x := p.n ^ p.n>>31
		_ = b[i+7]
		b[i], b[i+1], b[i+2], b[i+3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		b[i+4], b[i+5], b[i+6], b[i+7] = byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56)
	}
	if len(b) < 8 {
		p.n++
		clear(b)
		return len(b), nil
	}
	return len(b) &^ 7, nil
}

func TestHTTPLargeBodies(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		size := bodySize(m)
		l := listen(t, nil)
		_, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				h := sha256.New()
				n, err := io.Copy(h, r.Body)
				fmt.Fprint(w, n, " ", hex.EncodeToString(h.Sum(nil)), " ", err)
				return
			}
			b, sum := body(size)
			w.Header().Set("Trailer", "Sum")
			_, err := io.Copy(w, b)
			assert.NoError(t, err)
			w.Header().Set("Sum", sum())
		}), nil)

		start := time.Now()
		b, sum := body(size)
		req, err := http.NewRequest(http.MethodPost, m.url(l), b)
		require.NoError(t, err)
		req.ContentLength = size
		resp, err := client.Do(req)
		require.NoError(t, err)
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(size, " ", sum(), " <nil>"), string(answer))
		up := time.Since(start)

		start = time.Now()
		resp, err = client.Get(m.url(l))
		require.NoError(t, err)
		h := sha256.New()
		n, err := io.Copy(h, resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, size, n)
		assert.Equal(t, resp.Trailer.Get("Sum"), hex.EncodeToString(h.Sum(nil)))
		down := time.Since(start)
		t.Logf("%d MiB: up %.0f MB/s, down %.0f MB/s", size>>20, float64(size)/up.Seconds()/1e6, float64(size)/down.Seconds()/1e6)
	})
}

func TestHTTPShutdown(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		const n = 10
		l := listen(t, nil)
		arrived := make(chan struct{}, n)
		release := make(chan struct{})
		ts, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/first" {
				return
			}
			arrived <- struct{}{}
			<-release
			io.WriteString(w, "finished")
		}), nil)
		// Requests that come before HTTP/2 is agreed on each dial, and a server's Shutdown
		// waits long for connections that were never used, on TCP too.
		get(t, client, m.url(l)+"/first")
		bodies := make(chan string, n)
		for range n {
			go func() {
				resp, err := client.Get(m.url(l))
				if err != nil {
					bodies <- err.Error()
					return
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				bodies <- string(b)
			}()
		}
		for range n {
			<-arrived
		}
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			done <- ts.Config.Shutdown(ctx)
		}()
		require.Eventually(t, func() bool {
			c, err := rdmanet.Dial("rdma", l.Addr().String())
			if err == nil {
				c.Close()
			}
			return err != nil
		}, 10*time.Second, 10*time.Millisecond, "no new connections while shutting down")
		close(release)
		for range n {
			assert.Equal(t, "finished", <-bodies)
		}
		require.NoError(t, <-done)
	})
}

func TestHTTPClientCancels(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		l := listen(t, nil)
		arrived, ended := make(chan struct{}), make(chan struct{})
		_, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/quick" {
				return
			}
			close(arrived)
			<-r.Context().Done()
			close(ended)
		}), nil)
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url(l), nil)
		require.NoError(t, err)
		go func() {
			<-arrived
			cancel()
		}()
		_, err = client.Do(req)
		require.ErrorIs(t, err, context.Canceled)
		within(t, 10*time.Second, "the server's context", func() { <-ended })
		get(t, client, m.url(l)+"/quick")
	})
}

// A handler that flushes is heard at once.
func TestHTTPStreaming(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		l := listen(t, nil)
		next := make(chan struct{})
		_, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				fmt.Fprintf(w, "event %d\n", i)
				assert.NoError(t, http.NewResponseController(w).Flush())
				<-next
			}
		}), nil)
		resp, err := client.Get(m.url(l))
		require.NoError(t, err)
		defer resp.Body.Close()
		for i := range 5 {
			want := fmt.Sprintf("event %d\n", i)
			b := make([]byte, len(want))
			within(t, 5*time.Second, "an event", func() { _, err = io.ReadFull(resp.Body, b) })
			require.NoError(t, err)
			assert.Equal(t, want, string(b))
			next <- struct{}{}
		}
	})
}
