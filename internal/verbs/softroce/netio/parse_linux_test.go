package netio

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCmsg(t *testing.T) {
	b := make([]byte, 0, txControl)
	b, d := appendCmsg(b, unix.IPPROTO_IP, unix.IP_PKTINFO, 12)
	copy(d, "hello, world")
	b = appendIntCmsg(b, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 77)
	b, d = appendCmsg(b, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	copy(d, "ab")
	// x/sys must read the same.
	ms, err := unix.ParseSocketControlMessage(b)
	require.NoError(t, err)
	require.Len(t, ms, 3)
	rest := b
	for _, m := range ms {
		level, typ, data, r, ok := nextCmsg(rest)
		require.True(t, ok)
		require.Equal(t, m.Header.Level, level)
		require.Equal(t, m.Header.Type, typ)
		require.Equal(t, m.Data, data)
		rest = r
	}
	_, _, _, _, ok := nextCmsg(rest)
	require.False(t, ok)
	require.Equal(t, "hello, world", string(ms[0].Data))
	require.Equal(t, 77, cmsgInt(ms[1].Data))
	require.Equal(t, 9, cmsgInt([]byte{9}))
	require.Zero(t, cmsgInt(nil))
}

func FuzzControl(f *testing.F) {
	b := appendIntCmsg(make([]byte, 0, txControl), unix.SOL_UDP, unix.UDP_GRO, 1040)
	b, _ = appendCmsg(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s rxSock
		var p Packet
		s.control(b, &p)
		rest := b
		for n := 0; ; n++ {
			_, _, _, r, ok := nextCmsg(rest)
			if !ok {
				break
			}
			require.Less(t, len(r), len(rest))
			rest = r
		}
	})
}

func TestHolder(t *testing.T) {
	const table = `   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  364: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 15512 2 0000000000000000 0
  731: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1234        0 23512 2 0000000000000000 0
junk
`
	require.Equal(t, 1234, holder(strings.NewReader(table), 4791))
	require.Equal(t, 101, holder(strings.NewReader(table), 53))
	require.Equal(t, -1, holder(strings.NewReader(table), 54))
	require.Equal(t, []Holder{{1234, 23512}}, holders(strings.NewReader(table), 4791))
}

func FuzzHolder(f *testing.F) {
	f.Add("  731: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1234        0 23512\n")
	f.Fuzz(func(_ *testing.T, s string) { holder(strings.NewReader(s), 4791) })
}

func TestPortBusyErrorText(t *testing.T) {
	for _, c := range []struct {
		err  PortBusyError
		want string
	}{
		{PortBusyError{4791, 70000, false}, "UDP port 4791 is in use by uid 70000"},
		{PortBusyError{4791, -1, false}, "another user has it"},
		{PortBusyError{4791, 0, true}, "modprobe -r rdma_rxe"},
	} {
		require.Contains(t, c.err.Error(), c.want)
		require.NotContains(t, c.err.Error(), "\n")
		require.ErrorIs(t, &c.err, syscall.EADDRINUSE)
	}
}

// TestFlowMemory has senders of every kind of identification.
func TestFlowMemory(t *testing.T) {
	run := func(ids ...uint16) (believed int) {
		f := flow{}
		for _, id := range ids {
			if f.seen(id, 0) {
				believed++
			}
		}
		return believed
	}
	repeat := func(n int, id uint16) (l []uint16) {
		for range n {
			l = append(l, id)
		}
		return l
	}
	count := func(from, n int) (l []uint16) {
		for i := range n {
			l = append(l, uint16(from+i))
		}
		return l
	}
	require.Equal(t, 200000, run(count(60000, 200000)...), "a counter goes all the way round")
	require.Equal(t, 100, run(repeat(100, 0)...))
	require.Equal(t, 100, run(append(repeat(100, 0), 40000)...), "corruption is not believed")
	require.Equal(t, 101, run(append(repeat(100, 0), 5)...), "a segment is")
	require.Equal(t, 150, run(append(repeat(100, 0), count(1000, 50+distrustAfter)...)...), "a new sender is, in the end")
	require.Equal(t, 101, run(append(append(repeat(100, 0), 999, 999, 999), 0)...))

	f := flow{}
	for i := range 10 { // segments of one send that arrive joined
		require.EqualValues(t, i, f.expect(i))
		require.True(t, f.seen(uint16(i), i))
	}
	f.seen(500, 0)
	require.EqualValues(t, 501, f.expect(0))
	f.seen(500, 0)
	f.seen(500, 1)
	require.EqualValues(t, 500, f.expect(2), "joined packets of one identification")
}

func FuzzSockaddr(f *testing.F) {
	f.Add([]byte{2, 0, 0x12, 0xb7, 127, 0, 0, 1})
	f.Add(make([]byte, unix.SizeofSockaddrInet6))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var c addrCache
		c.remote(b)
		if len(b) >= unix.SizeofInet6Pktinfo {
			c.local(b[:unix.SizeofInet6Pktinfo])
		}
	})
}

func TestSockaddr(t *testing.T) {
	for _, s := range []string{"127.0.0.1:4791", "[::1]:5", "[fd00::7]:65535", "[fe80::1%lo]:7"} {
		ap := netip.MustParseAddrPort(s)
		var b [unix.SizeofSockaddrInet6]byte
		n := putSockaddr(&b, ap.Addr(), ap.Port(), scopeOf(ap.Addr()))
		var c addrCache
		require.Equal(t, ap, c.remote(b[:n]))
		require.Equal(t, ap, c.remote(b[:n]), "cached")
		require.Equal(t, ap, addrOf(sockaddr(ap.Addr(), ap.Port(), scopeOf(ap.Addr()))))
	}
}
