package verbs_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// request is told apart by its address, and does nothing.
type request struct {
	verbs.CMID
	_ byte
}

// TestRequestsInOrder takes what was put, and no more than the backlog is put.
func TestRequestsInOrder(t *testing.T) {
	q := verbs.NewRequestQueue(2)
	require.Equal(t, 2, q.Backlog())
	require.Equal(t, verbs.DefaultBacklog, verbs.NewRequestQueue(0).Backlog())
	a, b, c := new(request), new(request), new(request)
	ready := 0
	require.NoError(t, q.Room())
	require.NoError(t, q.Put(a, func() { ready++ }))
	require.NoError(t, q.Put(b, nil))
	require.ErrorIs(t, q.Room(), verbs.ErrBacklog)
	require.ErrorIs(t, q.Put(c, func() { ready++ }), verbs.ErrBacklog)
	require.Equal(t, 1, ready)
	q.Drop()
	require.Equal(t, verbs.ListenerStats{Requests: 2, Dropped: 3}, q.Stats())
	got, err := q.Get(t.Context())
	require.NoError(t, err)
	require.Same(t, a, got)
	require.False(t, q.Remove(a))
	require.True(t, q.Remove(b))
	require.Equal(t, verbs.ListenerStats{Requests: 1, Dropped: 3}, q.Stats())
}

// TestRequestWakesOne: each request wakes one who waits, also when several come at once.
func TestRequestWakesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := verbs.NewRequestQueue(0)
		got := make(chan verbs.CMID, 3)
		for range 3 {
			go func() {
				c, err := q.Get(t.Context())
				if err == nil {
					got <- c
				}
			}()
		}
		synctest.Wait()
		seen := map[verbs.CMID]bool{}
		for range 3 {
			require.NoError(t, q.Put(new(request), nil))
		}
		synctest.Wait()
		for range 3 {
			seen[<-got] = true
		}
		require.Len(t, seen, 3)
	})
}

// TestRequestWakeUpIsPassedOn: one who was woken and finds that its context has ended leaves the request, and the wake-up, to
// the next.
func TestRequestWakeUpIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 { // which of two reasons wakes is chance
			q := verbs.NewRequestQueue(0)
			ctx, cancel := context.WithCancel(t.Context())
			failed, got := make(chan error, 1), make(chan verbs.CMID, 1)
			go func() {
				c, err := q.Get(ctx)
				if err != nil {
					failed <- err
					return
				}
				got <- c
			}()
			synctest.Wait()
			go func() {
				if c, err := q.Get(t.Context()); err == nil {
					got <- c
				}
			}()
			synctest.Wait()
			id := new(request)
			cancel()
			require.NoError(t, q.Put(id, nil))
			synctest.Wait()
			require.Same(t, id, <-got)
			_, first := q.Close()
			require.True(t, first)
			synctest.Wait()
		}
	})
}

// TestRequestQueueFails: what came before is still taken, then everybody who waits is told.
func TestRequestQueueFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := verbs.NewRequestQueue(0)
		require.NoError(t, q.Put(new(request), nil))
		q.Fail(syscall.ENODATA)
		_, err := q.Get(t.Context())
		require.NoError(t, err)
		errs := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := q.Get(t.Context())
				errs <- err
			}()
		}
		for range 3 {
			require.ErrorIs(t, <-errs, syscall.ENODATA)
		}
	})
}

// TestRequestQueueCloses: Close wakes those who wait for requests and for room, and gives back what nobody took.
func TestRequestQueueCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := verbs.NewRequestQueue(1)
		errs, roomy := make(chan error, 2), make(chan struct{})
		go func() {
			_, err := q.Get(t.Context())
			errs <- err
		}()
		synctest.Wait()
		a := new(request)
		require.NoError(t, q.Put(a, nil))
		require.NoError(t, <-errs)
		require.NoError(t, q.Put(a, nil))
		go func() {
			q.WaitForRoom()
			close(roomy)
		}()
		synctest.Wait()
		select {
		case <-roomy:
			t.Fatal("a full queue has room")
		default:
		}
		rest, first := q.Close()
		require.True(t, first)
		require.Equal(t, []verbs.CMID{a}, rest)
		<-roomy
		<-q.Gone()
		require.ErrorIs(t, q.Put(a, nil), net.ErrClosed)
		require.ErrorIs(t, q.Room(), net.ErrClosed)
		_, err := q.Get(t.Context())
		require.ErrorIs(t, err, net.ErrClosed)
		rest, first = q.Close()
		require.False(t, first)
		require.Empty(t, rest)
	})
}

// TestRequestQueueHasRoomAgain: taking and removing requests makes room.
func TestRequestQueueHasRoomAgain(t *testing.T) {
	for _, remove := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := verbs.NewRequestQueue(1)
			a := new(request)
			require.NoError(t, q.Put(a, nil))
			roomy := make(chan struct{})
			go func() {
				q.WaitForRoom()
				close(roomy)
			}()
			synctest.Wait()
			if remove {
				require.True(t, q.Remove(a))
			} else {
				_, err := q.Get(t.Context())
				require.NoError(t, err)
			}
			<-roomy
		})
	}
}
