//go:build !race

package softroce

// The race detector's own memory would be counted, and under it sync.Pool drops
// some of what it is given.

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func TestIdleQueuePairsAreSmall(t *testing.T) {
	_, a, b := pair(t, 1, simnet.Options{})
	y := b.newEnd(verbs.QPInitAttr{}, 10, nil)
	cq, err := a.dev.CreateCQ(&verbs.CQAttr{Depth: 1000})
	require.NoError(t, err)
	const n = 2000
	qps := make([]*qp, 0, n)
	attrs := make([]rcAttr, n)
	for i := range attrs {
		attrs[i] = rcAttr{path: newPath(addrA, addrB), destQPN: y.q.num, mtu: 1024, ackTimeout: 19}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range n {
		q, err := a.dev.newQP(a.pd, &verbs.QPInitAttr{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 384, MaxRecvWR: 400, MaxSendSGE: 2,
		})
		require.NoError(t, err)
		require.NoError(t, q.connect(&attrs[i]))
		qps = append(qps, q)
	}
	each := (heap() - before) / n
	t.Logf("%d bytes", each)
	require.Less(t, each, uint64(2048))
	for _, q := range qps {
		require.NoError(t, q.Close())
	}
	require.NoError(t, cq.Close())
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	pa, pb := newPipes()
	a, b := newNode(t, nil, pa, addrA), newNode(t, nil, pb, addrB)
	x, y := connected(a, b, link{})
	recv := make([]verbs.RecvWR, 1)
	recv[0].SGL = b.sgl(0, 8192)
	inline := []byte("some inline bytes")
	sends := []verbs.SendWR{
		{Op: verbs.OpWrite, SGL: a.sgl(0, 5000), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Op: verbs.OpWriteWithImm, Inline: inline, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{a.sge(0, 700), a.sge(3000, 700)}},
	}
	wc := make([]verbs.WC, 8)
	round := func() {
		for range 2 {
			if n, err := y.q.PostRecv(recv); n != 1 || err != nil {
				panic("receive not taken")
			}
		}
		if n, err := x.q.PostSend(sends); n != len(sends) || err != nil {
			panic("sends not taken")
		}
		if n, err := y.cq.Poll(wc); n != 2 || err != nil {
			panic("nothing received")
		}
		if n, err := x.cq.Poll(wc); n != 1 || err != nil || wc[0].Status != 0 {
			panic("not acknowledged")
		}
	}
	for range 1000 {
		round()
	}
	require.Zero(t, testing.AllocsPerRun(2000, round))
}
