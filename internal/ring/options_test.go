package ring

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestBusyPoll: how long a Read that finds nothing spins, as the counters tell.
func TestBusyPoll(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // on one processor nobody spins
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	const waits = 60
	// wait lets reads find nothing and returns how many of them spun and parked.
	wait := func(n int) (spins, parks uint64) {
		before := c.Stats()
		for range n {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Millisecond)))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		after := c.Stats()
		return after.Spins - before.Spins, after.Parks - before.Parks
	}
	require.NoError(t, c.SetBusyPoll(-1))
	spins, parks := wait(waits)
	require.Zero(t, spins, "never")
	require.Positive(t, parks)

	require.NoError(t, c.SetBusyPoll(20*time.Microsecond))
	spins, parks = wait(10)
	require.EqualValues(t, 10, spins, "always, and not for longer")
	require.Positive(t, parks)

	require.NoError(t, c.SetBusyPoll(0))
	wait(10)
	spins, parks = wait(waits)
	require.Less(t, spins, uint64(waits/4), "seldom, since it never pays")
	require.Positive(t, parks)

	// Spinning that pays is not given up.
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	require.NoError(t, c.SetBusyPoll(10*time.Second))
	before := c.Stats()
	go func() {
		time.Sleep(20 * time.Millisecond)
		write(t, s, []byte("x"))
	}()
	readN(t, c, 1)
	after := c.Stats()
	require.Equal(t, before.Spins+1, after.Spins)
}

// TestSetReadBuffer: what is published stays, and what comes after it has the new limit.
func TestSetReadBuffer(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	burst := func(n int) {
		var wg sync.WaitGroup
		wg.Go(func() { write(t, c, make([]byte, n)) })
		_, err := io.CopyN(io.Discard, struct{ io.Reader }{s}, int64(n))
		require.NoError(t, err)
		wait(t, &wg)
	}
	burst(8 << 20)
	require.Greater(t, s.Stats().ReadBuffer, 256<<10, "it has grown")
	require.NoError(t, s.SetReadBuffer(16<<10))
	burst(4 << 20)
	require.LessOrEqual(t, s.Stats().ReadBuffer, 32<<10)
	require.NoError(t, s.SetReadBuffer(4<<20))
	burst(32 << 20)
	require.Greater(t, s.Stats().ReadBuffer, 512<<10)
	require.NoError(t, s.SetReadBuffer(0)) // the default
	burst(8 << 20)
	require.LessOrEqual(t, s.Stats().ReadBuffer, defaultBuffer)
}

// TestSetWriteBuffer: it bounds what a Write takes that nobody reads, and raising it wakes one that waits.
func TestSetWriteBuffer(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	// taken is what a Write takes until there is no room for a byte.
	taken := func() int {
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		n := make(chan int, 1)
		go func() {
			k, err := c.Write(make([]byte, 16<<20))
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			n <- k
		}()
		var last uint64
		require.Eventually(t, func() bool {
			c.tx.mu.Lock()
			defer c.tx.mu.Unlock()
			still := c.tx.bytes == last && c.tx.stalled && !c.tx.ready()
			last = c.tx.bytes
			return still
		}, 10*time.Second, 30*time.Millisecond)
		require.NoError(t, c.SetWriteDeadline(time.Now()))
		return <-n
	}
	require.NoError(t, c.SetWriteBuffer(16<<10))
	fill := taken() // the peer's buffers, and ours
	require.LessOrEqual(t, c.Stats().WriteBuffer, 16<<10+minBuffer)
	require.NoError(t, c.SetWriteBuffer(512<<10))
	more := taken()
	require.InDelta(t, 512<<10-16<<10, more, 32<<10)
	require.LessOrEqual(t, c.Stats().WriteBuffer, 512<<10+minBuffer)

	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		write(t, c, make([]byte, 100<<10))
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, c.SetWriteBuffer(1<<20))
	within(t, 5*time.Second, "the writer that waited", func() { <-done })
	total := int64(fill + more + 100<<10)
	_, err := io.CopyN(io.Discard, struct{ io.Reader }{s}, total)
	require.NoError(t, err)
}

// TestWriteIsTakenBeforeItIsRead: as much as the send ring holds, at once.
func TestWriteIsTakenBeforeItIsRead(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	data := pattern(0, defaultBuffer)
	within(t, 5*time.Second, "Write", func() { write(t, c, data) })
	require.True(t, bytes.Equal(data, readN(t, s, len(data))))
}

// TestSetLingerBack: a negative value is the default again.
func TestSetLingerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
		c, s := w.pair()
		write(t, c, make([]byte, 200_000))
		for _, sec := range []int{0, 7, -1} {
			require.NoError(t, c.SetLinger(sec))
		}
		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, defaultLinger, time.Since(start))
		_, err := io.Copy(io.Discard, struct{ io.Reader }{s})
		require.NoError(t, err, "delivered in the background")
		require.NoError(t, s.Close())
	})
}

// TestLingerEndsEarly: once the last byte is acknowledged, and not with the time.
func TestLingerEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
		c, s := w.pair()
		data := pattern(0, 200_000)
		write(t, c, data)
		require.NoError(t, c.SetLinger(60))
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(10 * time.Second)
			readAll(t, s, data)
			assert.NoError(t, s.Close())
		})
		start := time.Now()
		require.NoError(t, c.Close())
		require.Greater(t, time.Since(start), 10*time.Second)
		require.Less(t, time.Since(start), 11*time.Second)
		wg.Wait()
	})
}

// TestKeepAliveIsOn without being asked for, as package net's is.
func TestKeepAliveIsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: time.Millisecond})
		c, s := w.pair()
		w.net.Partition(w.addr[0], w.addr[1])
		start := time.Now()
		for _, end := range []*Conn{c, s} {
			_, err := end.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.LessOrEqual(t, time.Since(start), 15*time.Second+9*15*time.Second)
		}
	})
}

// TestReadsExcludeReads: what a Read gives is a stretch of the stream, however many read.
func TestReadsExcludeReads(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	const words = 1 << 18
	go func() {
		b := make([]byte, 4*words)
		for i := range words {
			binary.BigEndian.PutUint32(b[4*i:], uint32(i))
		}
		write(t, c, b)
		assert.NoError(t, c.CloseWrite())
	}()
	var mu sync.Mutex
	seen := make([]bool, words)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			b := make([]byte, 40_000)
			for {
				n, err := s.Read(b)
				if err == io.EOF {
					return
				}
				if !assert.NoError(t, err) || !assert.Zero(t, n%4) {
					return
				}
				mu.Lock()
				first := binary.BigEndian.Uint32(b)
				for i := range n / 4 {
					if v := binary.BigEndian.Uint32(b[4*i:]); v != first+uint32(i) || seen[v] {
						t.Errorf("word %d of a read that began with %d: %d", i, first, v)
						break
					}
					seen[first+uint32(i)] = true
				}
				mu.Unlock()
			}
		})
	}
	wait(t, &wg)
	for i, ok := range seen {
		require.True(t, ok, "word %d", i)
	}
}

// TestDeadlinesInterruptCopies: ReadFrom while it waits for room, and WriteTo while it waits for bytes.
func TestDeadlinesInterruptCopies(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := c.ReadFrom(endless{})
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Positive(t, n)
	})
	wg.Go(func() {
		n, err := c.WriteTo(io.Discard)
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.EqualValues(t, 3, n)
	})
	write(t, s, []byte("abc"))
	require.Eventually(t, func() bool { return c.Stats().Parks >= 2 && c.Stats().BytesRead == 3 }, 5*time.Second, time.Millisecond)
	require.NoError(t, c.SetDeadline(time.Now()))
	wait(t, &wg)
	require.NoError(t, c.SetLinger(0))
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
