package ring

import (
	"bytes"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/shm"
)

// directPair is two ends over shared memory, which takes whatever a writer has inline.
func directPair(t *testing.T, cfg *Config) (c, s *Conn) {
	t.Helper()
	ln, err := shm.New().Listen(t.Context(), &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 1,
	})
	require.NoError(t, err)
	ch := make(chan accepted, 1)
	go func() {
		id, err := ln.GetRequest(t.Context())
		if err != nil {
			ch <- accepted{nil, err}
			return
		}
		Server(id, cfg, func(c *Conn, err error) { ch <- accepted{c, err} })
	}()
	id, err := shm.New().Resolve(t.Context(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: ln.Addr()})
	require.NoError(t, err)
	c, err = Client(t.Context(), id, cfg)
	require.NoError(t, err)
	a := <-ch
	require.NoError(t, a.err)
	t.Cleanup(func() {
		assert.NoError(t, c.Close())
		assert.NoError(t, a.c.Close())
		assert.NoError(t, ln.Close())
	})
	return c, a.c
}

// TestDirect: what fits goes straight from the caller's bytes into the peer's memory, in one message, and no memory is borrowed for it.
func TestDirect(t *testing.T) {
	c, s := directPair(t, nil)
	p := pattern(0, segInitial)
	n, err := c.Write(p)
	require.NoError(t, err)
	require.Equal(t, len(p), n)
	c.tx.mu.Lock()
	borrowed, messages := c.tx.borrowed, c.tx.messages
	c.tx.mu.Unlock()
	require.Zero(t, borrowed)
	require.EqualValues(t, 1, messages)
	got := make([]byte, len(p))
	_, err = io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(p, got))
}

// TestDirectUnread: a writer does not depend on a peer that reads, whether it looks for a chance to post directly or not: as much
// as there is send memory is taken at once, and arrives in order.
func TestDirectUnread(t *testing.T) {
	for name, poll := range map[string]time.Duration{"Adaptive": 0, "Parked": -1, "Spinning": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			c, s := directPair(t, &Config{BusyPoll: poll})
			const total = defaultBuffer
			require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
			for off := 0; off < total; off += 100_000 {
				_, err := c.Write(pattern(off, min(100_000, total-off)))
				require.NoError(t, err, off)
			}
			require.NoError(t, c.CloseWrite())
			got, err := io.ReadAll(s)
			require.NoError(t, err)
			require.True(t, bytes.Equal(pattern(0, total), got))
		})
	}
}

// TestDirectMixed: writes that are posted directly and writes that are staged keep their order, both ways at once.
func TestDirectMixed(t *testing.T) {
	c, s := directPair(t, nil)
	sizes := []int{1, 100, directLeast - 1, directLeast, 5000, directMost, directMost + 1, 300_000, 64}
	const total = 24 << 20
	var wg sync.WaitGroup
	for _, e := range []*Conn{c, s} {
		wg.Go(func() {
			for off, i := 0, 0; off < total; i++ {
				n, err := e.Write(pattern(off, min(sizes[i%len(sizes)], total-off)))
				if !assert.NoError(t, err) {
					return
				}
				off += n
			}
			assert.NoError(t, e.CloseWrite())
		})
		wg.Go(func() {
			b := make([]byte, 70_000)
			for off := 0; ; {
				n, err := e.Read(b[:1+(off*7)%len(b)])
				if !assert.True(t, bytes.Equal(pattern(off, n), b[:n]), off) {
					return
				}
				if off += n; err != nil {
					assert.ErrorIs(t, err, io.EOF)
					assert.Equal(t, total, off)
					return
				}
			}
		})
	}
	wait(t, &wg)
}
