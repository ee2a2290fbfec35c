package rpma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

// benchPair is two ends in one process, on the embedded device.
func benchPair(b *testing.B, cfg *rpma.ConnConfig) (c, s *rpma.Conn, own, far *rpma.MR) {
	p, q := newPeer(b), newPeer(b)
	own, far = alloc(b, p, 1<<16, clientUse), alloc(b, q, 1<<16, serverUse)
	c, s = pair(b, p, q, pairOptions{client: cfg})
	return c, s, own, far
}

// BenchmarkDo waits for each operation.
func BenchmarkDo(b *testing.B) {
	for _, n := range []int{8, 4096, 65536} {
		c, _, own, far := benchPair(b, nil)
		r := remote(b, far)
		for name, op := range map[string]rpma.Op{
			"write": rpma.Write(r.Slice(0, n), own.Slice(0, n)),
			"read":  rpma.Read(own.Slice(0, n), r.Slice(0, n)),
			"flush": rpma.Flush(r.Slice(0, n), rpma.Visibility),
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, c.Do(b.Context(), op))
				}
			})
		}
	}
}

// BenchmarkPost keeps 32 operations on their way.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{8, 4096, 65536} {
		b.Run(fmt.Sprintf("write/%d", n), func(b *testing.B) {
			const depth = 32
			c, _, own, far := benchPair(b, &rpma.ConnConfig{SQSize: depth})
			op := rpma.Write(remote(b, far).Slice(0, n), own.Slice(0, n))
			wc := make([]rpma.Completion, depth)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			flying := 0
			take := func() {
				k, err := c.CQ().Poll(wc)
				require.NoError(b, err)
				if flying -= k; k == 0 {
					require.NoError(b, c.CQ().Wait(b.Context()))
				}
			}
			for b.Loop() {
				for flying == depth {
					take()
				}
				k, err := c.Post(op)
				require.NoError(b, err)
				flying += k
			}
			for flying > 0 {
				take()
			}
		})
	}
}
