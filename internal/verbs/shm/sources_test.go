//go:build linux

package shm

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// counted is a source that counts.
type counted struct{ due, looked, taken int }

func (s *counted) pending() bool { s.looked++; return s.due > 0 }
func (s *counted) drain()        { s.taken += s.due; s.due = 0 }

// TestMarks: a queue finds all that is there, and looks at few that have nothing.
func TestMarks(t *testing.T) {
	d, err := New().newDevice()
	require.NoError(t, err)
	defer d.release()
	made, err := d.CreateCQ(&verbs.CQAttr{Depth: 1})
	require.NoError(t, err)
	c := made.(*cq)
	defer c.Close()
	var all []*counted
	add := func() {
		s := new(counted)
		require.NoError(t, c.use(s))
		all = append(all, s)
	}
	for range 10000 {
		add()
	}
	for round := range 200 {
		if round%10 == 0 { // places are used again
			for range 50 {
				i := rand.IntN(len(all))
				c.unuse(all[i])
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			}
			for range 50 {
				add()
			}
		}
		var want []*counted
		for range rand.IntN(20) {
			s := all[rand.IntN(len(all))]
			s.due++
			mark(d.board, c.num, c.slotOf(s))
			want = append(want, s)
		}
		for _, s := range all {
			s.looked = 0
		}
		require.Equal(t, len(want) > 0, c.gather())
		looked := 0
		for _, s := range all {
			looked += s.looked
			require.Zero(t, s.due)
		}
		require.LessOrEqual(t, looked, directly+3*len(want))
		require.False(t, c.gather())
	}
	for _, s := range all {
		c.unuse(s)
	}
}

// TestManyOfOneQueue: many connections share their completion queue, at both ends.
func TestManyOfOneQueue(t *testing.T) {
	_, fds := held(t)
	const n = 120
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	one, other := New(), New()
	l, err := listenAt(other)
	require.NoError(t, err)
	type end struct {
		id verbs.CMID
		qp verbs.QP
	}
	type queue struct {
		pd    verbs.PD
		arena verbs.Arena
		mr    verbs.MR
		cq    verbs.CQ
		wake  chan struct{}
		ends  []end
	}
	for _, open := range []bool{false, true} {
		var queues [2]queue
		join := func(q *queue, id verbs.CMID) end {
			if q.pd == nil {
				d := id.Device()
				if open {
					d, err = id.Provider().Open(deviceName)
					require.NoError(t, err)
					defer d.Close()
				}
				q.pd, err = d.AllocPD()
				require.NoError(t, err)
				q.arena, err = q.pd.NewArena(sideMemory)
				require.NoError(t, err)
				q.mr, err = q.pd.RegMR(q.arena.Bytes(), everything)
				require.NoError(t, err)
				q.wake = make(chan struct{}, 1)
				q.cq, err = d.CreateCQ(&verbs.CQAttr{Depth: 4 * n, Notify: func() { q.wake <- struct{}{} }})
				require.NoError(t, err)
			}
			qp, err := id.CreateQP(q.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: 4, MaxRecvWR: 4})
			require.NoError(t, err)
			q.ends = append(q.ends, end{id, qp})
			return q.ends[len(q.ends)-1]
		}
		for range n {
			id, err := one.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr()})
			require.NoError(t, err)
			join(&queues[0], id)
			done := make(chan error, 1)
			go func() { _, err := id.Connect(ctx, &sideParam); done <- err }()
			in, err := l.GetRequest(ctx)
			require.NoError(t, err)
			join(&queues[1], in)
			require.NoError(t, in.Accept(&sideParam))
			require.NoError(t, <-done)
		}
		a, b := &queues[0], &queues[1]
		for round := range 300 {
			i := rand.IntN(n)
			_, err := b.ends[i].qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: 8, LKey: b.mr.LKey()}}}})
			require.NoError(t, err)
			var wc [4]verbs.WC
			if round%2 == 0 {
				require.NoError(t, b.cq.Arm())
				k, err := b.cq.Poll(wc[:])
				require.NoError(t, err)
				require.Zero(t, k)
			}
			_, err = a.ends[i].qp.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("12345678")}})
			require.NoError(t, err)
			if round%2 == 0 {
				select {
				case <-b.wake:
				case <-ctx.Done():
					require.Fail(t, "nobody is notified")
				}
			}
			for _, q := range []*queue{b, a} {
				k, err := q.cq.Poll(wc[:])
				require.NoError(t, err)
				require.Equal(t, 1, k)
				require.Equal(t, uint64(i), wc[0].ID)
				require.Equal(t, verbs.Success, wc[0].Status)
			}
		}
		// A request at fault ends the connection at its other end, too, which has to be seen.
		i := n - 1
		_, err = b.ends[i].qp.PostRecv(make([]verbs.RecvWR, 1))
		require.NoError(t, err)
		_, err = a.ends[i].qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.Signaled, Inline: []byte("12345678"), RKey: 5}})
		require.NoError(t, err)
		for _, q := range []*queue{a, b} {
			var wc [4]verbs.WC
			k, err := q.cq.Poll(wc[:])
			require.NoError(t, err)
			require.Equal(t, 1, k)
			require.NotEqual(t, verbs.Success, wc[0].Status)
		}
		for i := range queues {
			q := &queues[i]
			for _, e := range q.ends {
				require.NoError(t, e.qp.Close())
				require.NoError(t, e.id.Close())
			}
			require.NoError(t, q.mr.Close())
			require.NoError(t, q.arena.Close())
			require.NoError(t, q.cq.Close())
			require.NoError(t, q.pd.Close())
		}
	}
	require.NoError(t, l.Close())
	requireNothingHeld(t, fds)
}
