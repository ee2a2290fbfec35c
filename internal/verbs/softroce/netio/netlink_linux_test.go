package netio

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A little rtnetlink(7), to build networks in namespaces of our own.

func attr(typ uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func cat(bs ...[]byte) (all []byte) {
	for _, b := range bs {
		all = append(all, b...)
	}
	return all
}

func ifinfo(index int, flags, change uint32) []byte {
	return cat(make([]byte, 4), u32(uint32(index)), u32(flags), u32(change))
}

// netlink does one request in the namespace of the calling thread.
func netlink(t testing.TB, typ, flags uint16, body ...[]byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	defer unix.Close(fd)
	b := cat(body...)
	h := u32(uint32(unix.SizeofNlMsghdr + len(b)))
	h = binary.NativeEndian.AppendUint16(h, typ)
	h = binary.NativeEndian.AppendUint16(h, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	h = append(h, make([]byte, 8)...)
	require.NoError(t, unix.Sendto(fd, append(h, b...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	buf := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, unix.SizeofNlMsghdr+4)
	require.EqualValues(t, unix.NLMSG_ERROR, binary.NativeEndian.Uint16(buf[4:]))
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
		require.NoError(t, fmt.Errorf("netlink request %d: %w", typ, unix.Errno(-e)))
	}
}

func linkUp(t testing.TB, index int, attrs ...[]byte) {
	t.Helper()
	netlink(t, unix.RTM_NEWLINK, 0, ifinfo(index, unix.IFF_UP, unix.IFF_UP), cat(attrs...))
}

// addVeth makes a pair of interfaces, the second one in the namespace ns.
func addVeth(t testing.TB, name, peer string, ns int) {
	t.Helper()
	const vethInfoPeer = 1
	netlink(t, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		ifinfo(0, 0, 0), attr(unix.IFLA_IFNAME, []byte(name+"\x00")),
		attr(unix.IFLA_LINKINFO, cat(
			attr(unix.IFLA_INFO_KIND, []byte("veth\x00")),
			attr(unix.IFLA_INFO_DATA, attr(vethInfoPeer, cat(
				ifinfo(0, 0, 0), attr(unix.IFLA_IFNAME, []byte(peer+"\x00")),
				attr(unix.IFLA_NET_NS_FD, u32(uint32(ns)))))))))
}

func addAddr(t testing.TB, index int, p netip.Prefix) {
	t.Helper()
	a := p.Addr().AsSlice()
	netlink(t, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE,
		[]byte{byte(familyOf(p.Addr().Is6())), byte(p.Bits()), unix.IFA_F_NODAD, 0}, u32(uint32(index)),
		attr(unix.IFA_LOCAL, a), attr(unix.IFA_ADDRESS, a))
}
