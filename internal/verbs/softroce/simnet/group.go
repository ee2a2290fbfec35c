package simnet

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// index is that of the one interface that each host has.
const index = 1

// GroupRoute implements [netio.Groups].
func (c *conn) GroupRoute(local, group netip.Addr) (netio.Route, error) {
	if !group.IsMulticast() {
		return netio.Route{}, fmt.Errorf("simnet: %v is no group: %w", group, syscall.EINVAL)
	}
	r, err := c.Route(local, group.WithZone(""))
	r.Index = index
	return r, err
}

// AddrRoute implements [netio.Groups].
func (c *conn) AddrRoute(local netip.Addr) (netio.Route, error) {
	r, err := c.Route(local, local)
	r.Remote, r.Index = netip.Addr{}, index
	return r, err
}

// JoinGroup implements [netio.Groups].
func (c *conn) JoinGroup(group netip.Addr, i int) (leave func(), err error) {
	if !group.IsMulticast() || i != index {
		return nil, fmt.Errorf("simnet: %v on interface %d: %w", group, i, syscall.EINVAL)
	}
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	c.groups = append(c.groups, group.WithZone(""))
	left := false
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if !left {
			left = true
			i := slices.Index(c.groups, group.WithZone(""))
			c.groups = slices.Delete(c.groups, i, i+1)
		}
	}, nil
}

// multicast sends a copy of a frame to each process that is a member of the group. Each has its own fate, that of packets
// between the two hosts. Network.mu is held.
func (n *Network) multicast(now time.Time, f *frame) {
	group := f.dst.Addr().WithZone("")
	for _, h := range n.order {
		for _, c := range h.conns {
			if !slices.Contains(c.groups, group) {
				continue
			}
			g := n.frame()
			buf := g.buf[:0]
			*g = *f
			g.buf, g.to = buf, c
			g.buf = append(g.buf, f.buf...)
			n.launch(now, g)
		}
	}
	n.recycle(f)
}
