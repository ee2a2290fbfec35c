package share

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// TestConflicts holds the rules of one process against those of sockets.
func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"0.0.0.0", "0.0.0.0", true},
		{"0.0.0.0", "127.0.0.1", true},
		{"127.0.0.1", "0.0.0.0", true},
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", false},
		{"::", "::1", true},
		{"::1", "fd00::1", false},
		{"::1", "::1", true},
		{"0.0.0.0", "::", false}, // as with IPV6_V6ONLY
		{"127.0.0.1", "::1", false},
		{"", "127.0.0.1", true},
		{"", "::1", true},
		{"::1", "", true},
		{"", "", true},
		{"::ffff:127.0.0.1", "127.0.0.1", true},
	} {
		p, err := Join(Config{Port: 9})
		require.NoError(t, err)
		bind := func(s string) (func(), error) {
			var a netip.Addr
			if s != "" {
				a = netip.MustParseAddr(s)
			}
			_, release, err := p.BindPort(verbs.PSTCP, a, 7)
			return release, err
		}
		release, err := bind(c.a)
		require.NoError(t, err)
		again, err := bind(c.b)
		if c.want {
			require.ErrorIs(t, err, syscall.EADDRINUSE, "%v", c)
			require.ErrorContains(t, err, "port 7 of port space TCP: address already in use by this process")
			release()
			again, err = bind(c.b)
		}
		require.NoError(t, err, "%v", c)
		again()
		require.NoError(t, p.Close())
	}
}

func TestAnyPort(t *testing.T) {
	p, err := Join(Config{Port: 9})
	require.NoError(t, err)
	defer p.Close()
	seen := map[uint16]bool{}
	for range 500 {
		n, _, err := p.BindPort(verbs.PSTCP, netip.IPv4Unspecified(), 0)
		require.NoError(t, err)
		require.False(t, seen[n])
		require.GreaterOrEqual(t, n, uint16(firstFree))
		seen[n] = true
	}
}

// TestLastPort finds the one port that is free, and says so when there is none.
func TestLastPort(t *testing.T) {
	const last = 45678
	free := map[uint16]bool{last: true}
	claim := func(k portKey) (func(), error) {
		if !free[k.port] {
			return nil, syscall.EADDRINUSE
		}
		delete(free, k.port)
		return func() { free[k.port] = true }, nil
	}
	pt := portTable{held: make(map[portKey]*heldPort)}
	n, release, err := pt.bind(verbs.PSTCP, netip.Addr{}, 0, claim)
	require.NoError(t, err)
	require.EqualValues(t, last, n)
	_, _, err = pt.bind(verbs.PSTCP, netip.Addr{}, 0, claim)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	release()
	require.True(t, free[last])
	_, _, err = pt.bind(verbs.PSTCP, netip.Addr{}, 0, func(portKey) (func(), error) { return nil, syscall.EMFILE })
	require.True(t, errors.Is(err, syscall.EMFILE))
}

func samples() []*netio.Packet {
	data := make([]byte, 256)
	for i := range data {
		data[i] = byte(i)
	}
	return []*netio.Packet{
		{Local: netip.MustParseAddr("127.0.0.1"), Remote: netip.MustParseAddrPort("10.0.0.1:4791"), ID: 0xABCD, Data: data[:12]},
		{Local: netip.MustParseAddr("fd00::1"), Remote: netip.MustParseAddrPort("[fd00::2]:65535"), TrafficClass: 255, HopLimit: 1, Data: data},
		{Local: netip.MustParseAddr("fe80::1%eth0"), Remote: netip.MustParseAddrPort("[fe80::2%eth0]:1"), Data: data[:16]},
		{Local: netip.MustParseAddr("ff02::1%interface-name-"), Remote: netip.MustParseAddrPort("[fe80::2%interface-name-]:1"), Data: data[:16]},
		{Local: netip.MustParseAddr("127.0.0.1"), Remote: netip.MustParseAddrPort("10.0.0.1:4791"), Data: make([]byte, maxPacket)},
	}
}

func TestMessage(t *testing.T) {
	var d decoder
	for _, p := range samples() {
		b := make([]byte, maxLen)
		n := encode(b, p)
		require.Equal(t, headerLen+len(p.Data), n)
		var q netio.Packet
		require.True(t, d.decode(b[:n], &q))
		require.Equal(t, *p, q)
	}
	b := make([]byte, maxLen)
	good := samples()[0]
	for name, spoil := range map[string]func(p *netio.Packet){
		"short":     func(p *netio.Packet) { p.Data = p.Data[:8] },
		"long":      func(p *netio.Packet) { p.Data = make([]byte, maxPacket+4) },
		"length":    func(p *netio.Packet) { p.Data = make([]byte, 13) },
		"no local":  func(p *netio.Packet) { p.Local = netip.Addr{} },
		"no remote": func(p *netio.Packet) { p.Remote = netip.AddrPort{} },
		"families":  func(p *netio.Packet) { p.Local = netip.IPv6Loopback() },
		"mapped":    func(p *netio.Packet) { p.Local = netip.MustParseAddr("::ffff:1.2.3.4") },
		"zone": func(p *netio.Packet) {
			p.Local = netip.MustParseAddr("fe80::1%seventeen-letters")
			p.Remote = netip.AddrPortFrom(p.Local, 1)
		},
	} {
		p := *good
		spoil(&p)
		require.Zero(t, encode(b, &p), name)
	}
}

func FuzzMessage(f *testing.F) {
	for _, p := range samples() {
		b := make([]byte, maxLen)
		f.Add(b[:encode(b, p)])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var d decoder
		var p, q netio.Packet
		if !d.decode(b, &p) {
			return
		}
		require.GreaterOrEqual(t, len(p.Data), minPacket)
		require.Equal(t, p.Local.Is4(), p.Remote.Addr().Is4())
		again := make([]byte, maxLen)
		n := encode(again, &p)
		require.NotZero(t, n)
		require.True(t, d.decode(again[:n], &q))
		require.Equal(t, p, q)
	})
}
