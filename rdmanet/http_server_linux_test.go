package rdmanet_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rdmanet"
)

// All requests are in their handlers at the same time, each on a connection of its own.
func TestHTTPManyConnections(t *testing.T) {
	n := 500
	if race.Enabled || testing.Short() {
		n = 40
	}
	eachMode(t, func(t *testing.T, m httpMode) {
		l := listen(t, nil)
		var here atomic.Int32
		together, over := make(chan struct{}), make(chan struct{})
		// When one fails the others must not wait for it, nor the server's Close for them.
		defer close(over)
		_, client := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body) // HTTP/1.1 reads no more once it answers
			assert.NoError(t, err)
			if here.Add(1) == int32(n) {
				close(together)
			}
			select {
			case <-together:
			case <-over:
			}
			w.Write(b)
		}), nil)
		cfg := client.Transport.(*http.Transport).TLSClientConfig.Clone()
		clients := []*http.Client{client}
		for m.major == 2 && len(clients) < n { // else they would share one
			tr := m.transport(t)
			if m.tls {
				tr.TLSClientConfig = cfg.Clone() // which the transport changes
			}
			clients = append(clients, &http.Client{Transport: tr})
		}
		errs := make(chan error, n)
		for i := range n {
			go func() {
				want := strings.Repeat(fmt.Sprintf("request %d ", i), 1000)
				resp, err := clients[i%len(clients)].Post(m.url(l), "text/plain", strings.NewReader(want))
				if err == nil {
					var got []byte
					got, err = io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil && string(got) != want {
						err = errors.New("another body")
					}
				}
				errs <- err
			}()
		}
		for range n {
			select {
			case err := <-errs:
				require.NoError(t, err)
			case <-time.After(60 * time.Second):
				require.FailNow(t, "requests hang")
			}
		}
		assert.EqualValues(t, n, l.Stats().Accepted)
		for _, c := range clients {
			c.CloseIdleConnections()
		}
	})
}

// The server's timeouts end what does not end by itself.
func TestHTTPServerTimeouts(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, m := range httpModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if m.major == 1 {
				serverTimeouts(t, m)
			} else {
				serverTimeouts2(t, m)
			}
		})
	}
}

// client returns a connection to l for a client that speaks HTTP by itself.
func (m httpMode) client(t *testing.T, l net.Listener, cfg *tls.Config) net.Conn {
	c := dial(t, nil, l.Addr())
	if !m.tls {
		return c
	}
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	return tls.Client(c, cfg)
}

func serverTimeouts(t *testing.T, m httpMode) {
	timeout := 300 * time.Millisecond
	if race.Enabled {
		timeout = time.Second // the handshake of TLS is bounded by it, too
	}
	big := make([]byte, 64<<20)
	failed := make(chan error, 1)
	l := listen(t, nil)
	_, hc := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			_, err := w.Write(big)
			failed <- err
			return
		}
		_, err := io.ReadAll(r.Body)
		failed <- err
	}), func(s *http.Server) {
		s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout = timeout, timeout, timeout
		s.WriteTimeout = 1200 * time.Millisecond
	})
	cfg := hc.Transport.(*http.Transport).TLSClientConfig
	// open sends a piece of a request and waits for the server to end the connection.
	open := func(request string) (answer string) {
		c := m.client(t, l, cfg)
		_, err := io.WriteString(c, request)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		start := time.Now()
		b, err := io.ReadAll(c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Less(t, time.Since(start), 8*time.Second)
		return string(b)
	}
	open("GET / HT")
	assert.Contains(t, open("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"), "HTTP/1.1 ")
	require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded, "the handler's read of the body")
	assert.Contains(t, open("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"), "200 OK") // then idle
	require.NoError(t, <-failed)

	c := m.client(t, l, cfg)
	_, err := io.WriteString(c, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	// It closes the connection first, which a TLS connection tells the peer for 5 s.
	within(t, 10*time.Second, "the handler's write", func() { require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded) })
}

// serverTimeouts2: HTTP/2 has them for streams, and closes a connection that is idle.
func serverTimeouts2(t *testing.T, m httpMode) {
	const timeout = 300 * time.Millisecond
	failed := make(chan error, 1)
	l := listen(t, nil)
	_, c := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/big":
			_, err := w.Write(make([]byte, 64<<20))
			failed <- err
		case "/read":
			_, err := io.ReadAll(r.Body)
			failed <- err
		}
	}), func(s *http.Server) { s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = timeout, 3*timeout, timeout })
	// A timeout may also come before the handler does, on a machine that has much to do.
	in := func(what string, f func()) (err error) {
		for range 10 {
			f()
			select {
			case err := <-failed:
				return err
			case <-time.After(10 * timeout):
			}
		}
		return fmt.Errorf("the handler's %s did not end", what)
	}
	require.ErrorIs(t, in("read", func() {
		body, w := io.Pipe() // a body that never ends
		defer w.Close()
		if resp, err := c.Post(m.url(l)+"/read", "text/plain", body); err == nil {
			resp.Body.Close()
		}
	}), os.ErrDeadlineExceeded)
	err := in("write", func() {
		if resp, err := c.Get(m.url(l) + "/big"); err == nil {
			t.Cleanup(func() { resp.Body.Close() }) // nobody reads it
		}
	})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "did not end")
	n := l.Stats().Accepted
	require.Eventually(t, func() bool {
		if resp, err := c.Get(m.url(l) + "/quick"); err == nil {
			resp.Body.Close()
		}
		time.Sleep(2 * timeout)
		return l.Stats().Accepted > n
	}, 20*time.Second, time.Millisecond, "the idle connection is closed")
}

func TestHTTPHijack(t *testing.T) {
	for _, m := range httpModes[:2] { // there is no such thing in HTTP/2
		t.Run(m.name, func(t *testing.T) { hijack(t, m) })
	}
}

func hijack(t *testing.T, m httpMode) {
	l := listen(t, nil)
	unblocked := make(chan error, 1)
	_, hc := m.serve(t, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer c.Close()
		rc, ok := rdmanet.Unwrap(c)
		if !assert.True(t, ok) {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		// A Read that waits is unblocked by a deadline, and later ones work.
		go func() {
			time.Sleep(50 * time.Millisecond)
			rc.SetReadDeadline(time.Unix(1, 0))
		}()
		_, err = rw.Read(make([]byte, 1))
		unblocked <- err
		rc.SetReadDeadline(time.Time{})
		fmt.Fprint(c, "go\n")
		io.Copy(c, c)
		assert.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	}), nil)
	c := m.client(t, l, hc.Transport.(*http.Transport).TLSClientConfig)
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	require.ErrorIs(t, <-unblocked, os.ErrDeadlineExceeded)
	buf := make([]byte, 4096)
	var head string
	for !strings.HasSuffix(head, "go\n") {
		n, err := c.Read(buf)
		require.NoError(t, err)
		head += string(buf[:n])
	}
	go func() {
		writePattern(c, 1<<20, 10000)
		assert.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	require.NoError(t, readPattern(c, 1<<20))
	_, err = c.Read(buf)
	require.Equal(t, io.EOF, err)
}
