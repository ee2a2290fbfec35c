package netio

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Route asks the kernel by connecting a socket that sends nothing. Errors are bare errnos.
func (u *UDP) Route(local, remote netip.Addr) (Route, error) {
	return route(local, remote)
}

// source finds the address from which remote is reached.
func source(remote netip.Addr) (netip.Addr, error) {
	r, fd, err := connectTo(netip.Addr{}, remote)
	if err != nil {
		return netip.Addr{}, err
	}
	_ = unix.Close(fd)
	return r.Local, nil
}

// ours tells whether this host has the address.
func ours(a netip.Addr, scope uint32) bool {
	fd, err := newSocket(a.Is6(), nil)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sockaddr(a, 0, scope)) == nil
}

// connectTo connects a socket and reads both addresses off it.
func connectTo(local, remote netip.Addr) (Route, int, error) {
	remote = remote.Unmap()
	if !remote.IsValid() {
		return Route{}, -1, syscall.EADDRNOTAVAIL
	}
	v6 := remote.Is6()
	fd, err := newSocket(v6, nil)
	if err != nil {
		if absent(err) {
			err = syscall.ENETUNREACH
		}
		return Route{}, -1, bare(err)
	}
	r, err := func() (Route, error) {
		scope := scopeOf(remote)
		if local = local.Unmap(); local.IsValid() && !local.IsUnspecified() {
			if local.Is6() != v6 {
				return Route{}, syscall.EADDRNOTAVAIL
			}
			if scoped(remote) && scope == 0 {
				scope = scopeOf(local)
			}
			lscope := scopeOf(local)
			if scoped(local) && lscope == 0 {
				lscope = scope
			}
			if err := unix.Bind(fd, sockaddr(local, 0, lscope)); err != nil {
				return Route{}, syscall.EADDRNOTAVAIL
			}
		}
		err := unix.Connect(fd, sockaddr(remote, Port, scope))
		if errors.Is(err, unix.EACCES) {
			err = unix.ENETUNREACH // a broadcast address, which is no peer's
		}
		if err != nil {
			return Route{}, bare(err)
		}
		ls, err := unix.Getsockname(fd)
		if err != nil {
			return Route{}, bare(err)
		}
		rs, err := unix.Getpeername(fd)
		if err != nil {
			return Route{}, bare(err)
		}
		l, p := addrOf(ls).Addr(), addrOf(rs).Addr()
		if scoped(l) {
			l = withScope(l.WithZone(""), scope)
		}
		return Route{Local: l, Remote: p}, nil
	}()
	if err != nil {
		_ = unix.Close(fd)
		return Route{}, -1, err
	}
	return r, fd, nil
}

func route(local, remote netip.Addr) (Route, error) {
	r, fd, err := connectTo(local, remote)
	if err != nil {
		return Route{}, err
	}
	defer unix.Close(fd)
	if r.Local.Is4() {
		r.MTU, _ = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
	} else {
		r.MTU, _ = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
	}
	ifi, err := outInterface(r)
	if err != nil {
		return Route{}, bare(err)
	}
	r.Interface = ifi.Name
	if r.MTU <= 0 {
		r.MTU = ifi.MTU
	}
	return r, nil
}

// outInterface finds the interface by which packets of a route leave.
func outInterface(r Route) (*net.Interface, error) {
	index := scopeOf(r.Remote)
	if index == 0 {
		index = routeInterface(r.Local, r.Remote)
	}
	if index != 0 {
		if ifi, err := net.InterfaceByIndex(int(index)); err == nil {
			return ifi, nil
		}
	}
	// Where netlink is closed to us: the interface that has the address.
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var loopback *net.Interface
	for i := range ifs {
		addrs, err := ifs[i].Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, ok := prefixOf(a); ok && p.Addr() == r.Local.WithZone("") {
				return &ifs[i], nil
			}
		}
		if loopback == nil && ifs[i].Flags&net.FlagLoopback != 0 {
			loopback = &ifs[i]
		}
	}
	if r.Local.IsLoopback() && loopback != nil { // all of 127.0.0.0/8 is ours
		return loopback, nil
	}
	return nil, syscall.EADDRNOTAVAIL // it went away meanwhile
}

func prefixOf(a net.Addr) (netip.Prefix, bool) {
	n, ok := a.(*net.IPNet)
	if !ok {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, _ := n.Mask.Size()
	ip = ip.Unmap()
	return netip.PrefixFrom(ip, min(ones, ip.BitLen())), true
}

// routeInterface asks by rtnetlink(7) for the interface of a route. 0: not found out.
func routeInterface(local, remote netip.Addr) uint32 {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, routeRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0
	}
	// The kernel answers before sendto returns.
	buf := make([]byte, 4096)
	n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
		return 0
	}
	return routeAnswer(buf[:n])
}

const (
	nlHeader = unix.SizeofNlMsghdr
	rtHeader = unix.SizeofRtMsg
)

func routeRequest(local, remote netip.Addr) []byte {
	ne := binary.NativeEndian
	b := append(make([]byte, 0, 128), make([]byte, nlHeader+rtHeader)...)
	b[nlHeader] = byte(familyOf(remote.Is6())) // rtm_family
	b[nlHeader+1] = byte(remote.BitLen())      // rtm_dst_len
	attr := func(typ uint16, a netip.Addr) {
		s := a.AsSlice()
		b = ne.AppendUint16(b, uint16(4+len(s)))
		b = ne.AppendUint16(b, typ)
		b = append(b, s...)
	}
	attr(unix.RTA_DST, remote)
	if local.IsValid() {
		b[nlHeader+2] = byte(local.BitLen()) // rtm_src_len
		attr(unix.RTA_SRC, local)
	}
	ne.PutUint32(b, uint32(len(b)))
	ne.PutUint16(b[4:], unix.RTM_GETROUTE)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	return b
}

func routeAnswer(b []byte) uint32 {
	ne := binary.NativeEndian
	if len(b) < nlHeader+rtHeader || ne.Uint16(b[4:]) != unix.RTM_NEWROUTE {
		return 0
	}
	if n := int(ne.Uint32(b)); n >= nlHeader+rtHeader && n < len(b) {
		b = b[:n]
	}
	for b = b[nlHeader+rtHeader:]; len(b) >= 4; {
		n := int(ne.Uint16(b))
		if n < 4 || n > len(b) {
			return 0
		}
		if ne.Uint16(b[2:]) == unix.RTA_OIF && n >= 8 {
			return ne.Uint32(b[4:])
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return 0
}

// MTU is the largest of an interface that leads to others, or that of loopback if there is none. It is 0
// where that cannot be found out.
func (u *UDP) MTU() (mtu int) {
	ifs, err := net.Interfaces()
	if err != nil {
		return 0
	}
	loopback := 0
	for _, ifi := range ifs {
		addrs, err := ifi.Addrs()
		switch {
		case ifi.Flags&net.FlagUp == 0, err != nil, len(addrs) == 0:
		case ifi.Flags&net.FlagLoopback != 0:
			loopback = ifi.MTU
		default:
			mtu = max(mtu, ifi.MTU)
		}
	}
	if mtu == 0 {
		return loopback
	}
	return mtu
}

// Addrs lists the addresses of the interfaces that are up. Those of one link have their zone.
func (u *UDP) Addrs() ([]netip.Addr, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var l []netip.Addr
	for _, ifi := range ifs {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			p, ok := prefixOf(a)
			if !ok {
				continue
			}
			ip := p.Addr()
			if scoped(ip) {
				ip = ip.WithZone(ifi.Name)
			}
			l = append(l, ip)
		}
	}
	return l, nil
}
