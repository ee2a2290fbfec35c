package netio

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPrefer has two Conns share a port, as two processes do, and moves each flow to the one that does
// not get it.
func TestPrefer(t *testing.T) {
	port, from := freePort(t), freePort(t)
	var sinks [2]*sink
	var us [2]*UDP
	for i := range us {
		sinks[i] = newSink()
		us[i] = listen(t, Config{Port: port, Handler: sinks[i], MaxPreferred: 16})
	}
	c := listen(t, Config{Port: from, RemotePort: port, Handler: newSink()})
	total := func() int { return sinks[0].count() + sinks[1].count() }
	for _, r := range [][2]netip.Addr{
		{addr("127.0.0.1"), addr("127.0.0.1")},
		{addr("127.0.0.1"), addr("127.0.0.9")}, // not the address that a route chooses
		{addr("::1"), addr("::1")},
	} {
		local, remote := r[0], r[1]
		for f := range uint32(4) {
			path := &Path{Local: local, Remote: remote}
			path.SetFlow(f)
			send := func(n int) {
				t.Helper()
				b := NewTxBatch()
				for i := range n {
					put(b, path, uint32(i), pattern(50))
				}
				have := total()
				require.NoError(t, c.Send(b))
				require.Eventually(t, func() bool { return total() == have+n }, 5*time.Second, 50*time.Microsecond)
			}
			send(1)
			holder := 0
			if sinks[1].count() == 1 {
				holder = 1
			}
			src := sinks[holder].take(t, 1)[0].Remote
			other := 1 - holder
			for range 3 { // again is no harm
				us[other].Prefer(remote, src)
				send(20)
				require.Len(t, sinks[other].take(t, 20), 20)
			}
			send(MaxBatch)
			for i, pk := range sinks[other].take(t, MaxBatch) {
				check(t, &pk, uint32(i), pattern(50))
				require.Equal(t, remote, pk.Local)
			}
			require.Zero(t, total())
		}
	}
}

func TestPreferEviction(t *testing.T) {
	before := fds(t)
	u, err := Listen(Config{Port: freePort(t), Handler: newSink(), MaxPreferred: 3})
	require.NoError(t, err)
	idle := fds(t)
	local := addr("127.0.0.1")
	have := func() (ports []int) {
		for k, p := range u.pref {
			require.NotNil(t, p.sock)
			ports = append(ports, int(k.remote.Port()))
		}
		slices.Sort(ports)
		return ports
	}
	for i := range uint16(5) {
		u.Prefer(local, netip.AddrPortFrom(local, 1000+i))
	}
	require.Equal(t, []int{1000, 1001, 1002}, have(), "none is idle yet")
	for _, p := range u.pref {
		p.sock.used.Add(-int64(2 * prefIdle))
	}
	u.pref[prefKey{local, netip.AddrPortFrom(local, 1000)}].sock.used.Add(-1)
	u.Prefer(local, netip.AddrPortFrom(local, 1003))
	require.Equal(t, []int{1001, 1002, 1003}, have())
	for i := range uint16(5) {
		u.Prefer(local, netip.AddrPortFrom(local, 1010+i))
	}
	require.Equal(t, []int{1003, 1010, 1011}, have())
	require.Len(t, *u.prefSocks.Load(), 3)
	require.Eventually(t, func() bool { return fds(t) == idle+2*3 }, 5*time.Second, time.Millisecond)

	// An address that is not ours is not tried again at once.
	for _, p := range u.pref {
		p.sock.used.Add(-int64(2 * prefIdle))
	}
	k := prefKey{addr("198.51.100.1"), netip.AddrPortFrom(local, 7)}
	u.Prefer(k.local, k.remote)
	first := u.pref[k]
	require.NotNil(t, first)
	require.Nil(t, first.sock)
	u.Prefer(k.local, k.remote)
	require.Same(t, first, u.pref[k])
	first.at -= int64(2 * prefRetry)
	u.Prefer(k.local, k.remote)
	require.NotSame(t, first, u.pref[k])
	require.NoError(t, u.Close())
	require.Equal(t, before, fds(t))
}

// TestFewFiles: a process that may open few files keeps most of them.
func TestFewFiles(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	for limit, want := range map[uint64]struct{ preferred, sources int }{
		60: {4, 4}, 80: {5, 5}, 504: {32, 16}, 512: {32, 16}, 1016: {64, 16}, 1024: {64, 16},
	} {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: old.Max}))
		u := listen(t, Config{Port: freePort(t), Handler: newSink(), SourcePorts: 16})
		require.Equal(t, want.preferred, u.cfg.MaxPreferred)
		require.Equal(t, want.sources, u.cfg.SourcePorts)
		require.NoError(t, u.Close())
		u = listen(t, Config{Port: freePort(t), Handler: newSink(), SourcePorts: 1})
		require.Equal(t, 1, u.cfg.SourcePorts)
		require.NoError(t, u.Close())
	}
}
