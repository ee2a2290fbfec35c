package rpma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rpma"
)

// TestPostRecvs: receives that are posted together are received into in order; of too many, those are taken that there is
// room for; with one among them that makes no sense none is.
func TestPostRecvs(t *testing.T) {
	const depth, size = 36, 16 // more than go in one batch
	p, q := newPeer(t), newPeer(t)
	srq, err := q.NewSRQ(&rpma.SRQConfig{RQSize: depth})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	for name, shared := range map[string]bool{"connection": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			cfg := &rpma.ConnConfig{RQSize: depth}
			if shared {
				cfg.SRQ = srq
			}
			c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: depth}, server: cfg})
			out, in := alloc(t, p, depth*size, rpma.SendBuf), alloc(t, q, depth*size, rpma.RecvBuf)
			post, cq := s.PostRecvs, s.CQ()
			if shared {
				_, err := s.PostRecvs(rpma.Recv{})
				require.ErrorIs(t, err, rpma.ErrProvider)
				post = srq.PostRecvs
				if srq.CQ() != nil {
					cq = srq.CQ()
				}
			}
			recvs := make([]rpma.Recv, depth+2)
			for i := range depth {
				recvs[i] = rpma.Recv{Dst: in.Slice(i*size, size), ID: uint64(100 + i)}
			}
			n, err := post()
			require.NoError(t, err)
			require.Zero(t, n)
			recvs[depth].Dst = out.Slice(0, 1) // of another peer
			n, err = post(recvs...)
			require.ErrorIs(t, err, rpma.ErrInvalid)
			require.Zero(t, n)
			recvs[depth].Dst = rpma.Local{}
			n, err = post(recvs...)
			require.ErrorIs(t, err, rpma.ErrQueueFull)
			require.Equal(t, depth, n)

			for i := range depth {
				out.Bytes()[i*size] = byte(i + 1)
				require.NoError(t, c.Do(t.Context(), rpma.Send(out.Slice(i*size, i%size+1))))
			}
			for i := range depth {
				got := next(t, cq)
				require.NoError(t, got.Err())
				require.EqualValues(t, 100+i, got.ID)
				require.Equal(t, i%size+1, got.Bytes)
				require.EqualValues(t, i+1, in.Bytes()[i*size])
			}
			for range 30 { // once around, so that each place in the queue has what it keeps
				n, err = post(recvs[:3]...)
				require.NoError(t, err)
				require.Equal(t, 3, n)
				for range n {
					require.NoError(t, c.Do(t.Context(), rpma.Send(out.Slice(0, 1))))
					next(t, cq)
				}
			}
			if !race.Enabled && !shared {
				none := testing.AllocsPerRun(5, func() {
					n, err := post(recvs[:3]...)
					if n != 3 || err != nil {
						panic("not posted")
					}
				})
				assert.Zero(t, none)
			}
		})
	}
}
