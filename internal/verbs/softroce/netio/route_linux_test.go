package netio

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestRoute(t *testing.T) {
	u := listen(t, Config{Port: freePort(t), Handler: newSink()})
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	none := netip.Addr{}
	for _, c := range []struct{ local, remote, want netip.Addr }{
		{none, addr("127.0.0.1"), addr("127.0.0.1")},
		{none, addr("127.3.2.1"), addr("127.0.0.1")},
		{addr("127.0.0.9"), addr("127.0.0.1"), addr("127.0.0.9")},
		{addr("0.0.0.0"), addr("127.0.0.1"), addr("127.0.0.1")},
		{none, addr("::1"), addr("::1")},
		{addr("::1"), addr("::1"), addr("::1")},
		{none, addr("::ffff:127.0.0.1"), addr("127.0.0.1")},
		{addr("::ffff:127.0.0.1"), addr("127.0.0.1"), addr("127.0.0.1")},
	} {
		r, err := u.Route(c.local, c.remote)
		require.NoError(t, err, "%v", c)
		// A route's MTU is below 64 KiB for IPv4.
		require.GreaterOrEqual(t, r.MTU, min(lo.MTU, 65535))
		require.LessOrEqual(t, r.MTU, lo.MTU)
		require.Equal(t, Route{Local: c.want, Remote: c.remote.Unmap(), Interface: "lo", MTU: r.MTU}, r)
	}
	// What connects to nowhere connects to this host, and is called so.
	r, err := u.Route(none, addr("0.0.0.0"))
	require.NoError(t, err)
	require.Equal(t, r.Local, r.Remote)

	for _, c := range []struct {
		local, remote netip.Addr
		want          error
	}{
		{addr("198.51.100.1"), addr("127.0.0.1"), syscall.EADDRNOTAVAIL},
		{addr("2001:db8::1"), addr("::1"), syscall.EADDRNOTAVAIL},
		{addr("::1"), addr("127.0.0.1"), syscall.EADDRNOTAVAIL},
		{addr("127.0.0.1"), addr("::1"), syscall.EADDRNOTAVAIL},
		{none, none, syscall.EADDRNOTAVAIL},
		{none, addr("100::1"), syscall.ENETUNREACH},
	} {
		_, err := u.Route(c.local, c.remote)
		if err == nil && errors.Is(c.want, syscall.ENETUNREACH) {
			continue // a host with a default route
		}
		require.Equal(t, c.want, err, "%v: a bare errno", c)
	}
}

// TestRouteOwn looks the host's other addresses up: one of our own is reached by loopback, a
// neighbor by its interface.
func TestRouteOwn(t *testing.T) {
	u := listen(t, Config{Port: freePort(t), Handler: newSink()})
	own, err := u.Addrs()
	require.NoError(t, err)
	require.Contains(t, own, addr("127.0.0.1"))
	for _, a := range own {
		r, err := u.Route(netip.Addr{}, a)
		require.NoError(t, err, a)
		require.Equal(t, a, r.Local)
		require.Equal(t, a, r.Remote)
		if !scoped(a) {
			require.Equal(t, "lo", r.Interface, a)
		}
		r, err = u.Route(a, a)
		require.NoError(t, err, a)
		require.Equal(t, a, r.Local)
	}
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range ifs {
		addrs, err := ifi.Addrs()
		require.NoError(t, err)
		for _, n := range addrs {
			p, ok := prefixOf(n)
			if !ok || ifi.Flags&net.FlagLoopback != 0 || p.Addr().BitLen()-p.Bits() < 4 || ifi.Flags&net.FlagUp == 0 {
				continue
			}
			next := p.Addr().Next()
			if scoped(next) {
				next = next.WithZone(ifi.Name)
			}
			r, err := u.Route(netip.Addr{}, next)
			require.NoError(t, err)
			require.Equal(t, ifi.Name, r.Interface)
			require.Equal(t, ifi.MTU, r.MTU)
			require.Equal(t, next, r.Remote)
			require.Equal(t, next.Zone(), r.Local.Zone())
		}
	}
}

func FuzzRouteAnswer(f *testing.F) {
	f.Add(routeRequest(addr("127.0.0.1"), addr("127.0.0.1")))
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, b []byte) { routeAnswer(b) })
}

// TestRouteWithoutFiles: having run out of descriptors is not having no route.
func TestRouteWithoutFiles(t *testing.T) {
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	free, err := unix.Dup(0) // the lowest that is free
	require.NoError(t, err)
	require.NoError(t, unix.Close(free))
	_, err = route(netip.Addr{}, addr("127.0.0.1"))
	require.NoError(t, err)
	for more := range 2 {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free + more), Max: old.Max}))
		_, err = route(netip.Addr{}, addr("127.0.0.1"))
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
		require.Equal(t, syscall.EMFILE, err)
	}
}
