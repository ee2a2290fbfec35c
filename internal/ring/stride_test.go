package ring

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestStride: of a writer that has gone on for long the queue is left to rest, of others it is not; what it leaves behind when it stops arrives
// soon all the same.
func TestStride(t *testing.T) {
	const piece = 64 << 10
	strides := func(c *Conn) bool {
		c.tx.mu.Lock()
		defer c.tx.mu.Unlock()
		return c.tx.stride.on
	}
	for name, end := range map[string]func(c *Conn) error{
		"stops":      func(*Conn) error { return nil },
		"CloseWrite": (*Conn).CloseWrite,
		"Close":      (*Conn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simnet.Options{})
				c, s := w.pair()
				require.NoError(t, c.SetBusyPoll(time.Millisecond)) // whoever spins with success leaves the queue at rest
				data := pattern(0, piece)
				var read atomic.Int64
				gate := make(chan struct{}, 1)
				var reader sync.WaitGroup
				reader.Go(func() {
					for b := make([]byte, piece); ; {
						_, err := io.ReadFull(s, b)
						if err == io.EOF {
							return
						}
						if !assert.NoError(t, err) || !assert.True(t, bytes.Equal(data, b)) {
							return
						}
						read.Add(piece)
						gate <- struct{}{}
						<-gate
					}
				})
				written := int64(0)
				for ; written < 4<<20; written += piece {
					require.False(t, strides(c))
					write(t, c, data)
				}
				gate <- struct{}{} // so that the writer has to leave something
				for ; !strides(c); written += piece {
					c.tx.mu.Lock()
					c.tx.stride.staged = strideLeast
					c.tx.mu.Unlock()
					write(t, c, data)
				}
				<-gate
				closed := make(chan error)
				go func() { closed <- end(c) }()
				time.Sleep(2*strideTime + time.Millisecond)
				synctest.Wait()
				require.Equal(t, written, read.Load())
				require.NoError(t, <-closed)
				time.Sleep(time.Second)
				c.tx.mu.Lock()
				require.False(t, c.tx.stride.on)
				require.Nil(t, c.tx.head)
				c.tx.mu.Unlock()
				_ = c.Close() // it may be closed already
				reader.Wait()
			})
		})
	}
}

// TestStrideIsShort: the queue rests no longer than somebody comes to look at it.
func TestStrideIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{})
		c, s := w.pair()
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := c.Write(make([]byte, 16<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		x := &c.tx
		locked := func(f func()) {
			x.mu.Lock()
			defer x.mu.Unlock()
			f()
		}
		look := func(on bool) {
			t.Helper()
			locked(func() {
				require.Equal(t, on, x.stride.on)
				require.Equal(t, !on, x.pending())
			})
		}
		synctest.Wait()
		locked(func() {
			x.stride.staged = strideLeast - 1
			x.stride.keep(c)
		})
		look(false)
		locked(func() {
			x.stride.staged = strideLeast
			x.stride.keep(c)
		})
		look(true)
		time.Sleep(strideTime / 2)
		locked(func() { x.stride.news++ })
		time.Sleep(strideTime / 2)
		synctest.Wait()
		look(true)
		time.Sleep(strideTime)
		synctest.Wait()
		look(false)
		locked(func() { require.Zero(t, x.stride.staged, "it has to prove itself anew") })

		locked(func() {
			x.stride.staged = strideLeast
			x.stride.keep(c)
		})
		look(true)
		go func() {
			_, err := io.ReadFull(s, make([]byte, n))
			assert.NoError(t, err)
		}()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		locked(func() {
			require.Nil(t, x.head, "though nobody writes")
			require.Zero(t, x.stride.staged, "it ran dry")
		})
	})
}
