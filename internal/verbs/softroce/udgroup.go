package softroce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// Join implements [verbs.UDCMID]. On RoCE a group is an IP multicast group: a member's host tells its
// routers by IGMP or MLD, and a membership to send only tells nobody.
func (c *udid) Join(ctx context.Context, attr *verbs.JoinAttr) (*verbs.UDParam, error) {
	what := "joining a group"
	if g := attr.Group; g.IsValid() {
		what = "joining " + g.String()
	} else if attr.MGID.IsValid() {
		what = "joining MGID " + attr.MGID.String()
	}
	if err := ctx.Err(); err != nil {
		return nil, c.failure(what, err)
	}
	p, err := c.join(attr)
	if err != nil {
		return nil, c.failure(what, err)
	}
	return p, nil
}

func (c *udid) join(attr *verbs.JoinAttr) (*verbs.UDParam, error) {
	group, err := c.group(attr)
	if err != nil {
		return nil, err
	}
	r, err := c.groupRoute(group)
	if err != nil {
		return nil, noGroupRoute(group, err)
	}
	mtu := pathMTU(r.MTU)
	if mtu == 0 {
		return nil, fmt.Errorf("interface %s has an MTU of %d bytes: %w", r.Interface, r.MTU, syscall.EMSGSIZE)
	}
	key := groupKey{r.Remote.WithZone(""), r.Index}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.groups[key.addr]
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case is:
		return nil, fmt.Errorf("the identifier is a member: %w", syscall.EADDRINUSE)
	case c.q == nil && !attr.SendOnly:
		return nil, wrongState("no queue pair")
	}
	if !attr.SendOnly {
		if err := c.in.dev.groups.join(c.in.dev.conn, key, c.q); err != nil {
			return nil, fmt.Errorf("on interface %s: %w", r.Interface, err)
		}
	}
	if c.groups == nil {
		c.groups = make(map[netip.Addr]membership)
	}
	c.groups[key.addr] = membership{key, attr.SendOnly}
	return &verbs.UDParam{
		AH:  verbs.AHAttr{Local: r.Local, Remote: r.Remote, TrafficClass: c.tclass, Port: 1},
		QPN: verbs.MulticastQPN, QKey: spaceQKey(c.space),
	}, nil
}

// group returns the IP address of the group that is meant.
func (c *udid) group(attr *verbs.JoinAttr) (netip.Addr, error) {
	group := attr.Group.Unmap()
	switch {
	case attr.Group.IsValid() && attr.MGID.IsValid():
		return group, fmt.Errorf("both a group and an MGID: %w", syscall.EINVAL)
	case attr.MGID.IsValid():
		// As a GID of RoCE v2, which is that of an IP address (annex A17): of IPv4, ::ffff:0:0/96.
		if group = attr.MGID.Unmap(); attr.MGID.Is4() {
			return group, fmt.Errorf("an MGID has 16 bytes: %w", syscall.EINVAL)
		}
	case !group.IsValid():
		return group, fmt.Errorf("neither a group nor an MGID: %w", syscall.EINVAL)
	}
	switch {
	case group.IsUnspecified():
		return c.fresh(group.Is4()), nil
	case !group.IsMulticast():
		return group, fmt.Errorf("%v is no multicast address (those are 224.0.0.0 to 239.255.255.255, and ff00::/8): %w",
			group, syscall.EINVAL)
	}
	return group, nil
}

// fresh is a group that nobody is likely to have: nobody keeps count of groups on an IP network. They are of organization-local
// scope: 239.192.0.0/14 (RFC 2365 6.2), and ff18::/16 with a group identifier of those that are not assigned (RFC 4291 2.7,
// RFC 3307 4.3).
func (c *udid) fresh(v4 bool) netip.Addr {
	r := c.p.cfg.random64()
	if v4 {
		b := [4]byte{239, 192 | byte(r>>16)&3, byte(r >> 8), byte(r)}
		return netip.AddrFrom4(b)
	}
	b := [16]byte{0: 0xff, 1: 0x18, 12: 0x80}
	binary.BigEndian.PutUint64(b[4:], c.p.cfg.random64())
	binary.BigEndian.PutUint32(b[12:], uint32(r)|1<<31)
	return netip.AddrFrom16(b)
}

// groupRoute finds the interface for a group: the identifier's, unless the group names another one.
func (c *udid) groupRoute(group netip.Addr) (netio.Route, error) {
	local := c.local.Addr()
	if local.IsUnspecified() {
		local = netip.Addr{}
	}
	if group.Zone() != "" {
		if c.ifi != "" && c.ifi != group.Zone() {
			return netio.Route{}, fmt.Errorf("the identifier is bound to interface %s: %w", c.ifi, syscall.EINVAL)
		}
	} else if group.Is6() && c.ifi != "" {
		group = group.WithZone(c.ifi)
	}
	if !local.IsValid() || local.Is6() == group.Is6() {
		return c.in.dev.conn.GroupRoute(local, group)
	}
	if group.Is4() {
		return netio.Route{}, fmt.Errorf("an IPv4 group, and the identifier is bound to %v: %w", local, syscall.EAFNOSUPPORT)
	}
	// A group identifier that is no IPv4 address is an IPv6 one, and what is sent to it comes from an IPv6 address.
	r, err := c.in.dev.conn.GroupRoute(netip.Addr{}, group)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		err = fmt.Errorf("interface %s has no IPv6 address, which RoCE v2 needs for a group identifier that is not an IPv4 one (::ffff:239.1.2.3, say): %w",
			c.ifi, errors.ErrUnsupported)
	}
	return r, err
}

// noGroupRoute says what helps where a host has no route for groups.
func noGroupRoute(group netip.Addr, err error) error {
	if !group.IsMulticast() || !errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if group.Is6() {
		return fmt.Errorf("no route for IPv6 groups on the interface; Linux gives lo none (root adds one by: ip -6 route add multicast ff00::/8 dev lo table local): %w, %w",
			err, errors.ErrUnsupported)
	}
	return fmt.Errorf("no interface can do multicast: %w, %w", err, errors.ErrUnsupported)
}

// Leave implements [verbs.UDCMID].
func (c *udid) Leave(p *verbs.UDParam) error {
	addr := p.AH.Remote.Unmap().WithZone("")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.failure("leaving a group", net.ErrClosed)
	}
	m, ok := c.groups[addr]
	if !ok {
		return c.failure("leaving "+addr.String(), fmt.Errorf("the identifier is no member: %w", syscall.EADDRNOTAVAIL))
	}
	delete(c.groups, addr)
	if !m.sendOnly {
		c.in.dev.groups.drop(m.key, c.q) // it may be closed, and has left then
	}
	return nil
}
