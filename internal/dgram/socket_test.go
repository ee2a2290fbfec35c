package dgram

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// A service is looked up once, and answers to where the question came from.
func TestServiceAndReply(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := w.socket()
	for i := range 3 {
		q := fmt.Sprint("question ", i)
		require.NoError(t, write(a, addr, q))
		from := w.hears(b, q)
		require.Equal(t, a.Local(), from)
		require.NoError(t, write(b, from, "answer"))
		require.Equal(t, b.Local().QPN, w.hears(a, "answer").QPN)
	}
	require.EqualValues(t, 1, b.listeners[0].Stats().Requests)
	require.Equal(t, Stats{Read: 3, Written: 3, BytesRead: 18, BytesWritten: 30}, a.Stats())
}

// One that was dialed reads what its peer sends and nothing else.
func TestDialed(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := New(w.config())
	defer a.Close()
	require.NoError(t, a.Dial(t.Context(), addr))
	require.NoError(t, write(a, Addr{}, "hello"))
	from := w.hears(b, "hello")
	other := w.socket()
	require.NoError(t, write(other, from, "not for you"))
	require.NoError(t, write(b, from, "welcome"))
	w.hears(a, "welcome")
	w.quiet(a)
	r, ok := a.Remote()
	require.True(t, ok)
	require.Equal(t, addr.Port, r.Port)
	require.Equal(t, b.Local().QPN, r.QPN)
	require.NotZero(t, a.Local().Port)
}

func TestNobodyServes(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	require.NoError(t, b.Close())
	a := w.socket() // somebody is there to say so
	for range 2 {
		require.ErrorIs(t, write(a, addr, "x"), syscall.ECONNREFUSED)
	}
	c := New(w.config())
	defer c.Close()
	require.ErrorIs(t, c.Dial(t.Context(), addr), syscall.ECONNREFUSED)
	require.ErrorIs(t, write(a, Addr{IP: w.addr}, "x"), syscall.EDESTADDRREQ)
	require.ErrorIs(t, write(a, Addr{}, "x"), syscall.EDESTADDRREQ)
}

// What is too long is refused before anybody is asked for, by an error with the limit in it.
func TestTooLong(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := w.socket()
	limit := a.MaxPayload()
	err := write(a, addr, strings.Repeat("x", limit+1))
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	require.ErrorContains(t, err, fmt.Sprint(limit))
	require.Zero(t, b.listeners[0].Stats().Requests)
	long := strings.Repeat("y", limit)
	require.NoError(t, write(a, addr, long))
	w.hears(b, long)
	w.quiet(b)
	n, err := a.Write([]Out{
		{Buffers: [][]byte{[]byte("one"), []byte(" two")}, To: addr}, {Buffers: [][]byte{make([]byte, limit), {1}}, To: addr},
	})
	require.NoError(t, err, "the first was sent")
	require.Equal(t, 1, n)
	w.hears(b, "one two")
}

// Many batches go through a send queue that is smaller.
func TestBatches(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := w.socket()
	const n = 1000
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	go func() {
		var outs []Out
		for i := range n {
			outs = append(outs, Out{Buffers: [][]byte{fmt.Append(nil, i)}, To: addr, Imm: uint32(i), HasImm: i%2 == 1})
			if len(outs) == 50 { // nobody holds a sender back but itself
				<-turn
				if k, err := a.Write(outs); err != nil || k != len(outs) {
					t.Error(k, err)
				}
				outs = outs[:0]
			}
		}
	}()
	require.NoError(t, b.SetReadDeadline(time.Now().Add(20*time.Second)))
	for i := range n {
		r, err := read(b)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), r.text)
		require.Equal(t, i%2 == 1, r.has)
		if r.has {
			require.EqualValues(t, i, r.imm)
		}
		if i%50 == 49 {
			turn <- struct{}{}
		}
	}
}

// A reader that does not read loses what exceeds its buffer, which is counted, and no more.
func TestSlowReader(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0, func(c *Config) { c.ReadBuffer = 32 * 4096 })
	a := w.socket()
	depth := b.MaxPayload()
	depth = 32 * 4096 / depth
	for i := range depth + 10 {
		require.NoError(t, write(a, addr, fmt.Sprint(i)))
	}
	require.Eventually(t, func() bool { return b.Stats().Dropped > 0 }, 10*time.Second, time.Millisecond)
	got := 0
	require.NoError(t, b.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	for {
		r, err := read(b)
		if err != nil {
			break
		}
		require.Equal(t, fmt.Sprint(got), r.text, "in order")
		got++
	}
	require.EqualValues(t, depth+10, uint64(got)+b.Stats().Dropped)
	require.NoError(t, b.SetReadBuffer(64*4096))
	require.NoError(t, b.SetReadDeadline(time.Time{}))
	dropped := b.Stats().Dropped
	for i := range depth + 10 {
		require.NoError(t, write(a, addr, fmt.Sprint(i)))
	}
	for i := range depth + 10 {
		w.hears(b, fmt.Sprint(i))
	}
	require.Equal(t, dropped, b.Stats().Dropped)
	require.ErrorIs(t, b.SetReadBuffer(0), syscall.EINVAL)
}

func TestDeadlines(t *testing.T) {
	w := newWorld(t)
	s, addr := w.serve(0)
	require.NoError(t, s.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := read(s)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, s.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = read(s)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, s.SetReadDeadline(time.Time{}))
	require.NoError(t, s.SetWriteDeadline(time.Now().Add(-time.Second)))
	require.ErrorIs(t, write(s, addr, "x"), os.ErrDeadlineExceeded)
	require.NoError(t, s.SetWriteDeadline(time.Time{}))
	require.NoError(t, write(s, addr, "to myself"))
	w.hears(s, "to myself")

	// A lookup that nobody answers, since Admit takes its time.
	hold := make(chan struct{})
	defer close(hold)
	_, busy := w.serve(0, func(c *Config) { c.Admit = func(verbs.CMID) error { <-hold; return nil } })
	require.NoError(t, s.SetWriteDeadline(time.Now().Add(30*time.Millisecond)))
	begun := time.Now()
	require.ErrorIs(t, write(s, busy, "x"), os.ErrDeadlineExceeded)
	require.Less(t, time.Since(begun), 5*time.Second)
	require.NoError(t, s.SetWriteDeadline(time.Time{}))
	done := make(chan error)
	go func() { done <- write(s, busy, "x") }()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, s.SetWriteDeadline(time.Now()), "one that waits already")
	require.ErrorIs(t, <-done, os.ErrDeadlineExceeded)
	// Others are not held up.
	require.NoError(t, s.SetWriteDeadline(time.Time{}))
	go func() { done <- write(s, busy, "x") }()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, write(s, addr, "beside"))
	w.hears(s, "beside")
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
}

func TestAdmit(t *testing.T) {
	w := newWorld(t)
	var asked atomic.Int32
	_, addr := w.serve(0, func(c *Config) {
		c.Admit = func(id verbs.CMID) error {
			asked.Add(1)
			if id.Request().PrivateData[0] != 7 {
				return errors.New("no")
			}
			return nil
		}
	})
	var rej *verbs.LookupError
	err := write(w.socket(), addr, "x")
	require.ErrorAs(t, err, &rej)
	require.Equal(t, verbs.SIDRRejected, rej.Status)
	require.NoError(t, write(w.socket(func(c *Config) { c.PrivateData = []byte{7} }), addr, "x"))
	require.EqualValues(t, 2, asked.Load())
}

// Close ends whatever waits.
func TestClose(t *testing.T) {
	w := newWorld(t)
	for range 20 {
		s, addr := w.serve(0)
		other, to := w.serve(0)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := read(s)
				for ; err == nil; _, err = read(s) {
				}
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				var err error
				for err == nil {
					err = write(s, to, "x")
				}
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				for range 50 {
					_ = write(other, addr, "y") // it may be closed
				}
			})
		}
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, s.Close())
		wg.Wait()
		require.ErrorIs(t, s.Close(), net.ErrClosed)
		require.ErrorIs(t, s.SetReadDeadline(time.Time{}), net.ErrClosed)
		_, err := s.Join(t.Context(), &Join{Group: netip.MustParseAddr("239.255.72.1")})
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, other.Close())
	}
}

// What was written before Close is sent.
func TestCloseSends(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	for range 10 {
		a := w.socket()
		for range 20 {
			require.NoError(t, write(a, addr, "last words"))
		}
		require.NoError(t, a.Close())
		for range 20 {
			w.hears(b, "last words")
		}
	}
}

// A service that comes back with another queue pair is found again by who has no answers.
func TestRestartedService(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := New(w.config())
	defer a.Close()
	require.NoError(t, a.Dial(t.Context(), addr))
	require.NoError(t, write(a, Addr{}, "one"))
	require.NoError(t, write(b, w.hears(b, "one"), "one"))
	w.hears(a, "one")
	require.NoError(t, b.Close())
	c, _ := w.serve(addr.Port)
	require.NotEqual(t, b.Local().QPN, c.Local().QPN)
	require.NoError(t, write(a, Addr{}, "lost"))
	begun := time.Now()
	deadline := time.Now().Add(10 * time.Second)
	for tries := 0; ; tries++ {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		if r, err := read(c); err == nil {
			require.NoError(t, write(c, r.from, "found"))
			break
		}
		require.True(t, time.Now().Before(deadline), "not found")
		require.NoError(t, write(a, Addr{}, "again"))
	}
	require.Less(t, time.Since(begun), 3*time.Second)
	w.hears(a, "found")
	remote, _ := a.Remote()
	require.Equal(t, c.Local().QPN, remote.QPN)

	// And one that does not come back is missed.
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return errors.Is(write(a, Addr{}, "x"), syscall.ECONNREFUSED) }, 10*time.Second, 20*time.Millisecond)
}

// A queue pair that fails is made anew, groups included.
func TestFailedQueuePair(t *testing.T) {
	w := newWorld(t)
	group := netip.MustParseAddr("239.255.72.2")
	b, addr := w.serve(0)
	a := w.socket()
	_, err := b.Join(t.Context(), &Join{Group: group})
	require.NoError(t, err)
	require.NoError(t, write(a, addr, "before"))
	w.hears(b, "before")
	old := (*b.eps.Load())[0]
	require.NoError(t, old.qp.ToError())
	done := make(chan received, 1)
	go func() {
		r, _ := read(b)
		done <- r
	}()
	require.Eventually(t, func() bool { return b.Local().QPN != old.num }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		if err := write(a, Addr{IP: group}, "after"); err != nil {
			return false
		}
		select {
		case r := <-done:
			return r.text == "after"
		case <-time.After(20 * time.Millisecond):
			return false
		}
	}, 10*time.Second, time.Millisecond)
	// And so is one that only writes.
	olda := (*a.eps.Load())[0]
	require.NoError(t, olda.qp.ToError())
	require.Eventually(t, func() bool {
		return write(a, addr, "new") == nil && a.Local().QPN != olda.num
	}, 10*time.Second, time.Millisecond)
}

// A raw queue pair may be the peer, and private data goes with the lookup.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector pools lose what they hold")
	}
	w := newWorld(t)
	b, addr := w.serve(0)
	a := w.socket()
	outs := []Out{{Buffers: [][]byte{make([]byte, 100)}, To: addr}}
	buf := make([]byte, 4096)
	var failed error
	exchange := func() {
		for range 100 {
			if _, err := a.Write(outs); err != nil {
				failed = err
			}
			if err := b.BeginRead(); err != nil {
				failed = err
			}
			d, _ := b.Next()
			copy(buf, d.Payload)
			b.EndRead()
		}
	}
	require.NoError(t, b.SetReadDeadline(time.Now().Add(20*time.Second)))
	best := testing.AllocsPerRun(1, exchange)
	for i := 0; i < 9 && best > 2; i++ {
		best = min(best, testing.AllocsPerRun(1, exchange))
	}
	require.NoError(t, failed)
	require.LessOrEqual(t, best, 2.0, "allocations for 100 datagrams")
}

// The table of peers is bounded, and who is forgotten is found again.
func TestManyPeers(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	b.peers.max = 4
	for range 3 {
		for range 8 {
			a := w.socket()
			require.NoError(t, write(a, addr, "hello"))
			from := w.hears(b, "hello")
			require.NoError(t, write(b, from, "hello yourself"))
			w.hears(a, "hello yourself")
			require.NoError(t, a.Close())
		}
		b.peers.mu.Lock()
		require.LessOrEqual(t, len(b.peers.of), 8)
		b.peers.mu.Unlock()
	}
}

// However many senders there are, a service that is written to is not looked up again.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	b, addr := w.serve(0)
	a := w.socket()
	a.peers.max = 4
	require.NoError(t, write(a, addr, "one"))
	from := w.hears(b, "one")
	e := (*a.eps.Load())[0]
	for i := range 100 {
		p := a.peers.sender(e, &verbs.WC{SrcQPN: uint32(i + 1000)}, &verbs.GRH{Source: w.addr, Dest: w.addr})
		require.Equal(t, uint32(i+1000), p.addr.QPN)
	}
	require.LessOrEqual(t, len(a.peers.of), 8)
	require.NoError(t, write(a, addr, "two"))
	require.Equal(t, from, w.hears(b, "two"))
	require.EqualValues(t, 1, b.listeners[0].Stats().Requests)
}

func TestOpenFails(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	cfg.Local = netip.MustParseAddr("192.0.2.1")
	s := New(cfg)
	require.ErrorIs(t, s.Open(t.Context(), ""), syscall.EADDRNOTAVAIL)
	require.NoError(t, s.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Open(ctx, ""), net.ErrClosed)
}
