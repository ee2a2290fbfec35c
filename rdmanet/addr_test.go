package rdmanet

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddrString(t *testing.T) {
	for want, a := range map[string]*Addr{
		"10.0.0.1:80":          {IP: netip.MustParseAddr("10.0.0.1"), Port: 80},
		"[fd00::1]:80":         {IP: netip.MustParseAddr("fd00::1"), Port: 80},
		"[fe80::1%eth0]:65535": {IP: netip.MustParseAddr("fe80::1%eth0"), Port: 65535},
		"10.0.0.1:0":           {IP: netip.MustParseAddr("10.0.0.1")},
		":80":                  {Port: 80},
		"<nil>":                nil,
		"10.0.0.1:qp0x00002a":  {IP: netip.MustParseAddr("10.0.0.1"), UD: UDAddr{QPN: 42}},
		"10.0.0.1:7":           {IP: netip.MustParseAddr("10.0.0.1"), Port: 7, UD: UDAddr{QPN: 42}},
	} {
		assert.Equal(t, want, a.String())
		if a != nil && a.IP.IsValid() {
			host, _, err := net.SplitHostPort(want)
			require.NoError(t, err)
			assert.Equal(t, a.IP.String(), host)
		}
	}
	assert.Equal(t, "rdma", (&Addr{Port: 1}).Network())
	assert.Equal(t, "rdma", (*Addr)(nil).Network())
	assert.Equal(t, "rdma-ud", (&Addr{UD: UDAddr{QPN: 1}}).Network())
}

func TestAddrComparable(t *testing.T) {
	mapped := netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")
	a, b := AddrFromAddrPort(mapped), AddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:80"))
	assert.Equal(t, *a, *b, "IPv4 is never 4-in-6")
	assert.Len(t, map[Addr]bool{*a: true, *b: true}, 1)
	assert.Equal(t, netip.MustParseAddrPort("10.0.0.1:80"), a.AddrPort())
	assert.Equal(t, netip.AddrPort{}, (*Addr)(nil).AddrPort())
}

func TestResolveAddr(t *testing.T) {
	for _, c := range []struct{ network, address, want string }{
		{"rdma", "127.0.0.1:80", "127.0.0.1:80"},
		{"tcp", "127.0.0.1:http", "127.0.0.1:80"},
		{"", "[::1]:80", "[::1]:80"},
		{"rdma4", ":80", ":80"},
		{"rdma6", "[fe80::1%lo]:80", "[fe80::1%lo]:80"},
	} {
		a, err := ResolveAddr(c.network, c.address)
		require.NoError(t, err)
		assert.Equal(t, c.want, a.String())
	}
	for _, c := range [][2]string{{"rdma4", "[::1]:80"}, {"rdma6", "127.0.0.1:80"}, {"rdma", "127.0.0.1"}, {"rdma", ""}, {"rdma", "1.2.3.4:x y"}} {
		a, err := ResolveAddr(c[0], c[1])
		require.Error(t, err, "%v", c)
		assert.Nil(t, a)
	}
	_, err := ResolveAddr("sctp", "127.0.0.1:80")
	assert.Equal(t, net.UnknownNetworkError("sctp"), err)
	a, err := ResolveAddr("rdma-ud", "127.0.0.1:80")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:80", a.String())
}

// otherAddr is no address that a Dialer knows.
type otherAddr struct{}

func (otherAddr) Network() string { return "other" }
func (otherAddr) String() string  { return "somewhere" }

func TestLocalAddr(t *testing.T) {
	ap := netip.MustParseAddrPort("10.0.0.1:80")
	for _, a := range []net.Addr{
		AddrFromAddrPort(ap),
		net.TCPAddrFromAddrPort(ap), net.UDPAddrFromAddrPort(ap),
		&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1).To16(), Port: 80},
	} {
		got, err := localAddrPort(a)
		require.NoError(t, err)
		assert.Equal(t, ap, got, "%T", a)
	}
	got, err := localAddrPort(&net.IPAddr{IP: net.ParseIP("fe80::1"), Zone: "lo"})
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("[fe80::1%lo]:0"), got)
	for _, a := range []net.Addr{nil, (*Addr)(nil), (*net.TCPAddr)(nil), (*net.UDPAddr)(nil), (*net.IPAddr)(nil), &net.TCPAddr{}} {
		got, err := localAddrPort(a)
		require.NoError(t, err)
		assert.False(t, got.Addr().IsValid())
		assert.Nil(t, (&Dialer{LocalAddr: a}).source(), "no typed nil gets into an error")
	}
	_, err = localAddrPort(otherAddr{})
	var ae *net.AddrError
	require.ErrorAs(t, err, &ae)
	assert.Equal(t, "somewhere", ae.Addr)
}

func FuzzResolveAddr(f *testing.F) {
	for _, s := range []string{"127.0.0.1:80", "[::1]:0", "[fe80::1%eth0]:http", ":1", "::", "[::ffff:1.2.3.4]:5", "", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if host, _, err := net.SplitHostPort(s); err == nil && host != "" {
			if _, err := netip.ParseAddr(host); err != nil {
				return // a name: not to be looked up here
			}
		}
		a, err := ResolveAddr("rdma", s)
		if (err == nil) != (a != nil) {
			t.Fatalf("%v, %v", a, err)
		}
		if err != nil {
			return
		}
		if a.IP.Is4In6() {
			t.Fatalf("%v is 4-in-6", a)
		}
		b, err := ResolveAddr("rdma", a.String())
		if err != nil || *a != *b {
			t.Fatalf("%q reads back as %v, %v", a, b, err)
		}
	})
}
