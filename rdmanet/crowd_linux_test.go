package rdmanet_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-rdma/rdma/rdmanet"
)

// TestCrowdBothWays: many connections with much data, both ways at once, come to their end.
func TestCrowdBothWays(t *testing.T) {
	const conns = 64
	size := 128 << 10
	if long {
		size = 16 << 20
	}
	l := listen(t, nil)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, err := io.Copy(c, c)
				assert.NoError(t, err)
			}()
		}
	}()
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 30*time.Second)
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			wg.Go(func() {
				assert.NoError(t, writePattern(c, size, 100_000))
				assert.NoError(t, c.(*rdmanet.Conn).CloseWrite())
			})
			assert.NoError(t, readPattern(c, size))
			_, err = c.Read(make([]byte, 1))
			assert.Equal(t, io.EOF, err)
		})
	}
	within(t, 4*time.Minute, "the echoes", wg.Wait)
}
