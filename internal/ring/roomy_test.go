package ring

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestRoomy: a writer that waits for room is woken for a quarter of it, not for each chunk, and always once all is back.
func TestRoomy(t *testing.T) {
	for _, limit := range []int{rc.MinBlock, 5 * rc.MinBlock, 1 << 20} {
		x := transmitter{limit: limit, borrowed: limit}
		wakes := 0
		for ready := false; x.borrowed > 0; x.borrowed -= rc.MinBlock {
			require.False(t, x.starved)
			if x.ready() && !ready {
				ready = true
				wakes++
				require.GreaterOrEqual(t, limit-x.borrowed, limit/4)
			}
		}
		require.LessOrEqual(t, wakes, 1)
		require.True(t, x.ready(), "limit %d", limit)
		x.roomOnly = true
		require.True(t, x.ready())
		x.starved = true
		require.False(t, x.ready(), "no memory")
		x.roomOnly = false
		require.True(t, x.ready(), "its own chunk")
		x.borrowed = rc.MinBlock
		require.False(t, x.ready(), "what is borrowed comes back")
	}
}

// TestReadFromStarved: who gets no memory to read into waits for what is borrowed to come back, and has the error once nothing is.
func TestReadFromStarved(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := c.Write(make([]byte, 16<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	parks := c.Stats().Parks
	lent := make(chan error, 1)
	go func() {
		_, err := c.lendChunk(2 * rc.MaxBlock) // more than there is in one piece
		lent <- err
	}()
	require.Eventually(t, func() bool { return c.Stats().Parks > parks }, 5*time.Second, time.Millisecond)
	require.Empty(t, lent)
	readN(t, s, n)
	within(t, 5*time.Second, "lendChunk", func() { require.Error(t, <-lent) })
	_, err = c.ReadFrom(strings.NewReader("goes on"))
	require.NoError(t, err)
	require.Equal(t, "goes on", string(readN(t, s, 7)))
}
