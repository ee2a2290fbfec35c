package verbs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEventQueue: order, one at a time, and no handler after close.
func TestEventQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q EventQueue
		var got []int
		var in int
		q.Post(Event{Type: 1})
		q.Post(Event{Type: 2})
		h := func(e Event) {
			in++
			require.Equal(t, 1, in)
			time.Sleep(time.Second)
			got = append(got, int(e.Type))
			in--
		}
		q.SetHandler(h)
		require.Empty(t, got, "never inside the call")
		synctest.Wait()
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int{1, 2}, got)
		q.Post(Event{Type: 3})
		q.Post(Event{Type: 4})
		time.Sleep(1500 * time.Millisecond) // within the second
		q.SetHandler(nil)
		q.Post(Event{Type: 5})
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []int{1, 2, 3, 4}, got)
		q.SetHandler(h)
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int{1, 2, 3, 4, 5}, got)
		q.Post(Event{Type: 6})
		q.Post(Event{Type: 7})
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		q.Close()
		require.Equal(t, 500*time.Millisecond, time.Since(start), "until the handler is out")
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, got)
		q.Post(Event{Type: 8})
		q.SetHandler(h)
		require.Len(t, got, 6)
	})
}
