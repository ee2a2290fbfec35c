package rdmanet_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/rpc"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server on RDMA in front of another.
func TestReverseProxy(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		back := listen(t, nil)
		httpModes[0].serve(t, back, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			fmt.Fprintf(w, "for %s: %s", r.Header.Get("X-Forwarded-For"), b)
		}), nil)
		target, err := url.Parse(httpModes[0].url(back))
		require.NoError(t, err)
		proxy := &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.SetXForwarded()
			},
			Transport: httpModes[0].transport(t),
		}
		front := listen(t, nil)
		_, client := m.serve(t, front, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Else an answer that begins as soon as the request's last byte was written may close the request's body, which the
			// transport still looks for the end of: it then gives the connection up, over TCP as well.
			assert.NoError(t, http.NewResponseController(w).EnableFullDuplex())
			proxy.ServeHTTP(w, r)
		}), nil)
		want := strings.Repeat("body ", 100_000)
		resp, err := client.Post(m.url(front), "text/plain", strings.NewReader(want))
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "for "+local4+": "+want, string(b))
	})
}

// Upgraded connections go through a proxy, with their half-close.
func TestReverseProxyUpgrade(t *testing.T) {
	m := httpModes[0]
	back := listen(t, nil)
	m.serve(t, back, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(c, c)
	}), nil)
	target, err := url.Parse(m.url(back))
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = m.transport(t)
	front := listen(t, nil)
	m.serve(t, front, proxy, nil)

	c := dial(t, nil, front.Addr())
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	done := make(chan error, 1)
	go func() {
		if err := writePattern(c, 4<<20, 32<<10); err != nil {
			done <- err
			return
		}
		done <- c.CloseWrite()
	}()
	require.NoError(t, readPattern(br, 4<<20))
	_, err = br.ReadByte()
	require.Equal(t, io.EOF, err)
	require.NoError(t, <-done)
}

type Arith struct{}

func (Arith) Double(n int, out *int) error { *out = 2 * n; return nil }

func TestNetRPC(t *testing.T) {
	s := rpc.NewServer()
	require.NoError(t, s.Register(Arith{}))
	l := listen(t, nil)
	go s.Accept(l)
	c := rpc.NewClient(dial(t, nil, l.Addr()))
	defer c.Close()
	for i := range 100 {
		var out int
		require.NoError(t, c.Call("Arith.Double", i, &out))
		assert.Equal(t, 2*i, out)
	}
}
