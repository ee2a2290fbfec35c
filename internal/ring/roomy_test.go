package ring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
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
