package cm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// fakeProvider stands at the place of any provider, so that choosing among several
// can be tried where only one is built in.
type fakeProvider struct {
	name    string
	infos   []verbs.DeviceInfo
	infoErr error

	resolveErr error
	listenErr  error

	mu        sync.Mutex
	resolved  []verbs.CMIDAttr
	taken     map[uint16]bool // port numbers in use
	next      uint16          // number a port 0 gets
	step      uint16          // added to next each time
	listening int
}

func (p *fakeProvider) Name() string                         { return p.name }
func (p *fakeProvider) Devices() ([]verbs.DeviceInfo, error) { return p.infos, p.infoErr }
func (p *fakeProvider) Open(name string) (verbs.Device, error) {
	return nil, fmt.Errorf("open %s: %w", name, verbs.ErrNoDevice)
}

func (p *fakeProvider) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resolved = append(p.resolved, *attr)
	if p.resolveErr != nil {
		return nil, p.resolveErr
	}
	return &fakeCMID{p: p, attr: *attr}, ctx.Err()
}

func (p *fakeProvider) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listenErr != nil {
		return nil, p.listenErr
	}
	port := attr.Local.Port()
	if port == 0 {
		port = p.next
		p.next += p.step
	}
	if p.taken[port] {
		return nil, syscall.EADDRINUSE
	}
	if p.taken == nil {
		p.taken = map[uint16]bool{}
	}
	p.taken[port] = true
	p.listening++
	return &fakeListener{p: p, addr: netip.AddrPortFrom(attr.Local.Addr(), port)}, nil
}

type fakeCMID struct {
	verbs.CMID
	p    *fakeProvider
	attr verbs.CMIDAttr
}

func (c *fakeCMID) Provider() verbs.Provider { return c.p }
func (c *fakeCMID) Device() verbs.Device     { return fakeDevice{info: &c.p.infos[0]} }
func (c *fakeCMID) Close() error             { return nil }

type fakeDevice struct {
	verbs.Device
	info *verbs.DeviceInfo
}

func (d fakeDevice) Info() *verbs.DeviceInfo { return d.info }

type fakeListener struct {
	p    *fakeProvider
	addr netip.AddrPort
	once sync.Once
}

func (l *fakeListener) Addr() netip.AddrPort { return l.addr }
func (l *fakeListener) GetRequest(context.Context) (verbs.CMID, error) {
	return nil, net.ErrClosed
}
func (l *fakeListener) Stats() verbs.ListenerStats { return verbs.ListenerStats{} }
func (l *fakeListener) Close() error {
	l.once.Do(func() {
		l.p.mu.Lock()
		delete(l.p.taken, l.addr.Port())
		l.p.listening--
		l.p.mu.Unlock()
	})
	return nil
}

func device(provider, name string, gids ...string) verbs.DeviceInfo {
	d := verbs.DeviceInfo{Name: name, Provider: provider, Ports: []verbs.PortInfo{{Num: 1, State: "ACTIVE"}}}
	for _, g := range gids {
		d.Ports[0].GIDs = append(d.Ports[0].GIDs, netip.MustParseAddr(g))
	}
	return d
}

// noEnv keeps the environment of the one who runs the tests out of them.
func noEnv(string) string { return "" }

// noRoot is a / without sysfs.
const noRoot = "/nonexistent"
