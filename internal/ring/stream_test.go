package ring

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func TestNettest(t *testing.T) {
	bad := simnet.Options{Loss: 0.05, Dup: 0.02, Reorder: 0.02, Delay: 20 * time.Microsecond}
	for name, c := range map[string]struct {
		simnet.Options
		messages bool
	}{
		"clean":            {},
		"one percent lost": {simnet.Options{Loss: 0.01}, false},
		"five percent lost, duplicates, reordering": {bad, false},
		"without immediates":                        {simnet.Options{}, true},
		"the same over five percent lost":           {bad, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.Options)
			w.messages = c.messages
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c, s := w.pair()
				return netConn{c}, netConn{s}, func() { _, _ = c.Close(), s.Close() }, nil
			})
		})
	}
}

// TestTransfer moves bytes both ways at once, in writes and reads of all sizes.
func TestTransfer(t *testing.T) {
	sizes := []int{1, 7, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 3967, 3968, 3969, 4096, 5000, 16383, 16384, 16385, 65535, 65536, 65537, 300000}
	for name, o := range map[string]simnet.Options{
		"clean": {}, "small MTU": {MTU: 1500}, "lossy": {Loss: 0.01, Reorder: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, o)
			for _, buffers := range []int{0, 1, 20000} {
				w.cfg[0] = Config{ReadBuffer: buffers, WriteBuffer: buffers}
				c, s := w.pair()
				total := 4 << 20
				if o.Loss > 0 || buffers > 0 {
					total = 1 << 20
				}
				var wg sync.WaitGroup
				for i, end := range []*Conn{c, s} {
					rng := rand.New(rand.NewPCG(1, uint64(i)))
					wg.Go(func() {
						for off := 0; off < total; {
							n := min(sizes[rng.IntN(len(sizes))], total-off)
							k, err := end.Write(pattern(off, n))
							if !assert.NoError(t, err) || !assert.Equal(t, n, k) {
								return
							}
							off += n
						}
						assert.NoError(t, end.CloseWrite())
					})
					wg.Go(func() {
						buf := make([]byte, 300000)
						rng := rand.New(rand.NewPCG(2, uint64(i)))
						off := 0
						for {
							n, err := end.Read(buf[:sizes[rng.IntN(len(sizes))]])
							if n > 0 && !bytes.Equal(buf[:n], pattern(off, n)) {
								t.Errorf("bytes at %d differ", off)
								return
							}
							off += n
							if err == io.EOF {
								break
							}
							if !assert.NoError(t, err) {
								return
							}
						}
						assert.Equal(t, total, off)
					})
				}
				wait(t, &wg)
				st := c.Stats()
				assert.Equal(t, uint64(total), st.BytesRead)
				assert.Equal(t, uint64(total), st.BytesWritten)
				assert.LessOrEqual(t, st.ReadBuffer, max(bufferLimit(buffers), 4*minBuffer)+2<<20)
				require.NoError(t, c.Close())
				require.NoError(t, s.Close())
			}
		})
	}
}

// TestFullWindows: both ends write more than all buffers hold, and read only later.
func TestFullWindows(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, limit := range []int{0, 8192, 100000} {
		w.cfg[0] = Config{ReadBuffer: limit, WriteBuffer: limit}
		w.cfg[1] = w.cfg[0]
		c, s := w.pair()
		data := pattern(0, 4<<20)
		want := sha256.Sum256(data)
		var wg sync.WaitGroup
		for _, end := range []*Conn{c, s} {
			wg.Go(func() {
				// In small pieces: credits run out before space does.
				for off := 0; off < len(data); {
					n := min(len(data)-off, 100)
					if off > 1<<20 {
						n = min(len(data)-off, 50000)
					}
					if _, err := end.Write(data[off : off+n]); !assert.NoError(t, err) {
						return
					}
					off += n
				}
			})
			wg.Go(func() {
				time.Sleep(200 * time.Millisecond)
				h := sha256.New()
				_, err := io.CopyN(h, struct{ io.Reader }{end}, int64(len(data)))
				assert.NoError(t, err)
				assert.Equal(t, want[:], h.Sum(nil))
			})
		}
		wait(t, &wg)
		assert.NotZero(t, c.Stats().CreditStalls)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}
}

func TestReadFromWriteTo(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	data := pattern(0, 3<<20+17)
	var got bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := io.Copy(c, struct{ io.Reader }{bytes.NewReader(data)})
		assert.NoError(t, err)
		assert.Equal(t, int64(len(data)), n)
		assert.NoError(t, c.CloseWrite())
	})
	wg.Go(func() {
		n, err := io.Copy(&got, s)
		assert.NoError(t, err)
		assert.Equal(t, int64(len(data)), n)
	})
	wait(t, &wg)
	assert.True(t, bytes.Equal(data, got.Bytes()))
}

// TestReadFromDoesNotBlockWrite: a Reader that has nothing to give keeps nobody from writing.
func TestReadFromDoesNotBlockWrite(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	pr, pw := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := c.ReadFrom(pr)
		assert.NoError(t, err)
	})
	time.Sleep(20 * time.Millisecond)
	within(t, 5*time.Second, "write", func() {
		_, err := c.Write([]byte("direct"))
		assert.NoError(t, err)
	})
	buf := make([]byte, 6)
	_, err := io.ReadFull(s, buf)
	require.NoError(t, err)
	require.Equal(t, "direct", string(buf))
	_, err = pw.Write([]byte("piped!"))
	require.NoError(t, err)
	_, err = io.ReadFull(s, buf)
	require.NoError(t, err)
	require.Equal(t, "piped!", string(buf))
	require.NoError(t, pw.Close())
	wait(t, &wg)
}

// blockedWriter takes what it is given when it is told to.
type blockedWriter struct {
	got     bytes.Buffer
	entered chan struct{}
	release chan struct{}
}

func (b *blockedWriter) Write(p []byte) (int, error) {
	b.entered <- struct{}{}
	<-b.release
	return b.got.Write(p)
}

// TestWriteToLends: memory lent to a Writer stays as it is while others read,
// the peer writes on, and the connection is closed.
func TestWriteToLends(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	const first = segInitial // all of the first segment
	_, err := c.Write(pattern(0, first))
	require.NoError(t, err)
	bw := &blockedWriter{entered: make(chan struct{}), release: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.WriteTo(bw)
		assert.ErrorIs(t, err, net.ErrClosed)
	})
	<-bw.entered
	go func() { _, _ = c.Write(pattern(first, 1<<20)) }()
	buf := make([]byte, 100000)
	_, err = io.ReadFull(s, buf)
	require.NoError(t, err)
	require.True(t, bytes.Equal(buf, pattern(first, len(buf))))
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
	close(bw.release)
	wait(t, &wg)
	require.True(t, bytes.Equal(bw.got.Bytes(), pattern(0, bw.got.Len())))
	require.NotZero(t, bw.got.Len())
}

func TestWriteBuffers(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	var v net.Buffers
	var want []byte
	for i, n := range []int{3, 0, 100, 5000, 1, 70000, 0, 9, 200000, 0} {
		b := pattern(i*1000, n)
		v, want = append(v, b), append(want, b...)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := c.WriteBuffers(&v)
		assert.NoError(t, err)
		assert.Equal(t, int64(len(want)), n)
		assert.Empty(t, v)
	})
	got := make([]byte, len(want))
	_, err := io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	wait(t, &wg)
	// Small buffers go as one message.
	before := c.Stats().MessagesWritten
	small := net.Buffers{[]byte("a"), []byte("b"), []byte("c")}
	_, err = c.WriteBuffers(&small)
	require.NoError(t, err)
	require.Equal(t, before+1, c.Stats().MessagesWritten)
}

// TestDeadlineMidway: a write that its deadline ends has written what it says.
func TestDeadlineMidway(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	data := pattern(0, 16<<20)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	n, err := c.Write(data)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Positive(t, n)
	require.Less(t, n, len(data))
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout())
	k, err := c.Write(data)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, k)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))

	got := make([]byte, n)
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(got, data[:n]))
	_, err = c.Write([]byte("on"))
	require.NoError(t, err)
	_, err = io.ReadFull(s, got[:2])
	require.NoError(t, err)
	require.Equal(t, "on", string(got[:2]))
}

// TestReadDeadlineInThePast unblocks a read under way, and lifting it lets the next go on.
func TestReadDeadlineInThePast(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	for range 100 {
		errs := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			errs <- err
		}()
		require.NoError(t, c.SetReadDeadline(time.Unix(1, 0)))
		within(t, 5*time.Second, "read", func() { assert.ErrorIs(t, <-errs, os.ErrDeadlineExceeded) })
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		_, err := s.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
	}
}

// TestSteadyStateAllocatesNothing: neither end, nor the device between them.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates; only the transfer is tested")
	}
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	for _, size := range []int{1, 200, 1000, 5000, 65536} {
		out, in := make([]byte, size), make([]byte, size)
		turn := func() {
			if _, err := c.Write(out); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(s, in); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write(in); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, in); err != nil {
				t.Fatal(err)
			}
		}
		for range 300 {
			turn()
		}
		if n := testing.AllocsPerRun(300, turn); n >= 1 && !raceEnabled {
			t.Errorf("%d bytes: %v allocations a round trip", size, n)
		}
	}
}
