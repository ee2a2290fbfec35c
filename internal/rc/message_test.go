package rc

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/go-rdma/rdma/internal/verbs"
)

// keepQP is fewQP that keeps what is inline, as a provider takes it before PostSend returns.
type keepQP struct{ fewQP }

func (q *keepQP) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.fewQP.PostSend(wrs)
	for i := len(q.got) - n; i < len(q.got); i++ {
		q.got[i].Inline = append([]byte(nil), q.got[i].Inline...)
	}
	return n, err
}

// TestSendQueueWithoutImmediates: whatever the provider takes, a write goes out before the message that tells of it, each
// once, in order.
func TestSendQueueWithoutImmediates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qp := &keepQP{}
		q := SendQueue[uint32]{split: &messages{order: binary.BigEndian}}
		q.Init(qp, rapid.IntRange(1, 60).Draw(t, "depth"))
		var want []verbs.SendWR // all that is to go out
		var last []int          // index in it of each request's last
		pushed := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if q.Free() == 0 {
					return
				}
				s := Send{Op: verbs.OpWriteWithImm, Imm: rapid.Uint32().Draw(t, "imm"), Flags: verbs.Signaled, RemoteAddr: uint64(pushed)}
				w := verbs.SendWR{ID: uint64(pushed), Op: verbs.OpWrite, Imm: s.Imm, RemoteAddr: s.RemoteAddr}
				m := verbs.SendWR{ID: w.ID, Op: verbs.OpSend, Flags: s.Flags, Inline: binary.BigEndian.AppendUint32(nil, s.Imm)}
				switch rapid.IntRange(0, 3).Draw(t, "kind") {
				case 0: // no data
					want = append(want, m)
				case 1:
					s.Inline, w.Inline = []byte{1, 2, 3}, []byte{1, 2, 3}
					want = append(want, w, m)
				case 2:
					s.Addr, s.Length = 77, 5
					w.SGL = []verbs.SGE{{Addr: 77, Length: 5}}
					want = append(want, w, m)
				case 3: // no message
					s.Op, w.Flags = verbs.OpWrite, s.Flags
					want = append(want, w)
				}
				last = append(last, len(want)-1)
				q.Push(s, uint32(pushed))
				pushed++
			},
			"flush": func(t *rapid.T) {
				qp.takes = rapid.IntRange(0, 40).Draw(t, "takes")
				require.NoError(t, q.Flush())
				if qp.takes > 0 && q.Unposted() > 0 {
					t.Fatal("not all posted")
				}
			},
			"complete": func(t *rapid.T) {
				if n := pushed - q.Unposted(); n > 0 {
					id := uint64(rapid.IntRange(0, n-1).Draw(t, "id"))
					for _, ok := q.Complete(id); ok; {
						_, ok = q.Complete(id)
					}
				}
			},
			"": func(t *rapid.T) {
				require.LessOrEqual(t, len(qp.got), len(want))
				for i, got := range qp.got {
					require.Equal(t, want[i], got)
				}
				posted := pushed - q.Unposted()
				require.True(t, posted == 0 || last[posted-1] < len(qp.got), "counted before all of it was posted")
				require.True(t, posted == pushed || last[posted] >= len(qp.got), "posted and not counted")
			},
		})
	})
}

// TestHalfTakenBack: a request of which the provider has taken the data only is made anew, with other data.
func TestHalfTakenBack(t *testing.T) {
	qp := &keepQP{}
	q := SendQueue[int]{split: &messages{order: binary.LittleEndian}}
	q.Init(qp, 4)
	qp.takes = 1
	q.Push(Send{Op: verbs.OpWriteWithImm, Imm: 3, Inline: []byte("one")}, 1)
	require.NoError(t, q.Flush())
	require.Equal(t, 1, q.Unposted())
	q.Pop()
	qp.takes = 9
	require.NoError(t, q.Flush())
	require.Len(t, qp.got, 1)
	q.Push(Send{Op: verbs.OpWriteWithImm, Imm: 5, Inline: []byte("other")}, 2)
	require.NoError(t, q.Flush())
	require.Len(t, qp.got, 3)
	require.Equal(t, "other", string(qp.got[1].Inline))
	require.Equal(t, []byte{5, 0, 0, 0}, qp.got[2].Inline)
	tag, ok := q.Complete(0)
	require.True(t, ok)
	require.Equal(t, 2, tag)
}
