package cm

import (
	"context"
	"net"
	"net/netip"
	"syscall"
)

// Family restricts what a name may mean.
type Family uint8

const (
	AnyFamily Family = iota
	IPv4
	IPv6
)

func (f Family) ipNetwork() string { return [...]string{"ip", "ip4", "ip6"}[f] }

// portNetwork is what LookupPort calls the port space: service names are TCP's.
func (f Family) portNetwork() string { return [...]string{"tcp", "tcp4", "tcp6"}[f] }

func (f Family) allows(a netip.Addr) bool {
	switch f {
	case IPv4:
		return a.Is4()
	case IPv6:
		return a.Is6()
	}
	return true
}

// loopback is what an unspecified address means to one who dials it.
func (f Family) loopback() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Lookup reads "host:port" as package net does and returns the addresses in
// the resolver's order, without those of the wrong family. A host that is left out is
// the single invalid address with the port. r may be nil.
func Lookup(ctx context.Context, r *net.Resolver, f Family, address string) ([]netip.AddrPort, error) {
	if address == "" {
		return nil, &net.AddrError{Err: "missing address"}
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = net.DefaultResolver
	}
	n, err := r.LookupPort(ctx, f.portNetwork(), service)
	if err != nil {
		return nil, err
	}
	port := uint16(n) // LookupPort gives no other
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, port)}, nil
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = r.LookupNetIP(ctx, f.ipNetwork(), host); err != nil {
		return nil, err
	}
	var addrs []netip.AddrPort
	for _, ip := range ips {
		if ip = ip.Unmap(); f.allows(ip) {
			addrs = append(addrs, netip.AddrPortFrom(ip, port))
		}
	}
	if len(addrs) == 0 {
		return nil, &net.AddrError{Err: "no suitable address found", Addr: host}
	}
	return addrs, nil
}

// LookupDial is [Lookup] for one who dials: an address that is left out or
// unspecified is this host's loopback address.
func LookupDial(ctx context.Context, r *net.Resolver, f Family, address string) ([]netip.AddrPort, error) {
	addrs, err := Lookup(ctx, r, f, address)
	for i, a := range addrs {
		switch ip := a.Addr(); {
		case !ip.IsValid():
			addrs[i] = netip.AddrPortFrom(f.loopback(), a.Port())
		case ip.IsUnspecified() && ip.Is4():
			addrs[i] = netip.AddrPortFrom(IPv4.loopback(), a.Port())
		case ip.IsUnspecified():
			addrs[i] = netip.AddrPortFrom(IPv6.loopback(), a.Port())
		}
	}
	return addrs, err
}

// LookupListen is [Lookup] for one who listens. Of several addresses it takes the
// first IPv4 one, if any. No address at all is ":0". dual tells that the unspecified address means both families.
func LookupListen(ctx context.Context, r *net.Resolver, f Family, address string) (a netip.AddrPort, dual bool, err error) {
	if address == "" {
		address = ":0"
	}
	addrs, err := Lookup(ctx, r, f, address)
	if err != nil {
		return netip.AddrPort{}, false, err
	}
	a = addrs[0]
	for _, b := range addrs {
		if b.Addr().Is4() {
			a = b
			break
		}
	}
	ip := a.Addr()
	if ip.IsValid() && !ip.IsUnspecified() {
		if ip.IsMulticast() {
			return a, false, syscall.EADDRNOTAVAIL
		}
		return a, false, nil
	}
	// As package net: "0.0.0.0" without a 4 in the network is every address too.
	if f == IPv4 {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), a.Port()), false, nil
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port()), f == AnyFamily, nil
}
