package rdmanet_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// A service and its clients move to RDMA one after another, in either order, and back: at each moment
// every client is served, by RDMA where both ends have it.
func TestRollingUpgrade(t *testing.T) {
	eachMode(t, func(t *testing.T, m httpMode) {
		d, log := falling(t)
		// A server's handler says what it was asked by.
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			network := "tcp"
			if _, ok := r.Context().Value(http.LocalAddrContextKey).(*rdmanet.Addr); ok {
				network = "rdma"
			}
			fmt.Fprint(w, network)
		})
		// serve begins a server on the address, and returns the two kinds of clients and what ends it.
		serve := func(l net.Listener) (before, after *http.Client, stop func()) {
			ts, before := m.serve(t, l, handler, nil)
			cfg := before.Transport.(*http.Transport).TLSClientConfig
			before.Transport.(*http.Transport).DialContext = new(net.Dialer).DialContext
			tr := m.transport(t)
			tr.DialContext = d.DialContext
			tr.TLSClientConfig = cfg
			return before, &http.Client{Transport: tr}, func() {
				before.CloseIdleConnections()
				tr.CloseIdleConnections()
				ts.Close()
			}
		}
		asked := func(c *http.Client, l net.Listener) string {
			t.Helper()
			_, body := get(t, c, m.url(l))
			c.CloseIdleConnections() // the next request dials again
			return body
		}
		old := func(address string) net.Listener {
			l, err := net.Listen("tcp", address)
			require.NoError(t, err)
			return l
		}
		n := fallbacks()
		l := old("127.0.0.1:0")
		before, after, stop := serve(l)
		assert.Equal(t, "tcp", asked(before, l))
		assert.Equal(t, "tcp", asked(after, l), "a new client, an old server")
		assert.Equal(t, "tcp", asked(after, l))
		assert.Equal(t, n+2, fallbacks())
		assert.Len(t, log.all(), 1)
		stop()

		both := listenBoth(t, rdmanet.ListenConfig{}, "rdma", l.Addr().String())
		before, after, stop = serve(both)
		assert.Equal(t, "tcp", asked(before, both), "an old client, a new server")
		assert.Equal(t, "tcp", asked(after, both), "for a minute")
		rdmanet.EndDetours()
		assert.Equal(t, "rdma", asked(after, both), "both new")
		assert.Equal(t, "rdma", asked(after, both))
		assert.Equal(t, "tcp", asked(before, both))
		assert.Equal(t, n+3, fallbacks())
		assert.Len(t, log.all(), 1)
		s := both.Stats()
		assert.EqualValues(t, 3, s.TCP)
		assert.EqualValues(t, 5, s.Accepted)
		stop()

		l = old(l.Addr().String()) // and back
		_, after, stop = serve(l)
		within(t, 20*time.Second, "a request", func() { assert.Equal(t, "tcp", asked(after, l)) })
		assert.Equal(t, n+4, fallbacks())
		assert.Len(t, log.all(), 2, "RDMA has worked in between")
		stop()
	})
}
