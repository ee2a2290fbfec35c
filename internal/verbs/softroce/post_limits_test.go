package softroce

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestPostErrorsSayWhich: of the reasons why a request is not taken, each says what it is about, what was asked for and what the limit
// is. A full queue is none of them, and no error.
func TestPostErrorsSayWhich(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{attr: verbs.QPInitAttr{MaxSendSGE: 2, MaxRecvSGE: 1, MaxSendWR: 4, MaxInline: 64}})
		q := p.end.q
		for want, wr := range map[string]verbs.SendWR{
			"3 gather entries, the limit is 2":                                              {Op: verbs.OpSend, SGL: make([]verbs.SGE, 3)},
			fmt.Sprintf("%d inline bytes, the limit is %d", maxInline+1, q.Cap().MaxInline): {Op: verbs.OpSend, Inline: make([]byte, maxInline+1)},
			"message of 2147483649 bytes, the limit is 2147483648":                          {Op: verbs.OpSend, SGL: []verbs.SGE{{Length: 1 << 30}, {Length: 1<<30 + 1}}},
		} {
			n, err := q.PostSend([]verbs.SendWR{wr})
			require.Zero(t, n)
			require.ErrorContains(t, err, want)
		}
		n, err := q.PostRecv([]verbs.RecvWR{{SGL: make([]verbs.SGE, 2)}})
		require.Zero(t, n)
		require.ErrorContains(t, err, "2 scatter entries, the limit is 1")

		room := q.Cap().MaxSendWR
		n, err = q.PostSend(make([]verbs.SendWR, 0))
		require.NoError(t, err)
		require.Zero(t, n)
		wrs := make([]verbs.SendWR, room+3)
		for i := range wrs {
			wrs[i] = verbs.SendWR{Op: verbs.OpSend}
		}
		n, err = q.PostSend(wrs)
		require.NoError(t, err)
		require.Equal(t, room, n)
	})
}

// TestQueuePairsUntilThereAreNoMore: as many as a device says that it has can be made, the next is refused as lack of memory, nothing of
// it is left, and one that is closed makes room.
func TestQueuePairsUntilThereAreNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		pa, _ := newPipes()
		n := newNode(t, nil, pa, addrA)
		cq, err := n.dev.CreateCQ(&verbs.CQAttr{Depth: 1})
		require.NoError(t, err)
		made := func() (*qp, error) {
			return n.dev.newQP(n.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
		}
		limit := maxQPs
		qs := make([]*qp, 0, limit)
		numbers := make(map[uint32]bool, limit)
		for range limit {
			q, err := made()
			require.NoError(t, err)
			qs = append(qs, q)
			numbers[q.num] = true
		}
		require.Len(t, numbers, limit)
		for range 3 {
			_, err = made()
			require.ErrorIs(t, err, syscall.ENOMEM)
			require.ErrorContains(t, err, "queue pairs")
		}
		require.NoError(t, qs[limit/2].Close())
		q, err := made()
		require.NoError(t, err, "there is room again")
		_, err = made()
		require.ErrorIs(t, err, syscall.ENOMEM, "for one")
		qs[limit/2] = q
		for _, q := range qs {
			require.NoError(t, q.Close())
		}
		require.NoError(t, cq.Close())
	})
}
