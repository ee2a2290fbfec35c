package softroce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// Provider is the embedded device as a [verbs.Provider]. Its one device serves
// every address of the host. It is open while anything uses it.
type Provider struct {
	cfg *Config

	mu      sync.Mutex
	inst    *instance              // the latest; it may be gone
	counted map[*instance]struct{} // not yet gone
	past    verbs.DeviceCounters   // of instances that are gone

	idle       sync.Mutex
	background int // connections whose owner is gone and whose peer must still be told
	drained    chan struct{}
}

var _ verbs.Provider = (*Provider)(nil)

// New returns a provider that works as cfg says.
func New(cfg *Config) *Provider { return &Provider{cfg: cfg} }

// Default returns the process's provider, on the host's network.
var Default = sync.OnceValue(func() *Provider { return New(&Config{}) })

// Name implements [verbs.Provider].
func (p *Provider) Name() string { return "softroce" }

// use returns the open device, held for the caller.
func (p *Provider) use() (*instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inst != nil && p.inst.dev.tryRetain() {
		return p.inst, nil
	}
	in, err := p.open()
	if err != nil {
		return nil, fmt.Errorf("softroce: %w: %w", verbs.ErrNoDevice, err)
	}
	p.inst = in
	if p.counted == nil {
		p.counted = make(map[*instance]struct{})
	}
	p.counted[in] = struct{}{}
	return in, nil
}

// forget is told that an instance is gone.
func (p *Provider) forget(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.counted, in)
	addCounters(&p.past, in.dev.counters())
	if p.inst == in {
		p.inst = nil
	}
}

// Devices implements [verbs.Provider]. A device that is not open is opened for
// a moment, to see that it can be.
func (p *Provider) Devices() ([]verbs.DeviceInfo, error) {
	in, err := p.use()
	if err != nil {
		return []verbs.DeviceInfo{{
			Name: p.cfg.name(), Provider: p.Name(), Unusable: err, Transport: verbs.TransportIB,
		}}, nil
	}
	defer in.dev.release()
	return []verbs.DeviceInfo{*in.dev.Info()}, nil
}

// checkDevice tells whether a name and port mean the device.
func (p *Provider) checkDevice(name string, port int) error {
	switch {
	case name != "" && name != p.cfg.name():
		return fmt.Errorf("softroce: %w: no device %q, only %q", verbs.ErrNoDevice, name, p.cfg.name())
	case port != 0 && port != 1:
		return fmt.Errorf("softroce: %w: device %s has no port %d", verbs.ErrNoDevice, p.cfg.name(), port)
	}
	return nil
}

func checkSpace(ps verbs.PortSpace) error {
	if ps != verbs.PSTCP && ps != verbs.PSIB && !datagrams(ps) {
		return unsupported("port space " + ps.String())
	}
	return nil
}

// useFor is use for somebody who may ask for a device, a port of it and a port space.
func (p *Provider) useFor(device string, port int, ps verbs.PortSpace) (*instance, error) {
	if err := p.checkDevice(device, port); err != nil {
		return nil, err
	}
	if err := checkSpace(ps); err != nil {
		return nil, err
	}
	return p.use()
}

// Open implements [verbs.Provider].
func (p *Provider) Open(name string) (verbs.Device, error) {
	if name == "" {
		return nil, fmt.Errorf("softroce: %w: a device without a name", verbs.ErrNoDevice)
	}
	if err := p.checkDevice(name, 0); err != nil {
		return nil, err
	}
	in, err := p.use()
	if err != nil {
		return nil, err
	}
	return in.dev, nil
}

// pathOverhead is what rdma_cm subtracts from an interface's MTU: GRH 40, UDP 8,
// BTH 12, RETH or the like 4, AtomicETH 28, ICRC 4.
const pathOverhead = 96

// pathMTU returns the largest payload for packets on an interface, or 0.
func pathMTU(mtu int) verbs.MTU {
	for m := verbs.MTU(4096); m >= minMTU; m /= 2 {
		if int(m)+pathOverhead <= mtu {
			return m
		}
	}
	return 0
}

// Resolve implements [verbs.Provider].
func (p *Provider) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("softroce: resolving %v: %w", attr.Remote, err)
	}
	in, err := p.useFor(attr.Device, attr.Port, attr.PortSpace)
	if err != nil {
		return nil, err
	}
	var c verbs.CMID
	if datagrams(attr.PortSpace) {
		c, err = p.resolveUD(in, attr)
	} else {
		c, err = p.resolve(in, attr)
	}
	if err != nil {
		in.dev.release()
		return nil, fmt.Errorf("softroce: resolving %v: %w", attr.Remote, err)
	}
	return c, nil
}

// here tells whether a route leads to this host.
func (in *instance) here(r netio.Route) bool {
	if r.Remote == r.Local || r.Remote.IsLoopback() {
		return true
	}
	addrs, err := in.dev.conn.Addrs()
	return err == nil && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.WithZone("") == r.Remote.WithZone("") })
}

func (p *Provider) resolve(in *instance, attr *verbs.CMIDAttr) (*cmid, error) {
	to := attr.Remote.Addr().Unmap()
	switch {
	case !to.IsValid():
		return nil, syscall.EINVAL
	case to.IsMulticast():
		return nil, syscall.ENETUNREACH
	case to.IsUnspecified(): // this host, as for connect(2)
		to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if attr.Remote.Addr().Is6() {
			to = netip.IPv6Loopback()
		}
	}
	route, err := in.dev.conn.Route(attr.Local.Addr().Unmap(), to)
	if err != nil {
		return nil, err
	}
	mtu := pathMTU(route.MTU)
	if mtu == 0 {
		return nil, fmt.Errorf("interface %s has an MTU of %d bytes: %w", route.Interface, route.MTU, syscall.EMSGSIZE)
	}
	// Nothing is ever sent to the port of an active side: one that nobody chose need not be
	// known to other processes, which would cost a descriptor for each connection.
	ports := in.share
	if attr.Local.Port() == 0 {
		ports = in.sources
	}
	port, free, err := ports.BindPort(attr.PortSpace, route.Local, attr.Local.Port())
	if err != nil {
		return nil, err
	}
	c := &cmid{
		p: p, in: in, space: attr.PortSpace, active: true, tclass: attr.TrafficClass, mtu: mtu, freePort: free,
		far:   !in.here(route),
		local: netip.AddrPortFrom(route.Local, port), remote: netip.AddrPortFrom(route.Remote, attr.Remote.Port()),
		outcome: make(chan connectResult, 1), gone: make(chan struct{}),
	}
	c.made.Made("identifier")
	c.events.SetHandler(attr.Handler)
	return c, nil
}

// Listen implements [verbs.Provider].
func (p *Provider) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("softroce: listening on %v: %w", attr.Local, err)
	}
	in, err := p.useFor(attr.Device, attr.Port, attr.PortSpace)
	if err != nil {
		return nil, err
	}
	l, err := p.listen(in, attr)
	if err != nil {
		in.dev.release()
		return nil, fmt.Errorf("softroce: listening on %v: %w", attr.Local, err)
	}
	return l, nil
}

// Drain waits until the peers of all closed connections have been told, or
// will not answer any more, or ctx ends. A program that is about to exit calls it.
func (p *Provider) Drain(ctx context.Context) error {
	defer p.flushTrace()
	for {
		p.idle.Lock()
		n, ch := p.background, p.drained
		if n > 0 && ch == nil {
			ch = make(chan struct{})
			p.drained = ch
		}
		p.idle.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("softroce: %d connections are still being ended: %w", n, ctx.Err())
		}
	}
}

// flushTrace writes what the open device has recorded.
func (p *Provider) flushTrace() {
	p.mu.Lock()
	in := p.inst
	p.mu.Unlock()
	if in != nil && in.dev.trace != nil {
		in.dev.trace.Flush()
	}
}

// Drain is [Provider.Drain] of the process's provider.
func Drain(ctx context.Context) error { return Default().Drain(ctx) }

func (p *Provider) addBackground(n int) {
	p.idle.Lock()
	defer p.idle.Unlock()
	p.background += n
	if p.background == 0 && p.drained != nil {
		close(p.drained)
		p.drained = nil
	}
}

// qpPath is the way of a connection's queue pair.
func qpPath(local, remote netip.Addr, tclass uint8, flowLabel, lqpn, rqpn uint32) *netio.Path {
	path := &netio.Path{Local: local, Remote: remote, TrafficClass: tclass}
	path.SetFlow(partFlow(rqpn, flowOf(flowLabel, lqpn, rqpn)))
	return path
}

// flowOf is the convention by which Linux drivers make a UDP source port of a
// connection: of its flow label or else of its queue pairs.
func flowOf(label, lqpn, rqpn uint32) uint32 {
	if label == 0 {
		v := uint64(lqpn) * uint64(rqpn)
		v ^= v>>20 ^ v>>40
		label = uint32(v & 0xfffff)
	}
	return 0xc000 | label&0x3fff ^ label>>14
}
