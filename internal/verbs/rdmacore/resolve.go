//go:build linux && cgo

package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Addresses and routes are asked for again after this long, then after twice as long, so many times in all. The
// kernel itself asks a neighbour several times meanwhile.
const (
	firstTry = time.Second
	tries    = 5
)

func checkSpace(ps verbs.PortSpace) error {
	if ps != verbs.PSTCP && ps != verbs.PSIB && !isUD(ps) {
		return unsupported("port space " + ps.String())
	}
	return nil
}

// checkZone refuses an address whose interface is missing or not there; the kernel has but EINVAL for both.
func checkZone(a netip.Addr) error {
	switch {
	case a.Zone() != "":
		if _, err := zoneIndex(a.Zone()); err != nil {
			return fmt.Errorf("zone of %v: %w", a, err)
		}
	case a.Is6() && a.IsLinkLocalUnicast():
		return fmt.Errorf("link-local address %v without its interface (%v%%eth0): %w", a, a, syscall.EINVAL)
	}
	return nil
}

// zoneIndex returns the index of the interface that a zone names, or the number that it is.
func zoneIndex(zone string) (uint32, error) {
	ifi, err := net.InterfaceByName(zone)
	if err == nil {
		return uint32(ifi.Index), nil
	}
	if n, nerr := strconv.ParseUint(zone, 10, 32); nerr == nil {
		return uint32(n), nil
	}
	return 0, err
}

// Resolve implements [verbs.Provider].
func (p *Provider) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("rdmacore: resolving %v: %w", attr.Remote, err)
	}
	if err := p.check(attr.Device, attr.Port); err != nil {
		return nil, err
	}
	if err := checkSpace(attr.PortSpace); err != nil {
		return nil, err
	}
	c, err := p.core.resolve(ctx, attr)
	switch {
	case err == nil:
		return c.public(), nil
	case errors.Is(err, verbs.ErrNoDevice):
		return nil, err
	case errors.Is(err, syscall.ENODEV):
		return nil, noDevice(fmt.Errorf("no RDMA device has a route to %v, there are %q: %w", attr.Remote.Addr(), p.host.devices(), err))
	}
	return nil, fmt.Errorf("rdmacore: resolving %v: %w", attr.Remote, p.spaceFailure(attr.PortSpace, err))
}

// endpoints are the addresses that an identifier shall have, as the kernel is asked for them. The zero value of
// a Local lets it choose; only identifiers for datagrams may have that of a Remote, or a group there.
func endpoints(attr *verbs.CMIDAttr) (to, from netip.AddrPort, err error) {
	dst, ud := attr.Remote.Addr().Unmap(), isUD(attr.PortSpace)
	switch {
	case !dst.IsValid() && !ud:
		return to, from, syscall.EINVAL
	case dst.IsMulticast() && !ud:
		return to, from, syscall.ENETUNREACH
	case dst.IsValid() && dst.IsUnspecified(): // this host, as for connect(2)
		if dst = netip.IPv6Loopback(); attr.Remote.Addr().Is4() {
			dst = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
	}
	to = netip.AddrPortFrom(dst, attr.Remote.Port())
	src, port := attr.Local.Addr().Unmap(), attr.Local.Port()
	switch {
	case src.IsValid() && !src.IsUnspecified():
		from = netip.AddrPortFrom(src, port)
	case port == 0 || !dst.IsValid():
	case dst.Is4(): // only a port was to be chosen
		from = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	default:
		from = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	for _, a := range []netip.Addr{dst, src} {
		if err := checkZone(a); err != nil {
			return to, from, err
		}
	}
	return to, from, nil
}

func (c *core) resolve(ctx context.Context, attr *verbs.CMIDAttr) (*cmid, error) {
	to, from, err := endpoints(attr)
	if err == nil && isUD(attr.PortSpace) {
		from, err = c.datagramSource(attr, to, from)
	}
	if err != nil {
		return nil, err
	}
	id := &cmid{
		c: c, token: newToken(), active: true,
		remote: to,
		step:   make(chan cmEvent, 1), gone: make(chan struct{}), resolving: true,
	}
	if isUD(attr.PortSpace) {
		id.forDatagrams(attr.PortSpace, attr.TrafficClass)
	}
	ch, err := c.channel()
	if err != nil {
		return nil, noDevice(err)
	}
	id.ch = ch
	ch.add(id.token, id)
	if id.h, err = coreCreateID(ch.ec, attr.PortSpace, id.token); err == nil {
		err = id.resolve(ctx, from, attr)
	}
	if err != nil {
		ch.remove(id.token)
		c.idle.add(1)
		id.mu.Lock()
		id.closed = true
		id.destroy()
		id.mu.Unlock()
		return nil, err
	}
	id.events.SetHandler(attr.Handler)
	id.made.Made("identifier")
	return id, nil
}

// resolve binds the identifier to a device, which is held for it.
func (c *cmid) resolve(ctx context.Context, from netip.AddrPort, attr *verbs.CMIDAttr) error {
	if attr.TrafficClass != 0 {
		if err := coreSetTOS(c.h, attr.TrafficClass); err != nil {
			return fmt.Errorf("traffic class %d: %w", attr.TrafficClass, err)
		}
	}
	if !c.remote.Addr().IsValid() {
		if err := coreBind(c.h, from); err != nil {
			return err
		}
	} else if err := c.take(ctx, stepAddr, func(ms int) error { return coreResolveAddr(c.h, from, c.remote, ms) }); err != nil {
		return err
	}
	device, port, _, _ := coreInfo(c.h)
	if device == "" { // of an adapter whose GUID was 0 librdmacm has been seen to say so
		return noDevice(fmt.Errorf("librdmacm has found a way to %v and no device for it, there are %q: %w", c.remote.Addr(), c.c.p.host.devices(), syscall.ENODEV))
	}
	if attr.Device != "" && device != attr.Device || attr.Port != 0 && port != attr.Port {
		return noDevice(fmt.Errorf("%v is reached through %s/%d", c.remote.Addr(), device, port))
	}
	if c.ud != nil {
		c.ud.port = port
	}
	if c.ud == nil || c.ud.unicast() { // groups have no route
		if err := c.take(ctx, stepRoute, func(ms int) error { return coreResolveRoute(c.h, ms) }); err != nil {
			return err
		}
	}
	dev, err := c.c.use(device)
	if err != nil {
		return err
	}
	_, _, local, remote := coreInfo(c.h)
	if !c.remote.Addr().IsValid() {
		remote = netip.AddrPort{} // not the zero address
	}
	c.ch.watch(c.h)
	c.mu.Lock() // events come already
	defer c.mu.Unlock()
	c.dev, c.local, c.remote = dev, local, remote
	c.resolving = false
	if c.removed {
		return syscall.ENODEV
	}
	return nil
}

// take starts a step of resolving and waits for its end, with patience.
func (c *cmid) take(ctx context.Context, step uint32, start func(ms int) error) error {
	patience := firstTry
	for try := 1; ; try++ {
		c.begins(step)
		if err := start(int(patience.Milliseconds())); err != nil {
			return err
		}
		select {
		case ev := <-c.step:
			if ev.kind == cmAddrResolved || ev.kind == cmRouteResolved {
				return nil
			}
			if err := refusal(&ev); !errors.Is(err, syscall.ETIMEDOUT) || try == tries {
				return err
			}
			patience *= 2
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
