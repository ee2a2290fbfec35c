package ring

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// readAll reads to the end and checks what came.
func readAll(t testing.TB, c *Conn, want []byte) {
	t.Helper()
	got, err := io.ReadAll(struct{ io.Reader }{c})
	assert.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "%d bytes, want %d", len(got), len(want))
}

func write(t testing.TB, c *Conn, b []byte) {
	t.Helper()
	n, err := c.Write(b)
	assert.NoError(t, err)
	assert.Equal(t, len(b), n)
}

// TestHalfClose: CloseWrite delivers all and an end; the other direction stays.
func TestHalfClose(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	request, answer := pattern(0, 300000), pattern(5, 1<<20)
	c, s := w.pair()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	write(t, c, request)
	require.NoError(t, c.CloseWrite())
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
	readAll(t, s, request)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	var wg sync.WaitGroup
	wg.Go(func() {
		write(t, s, answer)
		assert.NoError(t, s.CloseWrite())
	})
	readAll(t, c, answer)
	wait(t, &wg)
	// The deadline set before is still in force.
	require.NoError(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	within(t, time.Second, "close", func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	})
}

// TestCloseMatrix ends connections by every pair of acts of its two ends, at once.
func TestCloseMatrix(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	acts := map[string]func(c *Conn){
		"CloseWrite":            func(c *Conn) { _ = c.CloseWrite() },
		"CloseRead":             func(c *Conn) { _ = c.CloseRead() },
		"CloseRead, CloseWrite": func(c *Conn) { _, _ = c.CloseRead(), c.CloseWrite() },
		"CloseWrite, CloseRead": func(c *Conn) { _, _ = c.CloseWrite(), c.CloseRead() },
		"CloseWrite twice":      func(c *Conn) { _, _ = c.CloseWrite(), c.CloseWrite() },
		"Close":                 func(c *Conn) { _ = c.Close() },
		"abort":                 func(c *Conn) { _, _ = c.SetLinger(0), c.Close() },
		"nothing":               func(c *Conn) {},
	}
	for an, a := range acts {
		for bn, b := range acts {
			t.Run(an+"/"+bn, func(t *testing.T) {
				c, s := w.pair()
				var wg sync.WaitGroup
				for end, act := range map[*Conn]func(*Conn){c: a, s: b} {
					wg.Go(func() {
						_, _ = end.Write(pattern(0, 5000))
						act(end)
						// Whatever the other does: nothing blocks for ever, and what comes is in order.
						_ = end.SetDeadline(time.Now().Add(100 * time.Millisecond))
						got, _ := io.ReadAll(struct{ io.Reader }{end})
						sent := append(pattern(0, 5000), pattern(0, 5000)...)
						assert.True(t, bytes.HasPrefix(sent, got), "%d bytes", len(got))
						_, _ = end.Write(pattern(0, 5000))
						_ = end.Close()
					})
				}
				wait(t, &wg)
			})
		}
	}
}

// TestCloseReadTellsNobody: the peer may go on writing; with both directions closed it may not.
func TestCloseReadTellsNobody(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	require.NoError(t, c.CloseRead())
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	within(t, 10*time.Second, "write to a deaf peer", func() { write(t, s, make([]byte, 4<<20)) })
	write(t, c, []byte("still here"))
	b := make([]byte, 10)
	_, err = io.ReadFull(s, b)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	_, err = s.Read(b)
	require.ErrorIs(t, err, io.EOF)
	_, err = s.Write(b)
	require.ErrorIs(t, err, syscall.EPIPE)
}

// TestPeerClosed: once all is read, every later Read gives io.EOF and every Write EPIPE, and none blocks.
func TestPeerClosed(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	write(t, c, []byte("last words"))
	require.NoError(t, c.Close())
	readAll(t, s, []byte("last words"))
	for range 3 {
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, err = s.Write(make([]byte, 1<<20))
		require.ErrorIs(t, err, syscall.EPIPE)
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Close(), net.ErrClosed)
	for _, end := range []*Conn{c, s} {
		_, err := end.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = end.Read(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = end.Write(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = end.ReadFrom(bytes.NewReader([]byte("x")))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = end.WriteTo(io.Discard)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = end.WriteBuffers(&net.Buffers{[]byte("x")})
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, end.CloseRead(), net.ErrClosed)
		require.ErrorIs(t, end.CloseWrite(), net.ErrClosed)
		require.ErrorIs(t, end.SetDeadline(time.Time{}), net.ErrClosed)
		require.ErrorIs(t, end.SetReadDeadline(time.Time{}), net.ErrClosed)
		require.ErrorIs(t, end.SetWriteDeadline(time.Time{}), net.ErrClosed)
		require.ErrorIs(t, end.SetLinger(1), net.ErrClosed)
		require.ErrorIs(t, end.SetReadBuffer(1), net.ErrClosed)
		require.ErrorIs(t, end.SetWriteBuffer(1), net.ErrClosed)
		require.ErrorIs(t, end.SetBusyPoll(0), net.ErrClosed)
		require.ErrorIs(t, end.SetKeepAliveConfig(net.KeepAliveConfig{}), net.ErrClosed)
		_ = end.Stats()
	}
}

// TestLastWordsAreHeard: a writer that finds its peer gone is not told so while what the peer said last is unread, so that the reader, who
// can tell why, comes first. What is written meanwhile is lost, as with TCP, and bounded: a program that never reads is told too.
func TestLastWordsAreHeard(t *testing.T) {
	words := []byte("certificate required")
	writes := map[string]func(c *Conn, b []byte) (int, error){
		"Write":        (*Conn).Write,
		"WriteBuffers": func(c *Conn, b []byte) (int, error) { n, err := c.WriteBuffers(&net.Buffers{b}); return int(n), err },
		"ReadFrom":     func(c *Conn, b []byte) (int, error) { n, err := c.ReadFrom(bytes.NewReader(b)); return int(n), err },
	}
	w := newWorld(t, simnet.Options{})
	// gone returns a connection whose peer has said its last words and closed.
	gone := func(t *testing.T) *Conn {
		c, s := w.pair()
		write(t, s, words)
		require.NoError(t, s.Close())
		require.Eventually(t, func() bool {
			c.tx.mu.Lock()
			defer c.tx.mu.Unlock()
			return c.tx.peerGone
		}, 5*time.Second, time.Millisecond)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for name, put := range writes {
		t.Run(name, func(t *testing.T) {
			c := gone(t)
			for range 3 {
				n, err := put(c, make([]byte, 1000))
				require.NoError(t, err)
				require.Equal(t, 1000, n)
			}
			require.Equal(t, words[:7], readN(t, c, 7))
			_, err := put(c, make([]byte, 1000))
			require.NoError(t, err, "there is more to read")
			readAll(t, c, words[7:])
			n, err := put(c, make([]byte, 1))
			require.ErrorIs(t, err, syscall.EPIPE)
			require.Zero(t, n)
		})
		t.Run(name+", nobody reads", func(t *testing.T) {
			c := gone(t)
			var err error
			taken := 0
			for err == nil {
				require.LessOrEqual(t, taken, lostMost)
				var n int
				n, err = put(c, make([]byte, 4096))
				taken += n
			}
			require.ErrorIs(t, err, syscall.EPIPE)
			require.Positive(t, taken)
			_, err = put(c, make([]byte, 1))
			require.ErrorIs(t, err, syscall.EPIPE, "once told, it stays so")
			readAll(t, c, words)
		})
		t.Run(name+", closed for reading", func(t *testing.T) {
			c := gone(t)
			require.NoError(t, c.CloseRead())
			_, err := put(c, make([]byte, 1))
			require.ErrorIs(t, err, syscall.EPIPE)
		})
		t.Run(name+", closed for writing", func(t *testing.T) {
			c := gone(t)
			require.NoError(t, c.CloseWrite())
			_, err := put(c, make([]byte, 1))
			require.ErrorIs(t, err, syscall.EPIPE)
		})
		t.Run(name+", too late", func(t *testing.T) {
			c := gone(t)
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(-time.Second)))
			_, err := put(c, make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}

// TestDataJustBeforeClose arrives, with and without losses, whatever fits in which buffer.
func TestDataJustBeforeClose(t *testing.T) {
	for name, o := range map[string]simnet.Options{"clean": {}, "lossy": {Loss: 0.02}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, o)
			for round := range 30 {
				size := []int{1, 100, 4000, 16384, 40000, 500000, 3 << 20}[round%7]
				data := pattern(round, size)
				c, s := w.pair()
				var wg sync.WaitGroup
				wg.Go(func() {
					write(t, c, data)
					assert.NoError(t, c.Close())
				})
				wg.Go(func() {
					if round%2 == 1 {
						time.Sleep(time.Millisecond)
					}
					readAll(t, s, data)
					assert.NoError(t, s.Close())
				})
				wait(t, &wg)
			}
		})
	}
}

// TestBothCloseAtOnce leaves nothing behind and takes no time, of a clock that a busy machine does not move. Half of the
// connections have data on the way.
func TestBothCloseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{})
		rounds := 10000
		if raceEnabled {
			rounds = 500
		}
		for i := range rounds {
			c, s := w.pair()
			if i%2 == 0 {
				write(t, c, pattern(0, 3000))
				write(t, s, pattern(0, 3000))
			}
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() { assert.NoError(t, c.Close()) })
			wg.Go(func() { assert.NoError(t, s.Close()) })
			wait(t, &wg)
			require.Less(t, time.Since(start), 10*time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, Drain(ctx))
	})
}

// TestCloseUnblocks a Read and a Write that wait.
func TestCloseUnblocks(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	rounds := 1000
	if raceEnabled {
		rounds = 200
	}
	for i := range rounds {
		c, s := w.pair()
		if i%10 != 0 {
			_ = c.SetLinger(0) // else every close waits for what cannot be delivered
		} else {
			go func() { _, _ = io.Copy(io.Discard, s) }()
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.Read(make([]byte, 1))
			assert.ErrorIs(t, err, net.ErrClosed)
		})
		wg.Go(func() {
			for {
				if n, err := c.Write(make([]byte, 1<<20)); err != nil {
					assert.ErrorIs(t, err, net.ErrClosed)
					assert.Less(t, n, 1<<20)
					break
				}
			}
		})
		if i%3 == 0 {
			time.Sleep(time.Duration(i%7) * 100 * time.Microsecond)
		}
		wg.Go(func() { assert.NoError(t, c.Close()) })
		wait(t, &wg)
		_ = s.Close()
	}
}

// TestCloseReadUnblocks a Read that waits.
func TestCloseReadUnblocks(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for i := range 200 {
		c, s := w.pair()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := c.Read(make([]byte, 1))
			assert.ErrorIs(t, err, io.EOF)
		})
		if i%2 == 0 {
			time.Sleep(time.Millisecond) // it waits by then
		}
		assert.NoError(t, c.CloseRead())
		wait(t, &wg)
		_, _ = c.Close(), s.Close()
	}
}

// TestAbort: the peer sees a reset and not an end, also of what it has not read yet.
func TestAbort(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, size := range []int{0, 100, 100000, 4 << 20} {
		c, s := w.pair()
		errs := make(chan error, 2)
		go func() {
			_, err := io.Copy(io.Discard, struct{ io.Reader }{s})
			errs <- err
		}()
		go func() {
			var err error
			for err == nil {
				_, err = s.Write(make([]byte, 100000))
			}
			errs <- err
		}()
		_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = c.Write(make([]byte, size))
		require.NoError(t, c.SetLinger(0))
		within(t, 500*time.Millisecond, "abort", func() { require.NoError(t, c.Close()) })
		within(t, 5*time.Second, "peer", func() {
			require.ErrorIs(t, <-errs, syscall.ECONNRESET)
			require.ErrorIs(t, <-errs, syscall.ECONNRESET)
		})
		require.NoError(t, s.Close())
	}
}

// TestLinger: Close waits 2 s for a peer that does not read, data is kept for 15 s
// more, and a peer that has not read it by then sees a reset.
func TestLinger(t *testing.T) {
	data := pattern(0, 200000)
	t.Run("read in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
			c, s := w.pair()
			write(t, c, data)
			start := time.Now()
			require.NoError(t, c.Close())
			require.Equal(t, 2*time.Second, time.Since(start))
			time.Sleep(14 * time.Second)
			readAll(t, s, data)
			require.NoError(t, s.Close())
		})
	})
	t.Run("set", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
			c, s := w.pair()
			write(t, c, data)
			require.NoError(t, c.SetLinger(5))
			start := time.Now()
			require.NoError(t, c.Close())
			require.Equal(t, 5*time.Second, time.Since(start))
			readAll(t, s, data)
		})
	})
	t.Run("too late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
			c, s := w.pair()
			write(t, c, data)
			require.NoError(t, c.Close())
			time.Sleep(20 * time.Second)
			got, err := io.ReadAll(struct{ io.Reader }{s})
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.True(t, bytes.Equal(got, data[:len(got)]))
			require.Less(t, len(got), len(data))
		})
	})
	t.Run("nothing to wait for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
			c, s := w.pair()
			start := time.Now()
			require.NoError(t, c.Close())
			require.Less(t, time.Since(start), time.Millisecond)
			require.NoError(t, s.Close())
			require.NoError(t, Drain(t.Context()))
			require.Less(t, time.Since(start), 100*time.Millisecond)
		})
	})
	t.Run("peer gone", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
			c, s := w.pair()
			w.net.Partition(w.addr[0], w.addr[1])
			write(t, c, data)
			start := time.Now()
			require.NoError(t, c.Close())
			require.Equal(t, 2*time.Second, time.Since(start))
			require.NoError(t, Drain(t.Context()))
			require.LessOrEqual(t, time.Since(start), 20*time.Second)
			require.NoError(t, s.Close())
			require.NoError(t, Drain(t.Context()))
		})
	})
}

// TestKeepAlive: a peer that is gone is noticed within Idle + Interval*Count, idle or
// with data on its way, and a living one never is.
func TestKeepAlive(t *testing.T) {
	ka := net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: 2 * time.Second, Count: 4}
	const limit = 11 * time.Second
	for name, busy := range map[string]bool{"idle": false, "data on its way": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simnet.Options{Delay: time.Millisecond})
				w.cfg = [2]Config{{KeepAlive: ka}, {KeepAlive: ka}}
				c, s := w.pair()
				time.Sleep(time.Hour) // idle for long is no offence
				write(t, c, []byte("x"))
				_, err := s.Read(make([]byte, 1))
				require.NoError(t, err)
				time.Sleep(time.Second)
				w.net.Partition(w.addr[0], w.addr[1])
				start := time.Now()
				if busy {
					write(t, c, []byte("in vain"))
				}
				_, err = c.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				took := time.Since(start)
				require.LessOrEqual(t, took, limit)
				require.Greater(t, took, limit-3*time.Second)
				_, err = c.Write([]byte("x"))
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				within(t, time.Second, "close", func() { require.NoError(t, c.Close()) })
				time.Sleep(limit)
				_, err = s.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
			})
		})
	}
	t.Run("off, with data on its way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: time.Millisecond})
			w.cfg[0] = Config{NoKeepAlive: true}
			c, _ := w.pair()
			w.net.Partition(w.addr[0], w.addr[1])
			write(t, c, make([]byte, 100000))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
		})
	})
	t.Run("switched on and off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, simnet.Options{Delay: time.Millisecond})
			w.cfg = [2]Config{{NoKeepAlive: true}, {NoKeepAlive: true}}
			c, s := w.pair()
			w.net.Partition(w.addr[0], w.addr[1])
			_ = c.SetReadDeadline(time.Now().Add(time.Hour))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nobody asked")
			_ = c.SetReadDeadline(time.Time{})
			start := time.Now()
			require.NoError(t, c.SetKeepAliveConfig(ka))
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.LessOrEqual(t, time.Since(start), limit)
			require.NoError(t, s.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true}))
			start = time.Now()
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.LessOrEqual(t, time.Since(start), 150*time.Second, "package net's defaults")
		})
	})
}
