package ring

import (
	"bytes"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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

// TestCork: behind much that is on its way, and while completions come, what does not fill its chunk waits for more, and never
// for longer than until the first completion after corkTime.
func TestCork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour) // the time is long since any completion
		part, full, base := &chunk{mem: make([]byte, 10), staged: 5}, &chunk{mem: make([]byte, 10), staged: 10}, &transmitter{}
		newBusy := func() *transmitter {
			return &transmitter{limit: defaultBuffer, flying: defaultBuffer / chunkShare, cur: part, completedAt: rc.Now()}
		}
		x := newBusy()
		require.True(t, x.corked(part))
		time.Sleep(time.Duration(corkTime) - 1)
		x.completedAt = rc.Now()
		require.True(t, x.corked(part), "more may come")
		time.Sleep(time.Nanosecond)
		require.False(t, x.corked(part), "it has waited long enough")
		require.True(t, x.corked(part), "what comes behind it waits again")

		x = newBusy()
		require.False(t, x.corked(full))
		x.end = endShutdown
		require.False(t, x.corked(part), "nothing more comes")
		x = newBusy()
		x.flying--
		require.False(t, x.corked(part), "the peer may wait for it")
		x = newBusy()
		time.Sleep(time.Duration(corkTime) + 1)
		require.False(t, x.corked(part), "a completion may be long in coming")
		x = newBusy()
		x.cur = full
		require.False(t, x.corked(part), "nothing is added to it any more")
		base.cur = &base.base
		base.base = *part
		require.False(t, base.corked(&base.base))
	})
}

// TestCorkedTail: the end of a burst arrives, whatever it waited for.
func TestCorkedTail(t *testing.T) {
	for _, delay := range []time.Duration{5 * time.Microsecond, 10 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simnet.Options{Delay: delay})
				c, s := w.pair()
				data := pattern(0, 3<<20)
				for range 3 {
					go func() {
						for part := range slices.Chunk(data, 10_000) {
							_, err := c.Write(part)
							assert.NoError(t, err)
						}
					}()
					require.True(t, bytes.Equal(data, readN(t, s, len(data))))
					time.Sleep(time.Second)
					c.tx.mu.Lock()
					require.Zero(t, c.tx.flying)
					require.Nil(t, c.tx.head)
					require.Zero(t, c.tx.borrowed)
					c.tx.mu.Unlock()
				}
			})
		})
	}
}
