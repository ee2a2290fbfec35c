package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupKey is a membership.
type groupKey struct {
	group netip.Addr // without zone
	index int
}

// groupSock is the socket of a membership. It is bound to the group's address, which keeps other packets from it, and each
// process has its own: all of them get a packet, where of those on an address of the host only one does.
type groupSock struct {
	*rxSock
	users int
}

// JoinGroup implements [Groups].
func (u *UDP) JoinGroup(group netip.Addr, index int) (leave func(), err error) {
	group = group.Unmap()
	if !group.IsMulticast() || index <= 0 {
		return nil, syscall.EINVAL
	}
	k := groupKey{group.WithZone(""), index}
	u.groupMu.Lock()
	defer u.groupMu.Unlock()
	if u.groups == nil {
		return nil, net.ErrClosed
	}
	g := u.groups[k]
	if g == nil {
		fd, err := groupSocket(k, u.cfg.Port, !u.cfg.NoGRO)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, portBusy(u.cfg.Port, group.Is6())
		}
		if err != nil {
			return nil, err
		}
		s, err := u.newRxSock(fd, group.Is6())
		if err != nil {
			return nil, err
		}
		s.index = index
		g = &groupSock{rxSock: s}
		u.groups[k] = g
		u.publishGroups()
		s.start()
	}
	g.users++
	left := false
	return func() {
		u.groupMu.Lock()
		defer u.groupMu.Unlock()
		if left || u.groups == nil {
			return
		}
		left = true
		if g.users--; g.users > 0 {
			return
		}
		delete(u.groups, k)
		u.publishGroups()
		// The membership ends now, the socket when its handler, which may be our caller, has returned.
		_ = membership(g.fd, k, false)
		u.wg.Go(g.close)
	}, nil
}

// publishGroups makes the list that Poll reads. groupMu is held.
func (u *UDP) publishGroups() {
	l := make([]*rxSock, 0, len(u.groups))
	for _, g := range u.groups {
		l = append(l, g.rxSock)
	}
	u.groupSocks.Store(&l)
}

// leaveGroups ends all memberships, for Close, which closes the sockets.
func (u *UDP) leaveGroups() (socks []*rxSock) {
	u.groupMu.Lock()
	defer u.groupMu.Unlock()
	for _, g := range u.groups {
		socks = append(socks, g.rxSock)
	}
	u.groups = nil
	return socks
}

// groupSocket opens the socket of a membership.
func groupSocket(k groupKey, port uint16, gro bool) (int, error) {
	opts := rxOptions4
	if k.group.Is6() {
		opts = rxOptions6
	}
	fd, err := newSocket(k.group.Is6(), opts)
	if err != nil {
		return -1, err
	}
	if gro {
		_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	// Linux 6.18 gives a packet for which one socket is a member to any of those that share address, port and device by
	// SO_REUSEPORT, members or not. Sockets of one interface are all members. Before Linux 5.7 this needs privileges, and is not needed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, k.index)
	if err := unix.Bind(fd, sockaddr(k.group, port, uint32(k.index))); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	if err := membership(fd, k, true); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

// membership joins or leaves: the kernel tells routers by IGMP or MLD.
func membership(fd int, k groupKey, join bool) error {
	if k.group.Is4() {
		opt := unix.IP_DROP_MEMBERSHIP
		if join {
			opt = unix.IP_ADD_MEMBERSHIP
		}
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, opt, &unix.IPMreqn{Multiaddr: k.group.As4(), Ifindex: int32(k.index)})
	}
	opt := unix.IPV6_LEAVE_GROUP
	if join {
		opt = unix.IPV6_JOIN_GROUP
	}
	return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, opt, &unix.IPv6Mreq{Multiaddr: k.group.As16(), Interface: uint32(k.index)})
}

// GroupRoute implements [Groups]. Errors are bare errnos.
func (u *UDP) GroupRoute(local, group netip.Addr) (Route, error) {
	local, group = local.Unmap(), group.Unmap()
	if !group.IsMulticast() {
		return Route{}, syscall.EINVAL
	}
	if local.IsValid() && local.Is6() != group.Is6() {
		return Route{}, syscall.EADDRNOTAVAIL
	}
	if local.IsUnspecified() {
		local = netip.Addr{}
	}
	ifi, err := groupInterface(local, group)
	if err != nil {
		return Route{}, bare(err)
	}
	if !local.IsValid() {
		if local, err = addrFor(ifi, group); err != nil {
			return Route{}, bare(err)
		}
	}
	r := Route{Local: local, Remote: group.WithZone(""), Interface: ifi.Name, Index: ifi.Index, MTU: ifi.MTU}
	if scoped(group) {
		r.Remote = group.WithZone(ifi.Name)
	}
	if scoped(local) {
		r.Local = local.WithZone(ifi.Name)
	}
	if group.Is6() {
		if err := hasRoute6(group, ifi.Index); err != nil {
			return Route{}, bare(err)
		}
	}
	return r, nil
}

// hasRoute6 tells whether an interface leads to an IPv6 group. Linux gives the loopback interface no such route, while IPv4 needs
// none when the source address is given.
func hasRoute6(group netip.Addr, index int) error {
	fd, err := newSocket(true, []option{{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index, true}})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, sockaddr(group, Port, uint32(index)))
}

func groupInterface(local, group netip.Addr) (*net.Interface, error) {
	if zone := group.Zone(); zone != "" {
		return interfaceUp(scopeOf(group))
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	if local.IsValid() {
		return interfaceOf(ifs, local)
	}
	if r, fd, err := connectTo(netip.Addr{}, group); err == nil {
		_ = unix.Close(fd)
		if ifi, err := outInterface(r); err == nil {
			return ifi, nil
		}
	}
	var loopback *net.Interface
	for i := range ifs {
		ifi := &ifs[i]
		if _, err := addrFor(ifi, group); err != nil || ifi.Flags&net.FlagUp == 0 {
			continue
		}
		switch {
		case ifi.Flags&net.FlagLoopback != 0:
			loopback = ifi
		case ifi.Flags&net.FlagMulticast != 0:
			return ifi, nil
		}
	}
	if loopback == nil {
		return nil, syscall.ENETUNREACH
	}
	return loopback, nil
}

// AddrRoute implements [Groups]. Errors are bare errnos.
func (u *UDP) AddrRoute(local netip.Addr) (Route, error) {
	local = local.Unmap()
	ifs, err := net.Interfaces()
	if err != nil {
		return Route{}, bare(err)
	}
	ifi, err := interfaceOf(ifs, local)
	if err != nil {
		return Route{}, err
	}
	if scoped(local) {
		local = local.WithZone(ifi.Name)
	}
	return Route{Local: local, Interface: ifi.Name, Index: ifi.Index, MTU: ifi.MTU}, nil
}

// interfaceOf finds the interface that has an address.
func interfaceOf(ifs []net.Interface, local netip.Addr) (*net.Interface, error) {
	for i := range ifs {
		if slices.Contains(addrsOf(&ifs[i]), local.WithZone("")) && (local.Zone() == "" || scopeOf(local) == uint32(ifs[i].Index)) {
			return &ifs[i], nil
		}
	}
	for i := range ifs {
		if local.IsLoopback() && local.Is4() && ifs[i].Flags&net.FlagLoopback != 0 { // all of 127.0.0.0/8 is ours
			return &ifs[i], nil
		}
	}
	return nil, syscall.EADDRNOTAVAIL
}

func interfaceUp(index uint32) (*net.Interface, error) {
	ifi, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return nil, syscall.ENODEV
	}
	if ifi.Flags&net.FlagUp == 0 {
		return nil, syscall.ENETDOWN
	}
	return ifi, nil
}

// addrsOf lists an interface's addresses, without zones.
func addrsOf(ifi *net.Interface) (l []netip.Addr) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a); ok {
			l = append(l, p.Addr())
		}
	}
	return l
}

// addrFor picks the address of an interface that packets to a group come from: of the group's family, and for a group of
// more than the link, if possible, of more than the link too.
func addrFor(ifi *net.Interface, group netip.Addr) (netip.Addr, error) {
	var second netip.Addr
	for _, a := range addrsOf(ifi) {
		switch {
		case a.Is6() != group.Is6():
		case a.Is4() || a.IsLinkLocalUnicast() == scoped(group):
			return a, nil
		case !second.IsValid():
			second = a
		}
	}
	if !second.IsValid() {
		return second, syscall.EADDRNOTAVAIL
	}
	return second, nil
}
