package rdmanet_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// TestOrderAmongProcesses: what was done before a Write is seen after the Read of its
// bytes, for the race detector too, also when the packets take the way through
// another process that shares the UDP port.
func TestOrderAmongProcesses(t *testing.T) {
	for range 5 {
		p := start(t, "echo")
		defer p.stop(t)
	}
	l := listen(t, nil)
	for range 30 {
		c, err := rdmanet.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		var there, back int
		done := make(chan struct{})
		go func() {
			defer close(done)
			b := make([]byte, 1)
			for i := range 20 {
				if _, err := io.ReadFull(s, b); !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, i, there)
				back = i
				_, err := s.Write(b)
				assert.NoError(t, err)
			}
		}()
		b := make([]byte, 1)
		for i := range 20 {
			there = i
			_, err := c.Write(b)
			require.NoError(t, err)
			_, err = io.ReadFull(c, b)
			require.NoError(t, err)
			require.Equal(t, i, back)
		}
		<-done
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}
}
