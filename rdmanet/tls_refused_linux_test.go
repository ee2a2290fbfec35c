package rdmanet_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A client that is refused for its certificate learns so, though in TLS 1.3 its handshake is done before the server looks at that, and
// what it then writes finds the server gone: the alert is read, as over TCP.
func TestTLSRefusalIsRead(t *testing.T) {
	for name, n := range map[string]struct {
		listen func() (net.Listener, error)
		dial   func(addr string) (net.Conn, error)
	}{
		"tcp": {
			func() (net.Listener, error) { return net.Listen("tcp", net.JoinHostPort("127.0.0.1", "0")) },
			func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) },
		},
		"rdma": {rdmaListen, rdmaDial},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := n.listen()
			require.NoError(t, err)
			defer l.Close()
			server, client := tlsConfigs(t)
			server.ClientAuth = tls.RequireAndVerifyClientCert
			client.Certificates = nil
			refused := make(chan error, 1)
			go func() {
				c, err := l.Accept()
				if err == nil {
					err = tls.Server(c, server).Handshake()
					_ = c.Close()
				}
				refused <- err
			}()
			raw, err := n.dial(l.Addr().String())
			require.NoError(t, err)
			defer raw.Close()
			require.NoError(t, raw.SetDeadline(time.Now().Add(20*time.Second)))
			c := tls.Client(raw, client)
			require.NoError(t, c.Handshake())
			require.ErrorContains(t, <-refused, "didn't provide a certificate")
			time.Sleep(50 * time.Millisecond) // until that has come over
			_, err = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
			require.NoError(t, err)
			_, err = c.Read(make([]byte, 1))
			require.ErrorContains(t, err, "remote error: tls: certificate required")
			if name == "rdma" {
				_, err = raw.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				_, err = raw.Write(make([]byte, 1))
				require.ErrorIs(t, err, syscall.EPIPE)
			}
		})
	}
}

// A connection that the server closed while it was idle is not used again: net/http's client takes another one, for a request that may not
// be repeated too.
func TestHTTPServerClosesIdle(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		l := listen(t, nil)
		var served atomic.Int32
		ts, client := m.serve(t, l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			assert.NoError(t, err)
			served.Add(1)
		}), nil)
		rounds := 20
		if testing.Short() {
			rounds = 5
		}
		for range rounds {
			resp, err := client.Post(m.url(l), "text/plain", strings.NewReader("once"))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			ts.CloseClientConnections()
			time.Sleep(5 * time.Millisecond)
		}
		require.EqualValues(t, rounds, served.Load())
	})
}
