package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/go-rdma/rdma/internal/dgram"
)

// JoinFlags say how to join a group.
type JoinFlags int

const (
	// JoinSendOnly asks for a membership that receives nothing. Where it cannot be had the error is [errors.ErrUnsupported];
	// it is never a full one in silence.
	JoinSendOnly JoinFlags = 1 << iota
	// JoinIPoIB joins in the port space RDMA_PS_IPOIB: the group of IP over InfiniBand with that address, and its Q_Key.
	// Members of one port space do not hear those of another.
	JoinIPoIB
	// JoinUnmapped takes the group for a multicast GID (MGID) as it is, 16 bytes that are not made of an IP address. It is an
	// Addr's UD.GID if that is set, else its IP. On RoCE the MGID of an IP group is its address, of IPv4 ::ffff:239.1.2.3.
	JoinUnmapped
)

// ListenMulticast joins a group and returns what is sent to it, as [net.ListenMulticastUDP] does on UDP. The network
// is "rdma-ud", "rdma-ud4" or "rdma-ud6"; the interface may be nil, which leaves the choice to the routes. The
// group's address is 0.0.0.0 or :: for a fresh one, which LocalAddr then names (on InfiniBand the subnet
// administrator picks it, softroce picks at random; other RoCE devices have none). Ports mean nothing to groups.
//
// It is also how to send to the group and to answer its members. What c sends to the group does not come
// back to it, unless SetMulticastLoopback says so.
func ListenMulticast(network string, ifi *net.Interface, group *Addr) (*PacketConn, error) {
	return new(ListenConfig).ListenMulticast(context.Background(), network, ifi, group, 0)
}

// ListenMulticast joins a group, see the function [ListenMulticast], in the manner that the flags say. The context ends the joining only.
// The fields about connections and lookups mean nothing here.
func (lc *ListenConfig) ListenMulticast(ctx context.Context, network string, ifi *net.Interface, group *Addr, f JoinFlags) (*PacketConn, error) {
	nw, err := parseDatagrams(network)
	if err != nil {
		return nil, packetError("listen", network, nil, nil, PhaseResolve, err)
	}
	if group == nil {
		return nil, packetError("listen", nw.name, nil, nil, PhaseResolve, errMissingAddress)
	}
	c := &PacketConn{s: dgram.New(lc.socket()), network: nw}
	a, err := c.join(ctx, ifi, group, f)
	if err == nil {
		err = c.s.SetLoopback(false)
	}
	if err != nil {
		_ = c.s.Close() // the first error says more
		return nil, packetError("listen", nw.name, nil, group, packetPhase(err, PhaseRoute), contextError(ctx, err))
	}
	a.Port = group.Port
	c.group = a
	return c.opened(), nil
}

// JoinGroup makes c a member of a group on an interface, or with ifi nil on the one that c is bound to or that routes
// lead to. It returns the group's address, which matters if group is 0.0.0.0 or ::, as for [ListenMulticast]. A group may be given as
// *Addr, *net.UDPAddr or *net.IPAddr. The context ends the joining only.
//
// Errors: EINVAL if it is no group, EADDRINUSE if c is a member, [errors.ErrUnsupported] for what the device or its driver cannot do
// (rdma_cm of Linux 6.1 has no IPv6 groups on RoCE).
func (c *PacketConn) JoinGroup(ctx context.Context, ifi *net.Interface, group net.Addr, f JoinFlags) (*Addr, error) {
	if !c.ok() {
		return nil, syscall.EINVAL
	}
	a, err := c.join(ctx, ifi, group, f)
	if err != nil {
		return nil, c.opError("set", group, contextError(ctx, err))
	}
	return a, nil
}

func (c *PacketConn) join(ctx context.Context, ifi *net.Interface, group net.Addr, f JoinFlags) (*Addr, error) {
	if f&^(JoinSendOnly|JoinIPoIB|JoinUnmapped) != 0 {
		return nil, fmt.Errorf("unknown JoinFlags %#x: %w", int(f), syscall.EINVAL)
	}
	j := dgram.Join{SendOnly: f&JoinSendOnly != 0, IPoIB: f&JoinIPoIB != 0}
	ip, gid, err := groupAddr(group)
	if err != nil {
		return nil, err
	}
	like := ip
	if f&JoinUnmapped != 0 {
		if gid == ([16]byte{}) {
			gid = ip.WithZone("").As16()
		}
		if ip.IsUnspecified() {
			gid = [16]byte{}
		}
		j.MGID = netip.AddrFrom16(gid)
		like = j.MGID.Unmap()
	} else {
		if !c.network.allows(ip) {
			return nil, &net.AddrError{Err: "not of the network " + c.network.name, Addr: ip.String()}
		}
		j.Group = ip
	}
	if ifi != nil {
		if j.Local, err = interfaceAddr(ifi, like, f&JoinUnmapped != 0); err != nil {
			return nil, err
		}
		if ip.Is6() && ip.IsMulticast() && !j.MGID.IsValid() {
			j.Group = ip.WithZone(ifi.Name)
		}
	}
	a, err := c.s.Join(ctx, &j)
	if err != nil {
		return nil, err
	}
	return addrOfPeer(a), nil
}

// groupAddr reads the address of a group.
func groupAddr(a net.Addr) (ip netip.Addr, gid [16]byte, err error) {
	switch a := a.(type) {
	case *Addr:
		if a == nil {
			return ip, gid, errMissingAddress
		}
		gid = a.UD.GID
	case nil:
		return ip, gid, errMissingAddress
	}
	ap, err := localAddrPort(a)
	if err != nil {
		return ip, gid, &net.AddrError{Err: "mismatched address type of a group", Addr: a.String()}
	}
	if ip = ap.Addr(); !ip.IsValid() {
		if gid == ([16]byte{}) {
			return ip, gid, errMissingAddress
		}
		ip = netip.AddrFrom16(gid).Unmap()
	}
	return ip, gid, nil
}

// interfaceAddr returns the address of an interface that a group is joined with: one of the group's family, and of a scope that suits. For an
// MGID another family will do.
func interfaceAddr(ifi *net.Interface, group netip.Addr, anyFamily bool) (netip.Addr, error) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	var best netip.Addr
	rank := 0
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ip.IsLinkLocalUnicast() && ip.Is6() {
			ip = ip.WithZone(ifi.Name)
		}
		r := 1
		switch {
		case ip.Is4() != group.Is4() && !anyFamily:
			continue
		case ip.Is4() != group.Is4():
		case ip.IsLinkLocalUnicast() == group.IsLinkLocalMulticast():
			r = 3
		default:
			r = 2
		}
		if r > rank {
			best, rank = ip, r
		}
	}
	if rank == 0 {
		family := "IPv6"
		if group.Is4() {
			family = "IPv4"
		}
		return best, fmt.Errorf("interface %s has no %s address: %w", ifi.Name, family, syscall.EADDRNOTAVAIL)
	}
	return best, nil
}

// LeaveGroup ends a membership: that on an interface, or with ifi nil any one of the group. What is no
// member gives EADDRNOTAVAIL.
func (c *PacketConn) LeaveGroup(ifi *net.Interface, group net.Addr) error {
	if !c.ok() {
		return syscall.EINVAL
	}
	ip, gid, err := groupAddr(group)
	var local netip.Addr
	if err == nil && ifi != nil {
		if local, err = interfaceAddr(ifi, ip, false); errors.Is(err, syscall.EADDRNOTAVAIL) {
			local, err = interfaceAddr(ifi, ip, true)
		}
	}
	if err == nil {
		err = c.s.Leave(ip, local)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && gid != ([16]byte{}) {
			err = c.s.Leave(netip.AddrFrom16(gid), local)
		}
	}
	return c.opError("set", group, err)
}

// SetMulticastLoopback says whether what c sends to groups that it is a member of comes back to c. Other members on this host get it
// in any case. It does come back, if c was not made by [ListenMulticast].
func (c *PacketConn) SetMulticastLoopback(on bool) error {
	return c.set(func() error { return c.s.SetLoopback(on) })
}
