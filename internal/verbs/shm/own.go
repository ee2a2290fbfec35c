//go:build linux

package shm

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// own tells whether an address is of this host, in this network namespace: the way there begins where it ends. Nothing is sent.
func own(addr netip.Addr) bool {
	switch {
	case addr.IsLoopback():
		return true
	case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast():
		return false
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: 9, Addr: addr.As16(), ZoneId: zoneIndex(addr.Zone())})
	if addr.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: 9, Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	if unix.Connect(fd, to) != nil {
		return false
	}
	from, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == addr
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == addr.WithZone("")
	}
	return false
}

// zoneIndex is the number of an interface, 0: there is none.
func zoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	r, err := unix.NewIfreq(zone)
	if err != nil {
		return 0
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(fd) }()
	if unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r) != nil {
		return 0
	}
	return r.Uint32()
}

// sameAddr tells whether two addresses are the same, where one without a zone is that of any.
func sameAddr(a, b netip.Addr) bool {
	if a.WithZone("") != b.WithZone("") {
		return false
	}
	x, y := a.Zone(), b.Zone()
	return x == y || x == "" || y == "" || zoneIndex(x) == zoneIndex(y)
}
