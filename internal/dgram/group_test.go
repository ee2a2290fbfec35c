package dgram

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	group1 = netip.MustParseAddr("239.255.72.11")
	group2 = netip.MustParseAddr("239.255.72.12")
)

func (w *world) joins(s *Socket, j Join) Addr {
	w.t.Helper()
	a, err := s.Join(w.t.Context(), &j)
	require.NoError(w.t, err)
	return a
}

// All members get a datagram once, others none; a reply goes to one.
func TestGroup(t *testing.T) {
	w := newWorld(t)
	a, b, c, other := w.socket(), w.socket(), w.socket(), w.socket()
	require.NoError(t, a.SetLoopback(false))
	for _, s := range []*Socket{a, b, c} {
		g := w.joins(s, Join{Group: group1})
		require.Equal(t, group1, g.IP)
	}
	w.joins(other, Join{Group: group2})
	require.NoError(t, write(a, Addr{IP: group1, Port: 4000}, "all"))
	from := w.hears(b, "all")
	w.hears(c, "all")
	require.NoError(t, write(b, from, "me"))
	w.hears(a, "me")
	for _, s := range []*Socket{a, b, c, other} {
		w.quiet(s)
	}
	require.NoError(t, a.SetLoopback(true))
	require.NoError(t, write(a, Addr{IP: group1}, "all again"))
	for _, s := range []*Socket{a, b, c} {
		w.hears(s, "all again")
	}
	require.NoError(t, b.Leave(group1, netip.Addr{}))
	require.ErrorIs(t, b.Leave(group1, netip.Addr{}), syscall.EADDRNOTAVAIL)
	require.NoError(t, write(a, Addr{IP: group1}, "few"))
	w.hears(c, "few")
	w.quiet(b)
	_, err := c.Join(t.Context(), &Join{Group: group1})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	// Who is no member may send all the same.
	require.NoError(t, write(other, Addr{IP: group1}, "from outside"))
	w.hears(c, "from outside")
	w.quiet(other)
}

// A member that does not read loses what exceeds its own buffer, and nobody else loses anything.
func TestSlowMember(t *testing.T) {
	w := newWorld(t)
	slow, quick, a := w.socket(func(c *Config) { c.ReadBuffer = 16 * 4096 }), w.socket(), w.socket()
	w.joins(slow, Join{Group: group1})
	w.joins(quick, Join{Group: group1})
	const n = 400
	for i := range n {
		require.NoError(t, write(a, Addr{IP: group1}, fmt.Sprint(i)))
		w.hears(quick, fmt.Sprint(i))
	}
	require.Zero(t, quick.Stats().Dropped)
	require.EqualValues(t, n-16, slow.Stats().Dropped)
	for i := range 16 {
		w.hears(slow, fmt.Sprint(i))
	}
	w.quiet(slow)
}

func TestGroupWays(t *testing.T) {
	w := newWorld(t)
	b, a := w.socket(), New(&Config{Resolve: w.resolve, Intern: w.config().Intern})
	defer a.Close()
	for i := range 2 {
		fresh := w.joins(a, Join{Group: netip.IPv4Unspecified(), Local: w.addr})
		require.True(t, fresh.IP.IsMulticast())
		require.NotZero(t, fresh.QKey)
		w.joins(b, Join{Group: fresh.IP})
		require.NoError(t, write(b, fresh, "fresh"))
		w.hears(a, "fresh")
		w.hears(b, "fresh")
		if i == 0 {
			require.NoError(t, a.Leave(fresh.IP, w.addr))
		}
	}
	g := w.joins(a, Join{MGID: netip.AddrFrom16(group1.As16()), Local: w.addr})
	require.Equal(t, group1, g.IP)
	require.NoError(t, write(b, g, "unmapped"))
	w.hears(a, "unmapped")
	w.joins(b, Join{Group: group2, SendOnly: true})
	w.joins(a, Join{Group: group2, Local: w.addr})
	require.NoError(t, write(b, Addr{IP: group2}, "only sends"))
	w.hears(a, "only sends")
	w.quiet(b)
	for _, j := range []Join{{Group: w.addr}, {MGID: netip.MustParseAddr("fd00::1")}, {}} {
		_, err := b.Join(t.Context(), &j)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorIs(t, err, ErrNotMulticast)
	}
	// The port space of IPoIB has a Q_Key of its own.
	p, q := w.socket(), w.socket()
	ip := w.joins(p, Join{Group: group2, IPoIB: true})
	require.EqualValues(t, 0x0b1b, ip.QKey)
	w.joins(q, Join{Group: group2, IPoIB: true})
	require.NoError(t, write(p, ip, "IPoIB"))
	from := w.hears(q, "IPoIB")
	require.EqualValues(t, 0x0b1b, from.QKey)
	require.NoError(t, write(q, from, "back"))
	w.hears(p, "IPoIB")
	w.hears(p, "back")
}

func TestGroupConcurrently(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 4 {
		s := w.socket()
		wg.Go(func() {
			for j := range 25 {
				g := []netip.Addr{group1, group2}[(i+j)%2]
				if _, err := s.Join(t.Context(), &Join{Group: g}); err != nil {
					t.Error(err)
				}
				_ = write(s, Addr{IP: g}, "x")
				if err := s.Leave(g, netip.Addr{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
