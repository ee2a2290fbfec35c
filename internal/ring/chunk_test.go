package ring

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestChunksGrow: what is written while nothing may be posted gathers in few chunks, and so in few messages. The first write
// does not wait for others.
func TestChunksGrow(t *testing.T) {
	for _, x := range []struct{ write, writes, chunks int }{
		{chunkFirst, 12, 7},
		{3 * chunkMax, 1, 5},
		{rc.MinBlock, 128, 8},
	} {
		t.Run(strconv.Itoa(x.write), func(t *testing.T) {
			w := newWorld(t, simnet.Options{})
			c, s := w.pair()
			c.tx.mu.Lock()
			c.tx.open = false
			c.tx.mu.Unlock()
			data := make([]byte, x.write)
			for i := range x.writes {
				data[0] = byte(i)
				write(t, c, data)
			}
			c.tx.mu.Lock()
			n := 0
			for ch := c.tx.all; ch != nil; ch = ch.after {
				require.LessOrEqual(t, len(ch.mem), chunkMax)
				if n++; ch.after == nil {
					require.LessOrEqual(t, len(ch.mem), chunkFirst)
				}
			}
			require.LessOrEqual(t, n, x.chunks, "%d writes of %d", x.writes, x.write)
			require.LessOrEqual(t, c.tx.borrowed, c.tx.limit)
			c.tx.open = true
			c.pump()
			c.unlockTx()
			for i := range x.writes {
				data[0] = byte(i)
				require.True(t, bytes.Equal(data, readN(t, s, len(data))))
			}
		})
	}
}

// TestChunksLeaveRoom: of little send memory no chunk takes all.
func TestChunksLeaveRoom(t *testing.T) {
	for _, limit := range []int{minBuffer, 96 << 10, 512 << 10} {
		t.Run(strconv.Itoa(limit), func(t *testing.T) {
			w := newWorld(t, simnet.Options{})
			c, _ := w.pair()
			c.tx.mu.Lock()
			c.tx.open = false
			c.tx.limit = limit
			for {
				ch, err := c.borrow(chunkMax)
				require.NoError(t, err)
				if ch == nil {
					break
				}
				require.LessOrEqual(t, len(ch.mem), max(chunkFirst, limit/chunkShare))
				ch.staged = len(ch.mem)
			}
			require.Less(t, limit-c.tx.borrowed, rc.MinBlock)
			for c.tx.all != nil {
				c.giveBack(c.tx.all)
			}
			c.tx.open = true
			c.tx.mu.Unlock()
		})
	}
}
