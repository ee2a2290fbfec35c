package ring

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// countingID counts the receives that are posted on its queue pair, and holds them
// against what the peer is told it may send.
type countingID struct {
	verbs.CMID
	t       *testing.T
	posted  atomic.Int64
	calls   atomic.Int64 // that posted them
	limits  atomic.Int64 // updates seen
	highest atomic.Int64
}

type countingQP struct {
	verbs.QP
	id *countingID
}

// freeMessages is how many messages without credit may be on their way: four of
// flow control, and those that end a connection.
const freeMessages = 8

func (id *countingID) CreateQP(pd verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	qp, err := id.CMID.CreateQP(pd, attr)
	return countingQP{qp, id}, err
}

func (id *countingID) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	d, err := parseConnData(p.PrivateData)
	assert.NoError(id.t, err)
	assert.GreaterOrEqual(id.t, id.posted.Load(), int64(d.credits)+freeMessages, "posted before the peer is told")
	return id.CMID.Connect(ctx, p)
}

func (q countingQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.QP.PostRecv(wrs)
	q.id.posted.Add(int64(n))
	q.id.calls.Add(1)
	return n, err
}

func (q countingQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if typ, v := parseImm(wrs[i].Imm); wrs[i].Op == verbs.OpWriteWithImm && typ == immSGL {
			q.id.limits.Add(1)
			q.id.highest.Store(max(q.id.highest.Load(), int64(v)))
			assert.GreaterOrEqual(q.id.t, q.id.posted.Load(), int64(v)+freeMessages, "limit %d", v)
		}
	}
	return q.QP.PostSend(wrs)
}

// TestSpareReceives: however much a peer sends of what it may, each message meets a
// receive, and so do messages that need no credit.
func TestSpareReceives(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	ch := w.accept()
	id := &countingID{CMID: w.resolve(), t: t}
	c, err := Client(context.Background(), id, nil)
	require.NoError(t, err)
	s := <-ch
	require.NoError(t, s.err)
	before := id.calls.Load()
	for range 3000 { // the window grows on the way
		write(t, s.c, []byte("12345"))
		readN(t, c, 5)
	}
	require.LessOrEqual(t, id.calls.Load()-before, 3000/repostBatch+id.limits.Load(), "posted again one by one")
	require.Greater(t, id.limits.Load(), int64(10))
	require.Greater(t, id.highest.Load(), int64(2000))
	for _, c := range []*Conn{c, s.c} {
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
}

// TestCreditReserve: the last credits of a peer are left for messages that need
// none, and used by data once the peer gives more.
func TestCreditReserve(t *testing.T) {
	for credits, want := range map[uint16]int{16: 12, 64: 60, 3: 3, 1: 1} {
		w := newWorld(t, simnet.Options{})
		raw := w.rawServer(credits, nil)
		c, err := Client(context.Background(), w.resolve(), nil)
		require.NoError(t, err)
		p := <-raw
		p.publish(uint32(credits), nil, 0)
		data := func(n int) {
			for range n {
				for {
					wc := p.take()
					if typ, v := parseImm(wc.Imm); typ != immSGL {
						require.EqualValues(t, immData, typ)
						require.Positive(t, v)
						break
					}
				}
			}
		}
		for range want {
			write(t, c, []byte("12345"))
		}
		data(want)
		write(t, c, []byte("more"))
		p.nothing(20 * time.Millisecond)
		p.publish(uint32(credits)+1, nil, 0)
		data(1)
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
}

// TestMessagesBeyondTheLimit are refused, though receives for them are posted.
func TestMessagesBeyondTheLimit(t *testing.T) {
	var r receiver
	require.NoError(t, r.init(new(heapSegments), 1<<20, 8, 8))
	r.setPeer(2)
	for range 8 {
		require.NoError(t, r.data(1, 1, 0))
	}
	require.ErrorIs(t, r.data(1, 1, 0), ErrProtocol)
}
