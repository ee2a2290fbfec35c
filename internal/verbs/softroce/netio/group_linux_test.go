package netio

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/testnet"
)

// groupsOf are the memberships in a group, as the calling thread's namespace tells them: of which interfaces.
func groupsOf(t testing.TB, g netip.Addr) (ifs []string) {
	t.Helper()
	if g.Is6() {
		b, err := os.ReadFile("/proc/thread-self/net/igmp6")
		require.NoError(t, err)
		a := g.As16()
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 2 && f[2] == hex(a[:]) {
				ifs = append(ifs, f[1])
			}
		}
		return ifs
	}
	b, err := os.ReadFile("/proc/thread-self/net/igmp")
	require.NoError(t, err)
	a := g.As4()
	name := ""
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 1 && !strings.HasPrefix(line, "\t") {
			name = strings.TrimSuffix(f[1], ":")
		} else if len(f) > 0 && (f[0] == strings.ToUpper(hex(a[:])) || f[0] == strings.ToUpper(hex([]byte{a[3], a[2], a[1], a[0]}))) {
			ifs = append(ifs, name)
		}
	}
	return ifs
}

// running waits until the kernel has noticed that interfaces have a carrier: what is sent before is dropped, and IPv6 has no routes.
func running(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // on this thread, which is in the namespace
			ifi, err := net.InterfaceByName(name)
			require.NoError(t, err)
			if ifi.Flags&net.FlagRunning != 0 {
				break
			}
			require.True(t, time.Now().Before(end), "%s has no carrier", name)
		}
	}
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// TestGroups: two hosts on two wires. A membership is one of an interface, in each process by itself.
func TestGroups(t *testing.T) {
	if !child(t, testnet.Attr(0, 0)) {
		return
	}
	a, b := twoHosts(t)
	a.run(func() {
		addVeth(t, "wa", "wb", b.ns)
		linkUp(t, index(t, "wa"))
		addAddr(t, index(t, "wa"), netip.MustParsePrefix("10.8.0.1/24"))
		addAddr(t, index(t, "wa"), netip.MustParsePrefix("fd08::1/64"))
		addAddr(t, index(t, "wa"), netip.MustParsePrefix("fe80::c/64"))
	})
	var vb, wb, before int
	b.run(func() {
		vb, wb = index(t, "vb"), index(t, "wb")
		linkUp(t, wb)
		addAddr(t, wb, netip.MustParsePrefix("10.8.0.2/24"))
		addAddr(t, wb, netip.MustParsePrefix("fd08::2/64"))
		addAddr(t, wb, netip.MustParsePrefix("fe80::d/64"))
	})
	a.run(func() { running(t, "va", "wa") })
	b.run(func() { running(t, "vb", "wb") })
	sa, sv, sw := newSink(), newSink(), newSink()
	var ua, uv, uw *UDP
	a.run(func() { ua = listen(t, Config{Handler: sa}) })
	b.run(func() { uv, uw = listen(t, Config{Handler: sv}), listen(t, Config{Handler: sw}) })
	time.Sleep(10 * time.Millisecond)
	before = fds(t)
	for _, c := range []struct{ group, v, w string }{
		{"239.1.2.3", "10.9.0.1", "10.8.0.1"}, {"ff15::77", "fd09::1", "fd08::1"}, {"ff02::7777", "fe80::a%va", "fe80::c%wa"},
	} {
		g := addr(c.group)
		var leaveV, leaveW, leaveA, again func()
		b.run(func() {
			var err error
			leaveV, err = uv.JoinGroup(g, vb)
			require.NoError(t, err)
			again, err = uv.JoinGroup(g, vb)
			require.NoError(t, err)
			leaveW, err = uw.JoinGroup(g, wb)
			require.NoError(t, err)
			require.Equal(t, []string{"vb", "wb"}, groupsOf(t, g))
		})
		var va, wa *Path
		a.run(func() {
			for _, p := range []struct {
				to         **Path
				local, ifi string
			}{{&va, c.v, "va"}, {&wa, c.w, "wa"}} {
				r, err := ua.GroupRoute(addr(p.local), g)
				require.NoError(t, err)
				require.Equal(t, p.ifi, r.Interface)
				require.Equal(t, index(t, p.ifi), r.Index)
				require.Equal(t, 1500, r.MTU)
				require.Equal(t, addr(p.local), r.Local)
				*p.to = &Path{Local: r.Local, Remote: r.Remote, Interface: r.Index, TrafficClass: 0x68, HopLimit: 3}
			}
			var err error
			leaveA, err = ua.JoinGroup(g, va.Interface)
			require.NoError(t, err)
			send(t, ua, va, 64)
			send(t, ua, wa, 30)
		})
		arrived := func(s *sink, n, ifi int) {
			t.Helper()
			ps := s.take(t, n)
			// A sender that moves to another processor may overtake itself on a veth.
			slices.SortStableFunc(ps, func(a, b Packet) int { return bytes.Compare(a.Data[8:12], b.Data[8:12]) })
			for i, pk := range ps {
				check(t, &pk, uint32(i), pattern(1024))
				require.Equal(t, g, pk.Local.WithZone(""))
				require.Equal(t, ifi, pk.Interface)
				require.EqualValues(t, 0x68, pk.TrafficClass)
				require.EqualValues(t, 3, pk.HopLimit)
			}
		}
		arrived(sv, 64, vb)
		arrived(sw, 30, wb)
		arrived(sa, 64, va.Interface) // its own
		b.run(func() { again(); again() })
		a.run(func() { send(t, ua, va, 1) })
		arrived(sv, 1, vb)
		arrived(sa, 1, va.Interface)
		b.run(func() {
			leaveV()
			require.Equal(t, []string{"wb"}, groupsOf(t, g))
			leaveW()
			require.Empty(t, groupsOf(t, g))
		})
		a.run(func() {
			leaveA()
			require.Empty(t, groupsOf(t, g))
			send(t, ua, va, 3)
			send(t, ua, wa, 3)
			// What does go to the host comes behind them.
			for _, p := range []*Path{{Local: addr("10.9.0.1"), Remote: addr("10.9.0.2")}, {Local: addr("fd09::1"), Remote: addr("fd09::2")}} {
				send(t, ua, p, 1)
			}
		})
		deadline := time.Now().Add(10 * time.Second)
		for sv.count()+sw.count() < 2 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		for _, s := range []*sink{sv, sw} {
			for _, pk := range s.take(t, s.count()) {
				require.Zero(t, pk.Interface)
				require.False(t, pk.Local.IsMulticast())
			}
		}
		require.Zero(t, sa.count())
	}
	require.Eventually(t, func() bool { return fds(t) == before }, 10*time.Second, time.Millisecond, "sockets of groups")
	require.Zero(t, uv.Stats())
	require.Zero(t, uw.Stats())

	// The end of a process's network ends its memberships.
	b.run(func() {
		leave, err := uv.JoinGroup(addr("239.1.2.3"), vb)
		require.NoError(t, err)
		require.NoError(t, uv.Close())
		require.Empty(t, groupsOf(t, addr("239.1.2.3")))
		leave()
		_, err = uv.JoinGroup(addr("239.1.2.3"), vb)
		require.ErrorIs(t, err, net.ErrClosed)
		for _, c := range []struct {
			group string
			ifi   int
			err   error
		}{{"10.1.1.1", vb, unix.EINVAL}, {"239.1.1.1", 0, unix.EINVAL}, {"239.1.1.1", 999, unix.ENODEV}, {"ff15::1", 999, unix.ENODEV}} {
			_, err = uw.JoinGroup(addr(c.group), c.ifi)
			require.ErrorIs(t, err, c.err, c.group)
		}
	})
}

// TestGroupRoute: which interface leads to a group.
func TestGroupRoute(t *testing.T) {
	if !child(t, testnet.Attr(0, 0)) {
		return
	}
	a, _ := twoHosts(t)
	a.run(func() {
		running(t, "va")
		u := listen(t, Config{Handler: newSink()})
		for _, c := range []struct {
			local, group, ifi, from string
			err                     error
		}{
			{"", "239.1.1.1", "va", "10.9.0.1", nil}, // no route: the first that can
			{"0.0.0.0", "239.1.1.1", "va", "10.9.0.1", nil},
			{"127.0.0.1", "239.1.1.1", "lo", "127.0.0.1", nil},
			{"127.0.0.5", "239.1.1.1", "lo", "127.0.0.5", nil},
			{"", "ff15::1", "va", "fd09::1", nil},
			{"", "ff15::1%va", "va", "fd09::1", nil},
			{"", "ff02::1:1", "va", "", nil}, // of its link, of which there are several
			{"::1", "ff15::1", "", "", syscall.ENETUNREACH},
			{"", "ff15::1%lo", "", "", syscall.ENETUNREACH},
			{"", "ff15::1%nothing", "", "", syscall.ENODEV},
			{"10.9.0.77", "239.1.1.1", "", "", syscall.EADDRNOTAVAIL},
			{"fd09::1", "239.1.1.1", "", "", syscall.EADDRNOTAVAIL},
			{"", "10.9.0.2", "", "", syscall.EINVAL},
		} {
			var local netip.Addr
			if c.local != "" {
				local = addr(c.local)
			}
			r, err := u.GroupRoute(local, addr(c.group))
			if c.err != nil {
				require.Equal(t, c.err, err, "%+v", c)
				continue
			}
			require.NoError(t, err, "%+v", c)
			require.Equal(t, c.ifi, r.Interface, "%+v", c)
			if c.from == "" {
				require.True(t, r.Local.IsLinkLocalUnicast() && r.Local.Zone() == c.ifi, "%+v", r)
			} else {
				require.Equal(t, addr(c.from), r.Local, "%+v", c)
			}
			require.Equal(t, addr(c.group).WithZone(""), r.Remote.WithZone(""))
			require.Equal(t, index(t, c.ifi), r.Index)
		}
		r, err := u.AddrRoute(addr("fe80::a%va"))
		require.NoError(t, err)
		require.Equal(t, Route{Local: addr("fe80::a%va"), Interface: "va", Index: index(t, "va"), MTU: 1500}, r)
		_, err = u.AddrRoute(addr("10.9.0.2"))
		require.Equal(t, error(syscall.EADDRNOTAVAIL), err)
	})
}
