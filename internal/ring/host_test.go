package ring

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// TestNettestOnHost is TestNettest over the host's UDP sockets.
func TestNettestOnHost(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c, s := hostPair(t, nil)
		return netConn{c}, netConn{s}, func() { _, _ = c.Close(), s.Close() }, nil
	})
}

// TestHappensBefore: what a goroutine did before it wrote is seen by the one that
// has read, and the race detector knows.
func TestHappensBefore(t *testing.T) {
	c, s := hostPair(t, nil)
	var shared, back int
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1)
		for i := 1; i <= 200; i++ {
			if _, err := io.ReadFull(s, b); !assert.NoError(t, err) {
				return
			}
			assert.Equal(t, i, shared)
			back = i
			if _, err := s.Write(b); !assert.NoError(t, err) {
				return
			}
		}
	}()
	b := make([]byte, 1)
	for i := 1; i <= 200; i++ {
		shared = i
		_, err := c.Write(b)
		require.NoError(t, err)
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, i, back)
	}
	<-done
}
