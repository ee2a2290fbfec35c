//go:build linux

package shm

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Provider is shared memory as a [verbs.Provider].
type Provider struct {
	id    [16]byte // of the process, to those it has links with
	ports portTable

	foreign  foreigners
	patience patience

	regions   regionTable // of devices that were opened
	domains   atomic.Uint32
	sharedIDs atomic.Uint32

	mu      sync.Mutex
	links   map[[16]byte]*dialing
	sources map[netip.AddrPort]int // ports of active sides that nobody chose
}

var _ verbs.Provider = (*Provider)(nil)

// New returns a provider that is a process of its own to others.
func New() *Provider {
	p := &Provider{links: make(map[[16]byte]*dialing), sources: make(map[netip.AddrPort]int), patience: defaultPatience}
	p.regions.base = maxMRs
	_, _ = crand.Read(p.id[:]) // which never fails
	return p
}

// Default returns the process's provider.
var Default = sync.OnceValue(New)

// Name implements [verbs.Provider].
func (p *Provider) Name() string { return "shm" }

// Devices implements [verbs.Provider].
func (p *Provider) Devices() ([]verbs.DeviceInfo, error) { return []verbs.DeviceInfo{*p.info()}, nil }

// Find implements [verbs.Finder].
func (p *Provider) Find(name string) (info verbs.DeviceInfo, ok bool) {
	if name != deviceName {
		return info, false
	}
	return *p.info(), true
}

// check tells whether a name, port and port space are served.
func (p *Provider) check(name string, port int, ps verbs.PortSpace) error {
	switch {
	case name != "" && name != deviceName:
		return fmt.Errorf("shm: %w: no device %q, only %q", verbs.ErrNoDevice, name, deviceName)
	case port != 0 && port != 1:
		return fmt.Errorf("shm: %w: device %s has no port %d", verbs.ErrNoDevice, deviceName, port)
	case ps != verbs.PSTCP && ps != verbs.PSIB:
		return fmt.Errorf("shm: %w: port space %v: %w", verbs.ErrNoDevice, ps, errors.ErrUnsupported)
	}
	return nil
}

// Open implements [verbs.Provider]. Each device is one of its own: who has a connection with one domain of it sees what is registered there.
func (p *Provider) Open(name string) (verbs.Device, error) {
	if name == "" {
		return nil, fmt.Errorf("shm: %w: a device without a name", verbs.ErrNoDevice)
	}
	if err := p.check(name, 0, verbs.PSTCP); err != nil {
		return nil, err
	}
	d, err := p.newDeviceWith(regOff) // nobody sees its board, which is for completion queues
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	d.open, d.table = true, &p.regions
	return d, nil
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Resolve implements [verbs.Provider].
func (p *Provider) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	c, err := p.resolve(ctx, attr)
	if err != nil {
		return nil, fmt.Errorf("shm: resolving %v: %w", attr.Remote, err)
	}
	return c, nil
}

func (p *Provider) resolve(ctx context.Context, attr *verbs.CMIDAttr) (*cmid, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.check(attr.Device, attr.Port, attr.PortSpace); err != nil {
		return nil, err
	}
	to := attr.Remote.Addr().Unmap()
	switch {
	case !to.IsValid():
		return nil, syscall.EINVAL
	case to.IsUnspecified(): // this host, as for connect(2)
		to = localhost
		if attr.Remote.Addr().Is6() {
			to = netip.IPv6Loopback()
		}
	}
	from := attr.Local.Addr().Unmap()
	if !from.IsValid() || from.IsUnspecified() {
		if from = to; to.Is4() && to.IsLoopback() {
			from = localhost
		}
	}
	switch {
	case !own(to):
		return nil, fmt.Errorf("%w: shared memory reaches this host, in this network namespace, and no other", verbs.ErrNoDevice)
	case !own(from):
		return nil, fmt.Errorf("source address %v: %w", from, syscall.EADDRNOTAVAIL)
	case from.Is4() != to.Is4():
		return nil, fmt.Errorf("source address %v for %v: %w", from, to, syscall.EINVAL)
	}
	wanted, ok := toAddress(netip.AddrPortFrom(to, 0))
	if !ok {
		return nil, fmt.Errorf("address %v: %w", to, syscall.EINVAL)
	}
	d, err := (*device)(nil), errNobody // nobody listens at port 0
	if port := attr.Remote.Port(); port != 0 {
		d, err = p.dial(ctx, portKey{attr.PortSpace, port}, wanted, attr.AnyUser)
	}
	if errors.Is(err, errNobody) && (attr.Device != "" || attr.Remote.Port() == 0) {
		// It is the way there that is asked for, or this device and no other: the refusal is Connect's to tell.
		d, err = p.newDevice()
	}
	if err != nil {
		return nil, err
	}
	port, free, err := p.source(attr.PortSpace, netip.AddrPortFrom(from, attr.Local.Port()))
	if err != nil {
		d.release()
		return nil, err
	}
	c := &cmid{
		dev: d, link: d.link, active: true, space: attr.PortSpace, freePort: free,
		local: netip.AddrPortFrom(from, port), remote: netip.AddrPortFrom(to, attr.Remote.Port()),
		answer: make(chan outcome, 1), gone: make(chan struct{}),
	}
	c.made.Made("identifier")
	c.events.SetHandler(attr.Handler)
	return c, nil
}

// source binds the port of an active side. Nothing is ever sent to it: one that nobody chose need not be known
// to other processes.
func (p *Provider) source(ps verbs.PortSpace, at netip.AddrPort) (port uint16, free func(), err error) {
	if port = at.Port(); port != 0 {
		l := &listener{p: p, bound: at.Addr()}
		if err := p.ports.bind(l, ps, port, p.claim); err != nil {
			return 0, nil, err
		}
		return port, sync.OnceFunc(func() { p.ports.remove(l.key, l) }), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := rand.IntN(freePorts)
	for i := 0; ; i++ {
		port = uint16(firstFree + (n+i)%freePorts)
		k := netip.AddrPortFrom(at.Addr(), port)
		if p.sources[k] == 0 || i == freePorts { // more connections than ports: some are twice
			p.sources[k]++
			return port, sync.OnceFunc(func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				if p.sources[k]--; p.sources[k] == 0 {
					delete(p.sources, k)
				}
			}), nil
		}
	}
}

// canShare tells whether a listener can have what each of its connections needs: else it would take them and fail.
func canShare() error {
	mem, fd, err := newSegment(pageSize)
	switch {
	case err == nil:
		dropSegment(mem)
		return unix.Close(fd)
	case outOf(err):
		return err
	}
	return fmt.Errorf("%w: this process can make no memory to share (look at its seccomp filter, and RLIMIT_FSIZE): %w", verbs.ErrNoDevice, err)
}

// Listen implements [verbs.Provider].
func (p *Provider) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	l, err := p.listen(ctx, attr)
	if err != nil {
		return nil, fmt.Errorf("shm: listening on %v: %w", attr.Local, err)
	}
	return l, nil
}

func (p *Provider) listen(ctx context.Context, attr *verbs.ListenAttr) (*listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.check(attr.Device, attr.Port, attr.PortSpace); err != nil {
		return nil, err
	}
	addr := attr.Local.Addr()
	if addr.Is4In6() && !addr.Unmap().IsUnspecified() {
		addr = addr.Unmap()
	}
	bound := addr
	switch {
	case !addr.IsValid():
		addr = netip.IPv6Unspecified()
	case addr.IsUnspecified():
		if attr.DualStack {
			bound = netip.Addr{}
		}
	case !own(addr):
		return nil, syscall.EADDRNOTAVAIL
	}
	if err := canShare(); err != nil {
		return nil, err
	}
	l := &listener{p: p, bound: bound, queue: verbs.NewRequestQueue(attr.Backlog), short: attr.Short, anyUser: attr.AnyUser}
	if err := p.ports.bind(l, attr.PortSpace, attr.Local.Port(), p.claim); err != nil {
		return nil, err
	}
	l.addr = netip.AddrPortFrom(addr, l.key.port)
	l.made.Made("listener")
	return l, nil
}
