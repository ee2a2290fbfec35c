//go:build linux

package shm

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestArenaRefused: an open device's arena that one peer has no place for is none: nothing of it stays, and who was shown it first forgets it.
func TestArenaRefused(t *testing.T) {
	_, fds := held(t)
	one := New()
	d, err := one.Open(deviceName)
	require.NoError(t, err)
	made, err := d.AllocPD()
	require.NoError(t, err)
	domain := made.(*pd)
	cq, err := d.CreateCQ(&verbs.CQAttr{Depth: 8})
	require.NoError(t, err)
	var ends []*side
	var qps []verbs.QP
	for range 2 { // each a peer that sees the domain once it has a queue pair of it
		x, y := connected(t, one, New())
		ends = append(ends, x, y)
		q, err := x.id.(*cmid).dev.newQP(domain, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
		require.NoError(t, err)
		qps = append(qps, q)
	}
	views := *domain.views.Load()
	require.Len(t, views, 2)
	full := views[1].dev.link
	full.mu.Lock()
	used := full.used
	full.used = slices.Repeat([]bool{true}, maxSegments)
	full.mu.Unlock()
	mapsBefore, fdsBefore := held(t)
	for range 20 {
		_, err = domain.NewArena(pageSize)
		require.ErrorIs(t, err, syscall.ENOMEM)
	}
	require.Eventually(t, func() bool { // the first peer, which is in this process, gives up its mappings
		maps, open := held(t)
		return maps == mapsBefore && open == fdsBefore
	}, 10*time.Second, time.Millisecond)
	full.mu.Lock()
	full.used = used
	full.mu.Unlock()
	a, err := domain.NewArena(pageSize)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	for _, q := range qps {
		require.NoError(t, q.Close())
	}
	require.NoError(t, cq.Close())
	require.NoError(t, domain.Close())
	require.NoError(t, d.Close())
	for _, s := range ends {
		_, err := s.close()
		require.NoError(t, err)
	}
	requireNothingHeld(t, fds)
}
