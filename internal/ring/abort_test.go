package ring

import (
	"bytes"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestCutShort: what a peer got before the connection was given up is not taken for everything,
// whether this side closes in time or after a failure.
func TestCutShort(t *testing.T) {
	for name, closes := range map[string]time.Duration{"closed": 0, "failed": 25 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
				c, s := w.pair()
				data := pattern(0, 200000)
				write(t, c, data[:1000])
				first := make([]byte, 1000)
				_, err := io.ReadFull(s, first)
				require.NoError(t, err)
				// The transport is cut, and the communication manager is not: so it looks to a
				// process that was stopped, and finds in its socket what came last.
				t.Cleanup(w.net.Filter(func(f *simnet.Frame) bool {
					return len(f.Data) > wire.BTHLen && (f.Data[5] != 0 || f.Data[6] != 0 || f.Data[7] != byte(wire.QPNGSI))
				}))
				write(t, c, data[1000:])
				time.Sleep(closes)
				start := time.Now()
				require.NoError(t, c.Close())
				got, err := io.ReadAll(struct{ io.Reader }{s})
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.True(t, bytes.Equal(got, data[1000:1000+len(got)]))
				require.Less(t, time.Since(start), 20*time.Second)
				require.NoError(t, s.Close())
			})
		})
	}
}
