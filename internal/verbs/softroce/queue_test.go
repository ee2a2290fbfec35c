package softroce

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestQueue compares a queue that grows and shrinks with a slice.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := queue[sendWQE]{limit: 300, head: ^uint32(0) - 100, tail: ^uint32(0) - 100}
		var model []uint64
		id := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "turns") {
			for range rapid.SampledFrom([]int{1, 2, 7, 60, 400}).Draw(t, "posted") {
				e := q.next()
				require.Equal(t, len(model) == 300, e == nil)
				if e == nil {
					break
				}
				id++
				e.id = id
				q.tail++
				model = append(model, id)
			}
			for range min(len(model), rapid.SampledFrom([]int{0, 1, 50, 400}).Draw(t, "taken")) {
				require.Equal(t, model[0], q.at(q.head).id)
				model = model[1:]
				q.head++
			}
			if q.head == q.tail {
				q.emptied()
			}
			require.Equal(t, len(model), q.len())
			for i, want := range model {
				require.Equal(t, want, q.at(q.head+uint32(i)).id)
			}
		}
	})
}

// TestQueueShrinks: a burst is not paid for ever, nor does one after the other allocate.
func TestQueueShrinks(t *testing.T) {
	q := queue[sendWQE]{limit: 512}
	turn := func(n int) {
		for range n {
			require.NotNil(t, q.next())
			q.tail++
		}
		q.head = q.tail
		q.emptied()
	}
	turn(400)
	for range 100 {
		turn(1)
		turn(1)
		turn(200)
	}
	require.Len(t, q.ring, 512)
	for range calmTurns - 1 {
		turn(1)
	}
	require.Len(t, q.ring, 512)
	turn(1)
	require.Len(t, q.ring, keptRing)
	require.Zero(t, testing.AllocsPerRun(100, func() { turn(keptRing) }))
	turn(400)
	require.Len(t, q.ring, 512)
}

// TestSendQueueShrinks is the same in a connection.
func TestSendQueueShrinks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		post := func(n int) {
			for i := range n {
				p.end.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: p.end.sgl(0, 1), RemoteAddr: 1, RKey: 1})
			}
			for len(p.take()) > 0 { // all of them
			}
			p.send(ack(p.end.q.rc.end - 1))
			require.Len(t, p.end.outcomes(), n)
		}
		post(40)
		require.Len(t, p.end.q.sq.ring, 64)
		for range calmTurns {
			post(2)
		}
		require.Len(t, p.end.q.sq.ring, keptRing)
		post(3)
	})
}
