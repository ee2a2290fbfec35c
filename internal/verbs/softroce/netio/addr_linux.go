package netio

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Raw socket addresses, as ip(7) and ipv6(7) lay them out.

// putSockaddr writes an address and returns its length.
func putSockaddr(b *[unix.SizeofSockaddrInet6]byte, a netip.Addr, port uint16, scope uint32) int {
	binary.BigEndian.PutUint16(b[2:], port)
	if a.Is4() {
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		ip := a.As4()
		copy(b[4:], ip[:])
		clear(b[8:16])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
	clear(b[4:8])
	ip := a.As16()
	copy(b[8:], ip[:])
	binary.NativeEndian.PutUint32(b[24:], scope)
	return unix.SizeofSockaddrInet6
}

// sockaddr returns the address for x/sys.
func sockaddr(a netip.Addr, port uint16, scope uint32) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(port), Addr: a.As16(), ZoneId: scope}
}

// addrOf is the inverse of sockaddr.
func addrOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := withScope(netip.AddrFrom16(sa.Addr), sa.ZoneId)
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// scoped tells whether an address needs a zone.
func scoped(a netip.Addr) bool {
	return a.Is6() && (a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || a.IsInterfaceLocalMulticast())
}

// withScope gives an address that needs one the zone of interface index scope, by its name.
func withScope(a netip.Addr, scope uint32) netip.Addr {
	if scope == 0 || !scoped(a) {
		return a
	}
	if ifi, err := net.InterfaceByIndex(int(scope)); err == nil {
		return a.WithZone(ifi.Name)
	}
	return a.WithZone(strconv.Itoa(int(scope)))
}

// scopeOf is the index of the interface that a zone names, or 0.
func scopeOf(a netip.Addr) uint32 {
	z := a.Zone()
	if z == "" {
		return 0
	}
	if ifi, err := net.InterfaceByName(z); err == nil {
		return uint32(ifi.Index)
	}
	n, err := strconv.ParseUint(z, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
