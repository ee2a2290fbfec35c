package netio

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFresh: packets leave from the port that Fresh gave their path, another one each time, and from no socket that is
// not used any more.
func TestFresh(t *testing.T) {
	p := newPair(t, nil)
	for _, a := range []netip.Addr{addr("127.0.0.1"), addr("::1")} {
		idle := fds(t)
		path := &Path{Local: a, Remote: a}
		from := func(path *Path) uint16 {
			b := NewTxBatch()
			put(b, path, 7, pattern(100))
			put(b, path, 8, pattern(100))
			require.NoError(t, p.a.Send(b))
			ps := p.sb.take(t, 2)
			check(t, &ps[1], 8, pattern(100))
			require.Equal(t, ps[0].Remote, ps[1].Remote)
			return ps[0].Remote.Port()
		}
		usual := from(path)
		seen := map[uint16]bool{usual: true}
		flows := map[uint32]bool{}
		for range 10 {
			port := p.a.Fresh(path)
			require.False(t, seen[port])
			require.False(t, flows[path.Flow()])
			seen[port], flows[path.Flow()] = true, true
			require.Equal(t, port, from(path))
			require.Equal(t, port, from(path), "it stays")
		}
		require.Equal(t, idle+1, fds(t))

		// Others have ports of their own, as far as there are enough.
		paths := make([]*Path, maxFresh+10)
		mine := map[uint16]int{}
		for i := range paths {
			paths[i] = &Path{Local: a, Remote: a}
			mine[p.a.Fresh(paths[i])]++
		}
		require.Contains(t, []int{maxFresh - 1, maxFresh}, len(mine), "one is that of the path above, which may be shared too")
		require.LessOrEqual(t, fds(t), idle+maxFresh)
		for _, q := range paths {
			require.Contains(t, seen, from(path), "nobody took it")
			require.NotZero(t, mine[from(q)])
		}
		// What is given back is new for the next one.
		paths[0].SetFlow(3)
		require.NotContains(t, mine, from(paths[0]))
		for _, q := range paths {
			q.SetFlow(0)
		}
		port := p.a.Fresh(path)
		require.NotContains(t, mine, port)
		require.Equal(t, port, from(path))
		path.SetFlow(0)
		require.Equal(t, usual, from(path))
	}
}

// TestFreshRace gives ports out while others send.
func TestFreshRace(t *testing.T) {
	p := newPair(t, nil)
	a := addr("127.0.0.1")
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			path := &Path{Local: a, Remote: a}
			defer path.SetFlow(0)
			b := NewTxBatch()
			for i := range 200 {
				if i%3 == 0 && p.a.Fresh(path) == 0 {
					t.Error("no port")
					return
				}
				put(b, path, 1, pattern(20))
				if err := p.a.Send(b); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, p.b.Stats().BadICRC, "sent from another port than the one in the ICRC")
	closed := listen(t, Config{Port: freePort(t), Handler: newSink()})
	require.NoError(t, closed.Close())
	before := fds(t)
	require.Zero(t, closed.Fresh(&Path{Local: a, Remote: a}))
	require.Equal(t, before, fds(t))
}

// TestFreshWithoutFiles: where there are no descriptors, the ports that are open must do.
func TestFreshWithoutFiles(t *testing.T) {
	p := newPair(t, nil)
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}))
	port := p.a.Fresh(path)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.Zero(t, port)
	b := NewTxBatch()
	put(b, path, 7, pattern(100))
	require.NoError(t, p.a.Send(b))
	p.sb.take(t, 1)
	require.NotZero(t, p.a.Fresh(path))
}

// TestPreferredLast: of two that ask for a flow the last one gets it.
func TestPreferredLast(t *testing.T) {
	port, from := freePort(t), freePort(t)
	var sinks [2]*sink
	var us [2]*UDP
	for i := range us {
		sinks[i] = newSink()
		us[i] = listen(t, Config{Port: port, Handler: sinks[i]})
	}
	c := listen(t, Config{Port: from, RemotePort: port, Handler: newSink()})
	for _, a := range []netip.Addr{addr("127.0.0.1"), addr("::1")} {
		for i := range 4 {
			path := &Path{Local: a, Remote: a}
			src := netip.AddrPortFrom(a, c.Fresh(path))
			us[i%2].Prefer(a, src)
			us[1-i%2].Prefer(a, src)
			b := NewTxBatch()
			put(b, path, 1, pattern(20))
			require.NoError(t, c.Send(b))
			sinks[1-i%2].take(t, 1)
			path.SetFlow(0)
		}
	}
}
