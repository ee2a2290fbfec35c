package dgram

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Drops are counted once, also while the socket is being closed: a count that went back would look like a new start of the program.
func TestDropsWhileClosing(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		b, addr := w.serve(0, func(c *Config) { c.ReadBuffer = 1 })
		a := w.socket()
		for i := range minDepth + 10 {
			require.NoError(t, write(a, addr, fmt.Sprint(i)))
		}
		require.Eventually(t, func() bool { return b.Stats().Dropped > 0 }, 10*time.Second, time.Millisecond)
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		last := uint64(0)
		for done := false; !done; {
			select {
			case err := <-closed:
				require.NoError(t, err)
				done = true
			default:
			}
			now := b.Stats().Dropped
			require.GreaterOrEqual(t, now, last)
			last = now
		}
		require.LessOrEqual(t, last, uint64(minDepth+10))
	}
}
