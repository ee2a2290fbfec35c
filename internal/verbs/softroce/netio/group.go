package netio

import "net/netip"

// Groups is the part of [Conn] that multicast takes. Groups are IPv4 or IPv6 multicast addresses, of which a packet is
// received on the interfaces that it was asked for on and on no other; interfaces are meant by their index.
type Groups interface {
	// GroupRoute finds the interface by which a group is reached, in this order: that of the group's zone, that which has the
	// address local, that of the host's routes, the first one that can do multicast. The route's Local is local, or
	// an address of the interface that packets may come from.
	GroupRoute(local, group netip.Addr) (Route, error)

	// AddrRoute finds the interface that has an address of this host's. The route's Remote is not set.
	AddrRoute(local netip.Addr) (Route, error)

	// JoinGroup lets packets to a group come that arrive on an interface, those that are sent from this host included. They come once,
	// however often it is called; leave undoes one call. It does not wait for a handler.
	JoinGroup(group netip.Addr, index int) (leave func(), err error)
}
