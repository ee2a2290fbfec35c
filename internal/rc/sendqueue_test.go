package rc

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/go-rdma/rdma/internal/verbs"
)

// fewQP takes as many requests as it is told.
type fewQP struct {
	verbs.QP
	takes int
	err   error
	got   []verbs.SendWR
}

func (q *fewQP) PostSend(wrs []verbs.SendWR) (int, error) {
	n := min(q.takes, len(wrs))
	for _, wr := range wrs[:n] {
		wr.SGL = append([]verbs.SGE(nil), wr.SGL...)
		q.got = append(q.got, wr)
	}
	q.takes -= n
	if n < len(wrs) {
		return n, q.err
	}
	return n, nil
}

// TestSendQueue: whatever the provider takes, requests go out once, in order, and
// their values come back in order.
func TestSendQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qp := &fewQP{}
		var q SendQueue[uint32]
		depth := rapid.IntRange(1, 100).Draw(t, "depth")
		q.Init(qp, depth)
		var pushed, completed uint32
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				if q.Free() > 0 {
					q.Push(Send{Op: verbs.OpWrite, Imm: pushed, Addr: uint64(pushed) + 7, Length: pushed}, pushed)
					pushed++
				}
			},
			"push and pop": func(*rapid.T) {
				if q.Free() > 0 {
					q.Push(Send{Imm: 1 << 31}, 1<<31)
					q.Pop()
				}
			},
			"flush": func(t *rapid.T) {
				qp.takes = rapid.IntRange(0, 40).Draw(t, "takes")
				require.NoError(t, q.Flush())
				if qp.takes > 0 && q.Unposted() > 0 {
					t.Fatal("not all posted")
				}
			},
			"complete": func(t *rapid.T) {
				if len(qp.got) == 0 {
					return
				}
				id := rapid.IntRange(0, len(qp.got)-1).Draw(t, "id")
				for {
					tag, ok := q.Complete(uint64(id))
					if !ok {
						break
					}
					if tag != completed || int(tag) > id {
						t.Fatalf("value %d, want %d", tag, completed)
					}
					completed++
				}
				if int(completed) <= id {
					t.Fatalf("completed up to %d of %d", completed, id)
				}
			},
			"": func(t *rapid.T) {
				if q.Outstanding() != int(pushed-completed) || q.Free() != depth-q.Outstanding() ||
					q.Unposted() != int(pushed)-len(qp.got) {
					t.Fatalf("outstanding %d, free %d, unposted %d", q.Outstanding(), q.Free(), q.Unposted())
				}
				if n := len(qp.got); n > 0 {
					wr := qp.got[n-1]
					if wr.ID != uint64(n-1) || wr.Imm != uint32(n-1) || (n == 1) != (len(wr.SGL) == 0) ||
						n > 1 && (wr.SGL[0] != verbs.SGE{Addr: uint64(n) + 6, Length: uint32(n - 1)}) {
						t.Fatalf("request %d is %+v", n-1, wr)
					}
				}
			},
		})
	})
}

func TestSendQueueError(t *testing.T) {
	qp := &fewQP{takes: 1, err: errors.New("bad")}
	var q SendQueue[int]
	q.Init(qp, 4)
	q.Push(Send{}, 1)
	q.Push(Send{}, 2)
	require.ErrorIs(t, q.Flush(), qp.err)
	require.Equal(t, 1, q.Unposted())
	_, ok := q.Complete(5)
	require.True(t, ok)
	_, ok = q.Complete(5)
	require.False(t, ok, "what was not posted does not complete")
}
