//go:build linux

package shm

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestStrayBells: a peer rings for completion queues that are only being made. They are whole when it finds them.
func TestStrayBells(t *testing.T) {
	_, fds := held(t)
	x, y := connected(t, New(), New())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		l := y.id.(*cmid).link
		for num := uint32(0); ; num = (num + 1) % 4 {
			select {
			case <-stop:
				return
			default:
			}
			l.tx.Lock()
			n := len(l.tx.waiting)
			l.tx.Unlock()
			if n > 64 {
				time.Sleep(20 * time.Microsecond)
				continue
			}
			l.tell(header{Kind: msgBell, ID: num})
		}
	})
	for range 500 {
		rung := make(chan struct{}, 1)
		c, err := x.id.Device().CreateCQ(&verbs.CQAttr{Depth: 1, Notify: func() {
			select {
			case rung <- struct{}{}:
			default:
			}
		}})
		require.NoError(t, err)
		select {
		case <-rung:
		case <-time.After(10 * time.Second):
			require.Fail(t, "no bell")
		}
		require.NoError(t, c.Close())
	}
	close(stop)
	wg.Wait()
	for _, s := range []*side{x, y} {
		_, err := s.close()
		require.NoError(t, err)
	}
	requireNothingHeld(t, fds)
}
