//go:build linux && cgo

package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// returnRetry is how often a listener whose device went away looks whether it is back.
const returnRetry = time.Second

// listener is a [verbs.Listener]. It has an event channel of its own, which is not read while its
// backlog is full: the kernel then drops requests, without an answer, and peers try again.
type listener struct {
	c     *core
	attr  verbs.ListenAttr
	token uint64
	ec    *coreEC
	drain *drainer
	buf   eventBuffer
	ev    cmEvent
	addr  netip.AddrPort
	queue *verbs.RequestQueue
	made  leak.Mark

	mu sync.Mutex
	h  *coreID // nil once closed, and while the device is away
}

var _ verbs.Listener = (*listener)(nil)

// Listen implements [verbs.Provider].
func (p *Provider) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("rdmacore: listening on %v: %w", attr.Local, err)
	}
	if err := p.check(attr.Device, attr.Port); err != nil {
		return nil, err
	}
	if err := checkSpace(attr.PortSpace); err != nil {
		return nil, err
	}
	l, err := p.core.listen(attr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, verbs.ErrNoDevice):
		return nil, err
	case errors.Is(err, syscall.ENODEV):
		return nil, noDevice(fmt.Errorf("no RDMA device has the address %v, there are %q: %w", attr.Local.Addr(), p.host.devices(), err))
	}
	return nil, fmt.Errorf("rdmacore: listening on %v: %w", attr.Local, p.spaceFailure(attr.PortSpace, err))
}

func (c *core) listen(attr *verbs.ListenAttr) (*listener, error) {
	l := &listener{c: c, attr: *attr, token: newToken(), queue: verbs.NewRequestQueue(attr.Backlog)}
	addr := attr.Local.Addr()
	switch {
	case !addr.IsValid():
		addr = netip.IPv6Unspecified()
	case addr.IsMulticast():
		return nil, syscall.EADDRNOTAVAIL
	case addr.Is4In6() && !addr.Unmap().IsUnspecified():
		addr = addr.Unmap()
	}
	if err := checkZone(addr); err != nil {
		return nil, err
	}
	l.attr.Local = netip.AddrPortFrom(addr, attr.Local.Port())
	if err := c.usable(attr); err != nil {
		return nil, err
	}
	ec, fd, err := coreCreateEC()
	if err != nil {
		return nil, noDevice(c.p.host.cannotManage(err))
	}
	l.ec = ec
	if err := l.open(); err != nil {
		_ = syscall.Close(fd) // nothing was read
		coreDestroyEC(ec)
		return nil, err
	}
	l.drain, err = drain(fd, "rdma_cm listener", func() (err error) { l.ev, err = l.buf.next(ec); return err }, l.event, l.fail)
	if err != nil {
		_ = coreDestroyID(l.h) // the first error says more
		coreDestroyEC(ec)
		return nil, err
	}
	l.made.Made("listener")
	return l, nil
}

// usable tells whether there is a device to listen on: a wildcard would be listened on
// without one.
func (c *core) usable(attr *verbs.ListenAttr) error {
	names := c.p.host.devices()
	if attr.Device != "" {
		names = []string{attr.Device}
	}
	var first error
	for _, name := range names {
		d, err := c.use(name)
		if err == nil {
			d.release()
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// open binds the address and listens.
func (l *listener) open() error {
	h, err := coreCreateID(l.ec, l.attr.PortSpace, l.token)
	if err != nil {
		return err
	}
	if l.attr.TrafficClass != 0 {
		err = coreSetTOS(h, l.attr.TrafficClass)
	}
	if local := l.attr.Local.Addr(); err == nil && local.Is6() && local.IsUnspecified() {
		err = coreSetAFOnly(h, !l.attr.DualStack)
	}
	if err == nil {
		if err = coreBind(h, l.attr.Local); errors.Is(err, syscall.EADDRNOTAVAIL) && l.has(l.attr.Local.Addr()) {
			err = syscall.EADDRINUSE
		}
	}
	if err == nil {
		err = coreListen(h, l.queue.Backlog())
	}
	if err != nil {
		_ = coreDestroyID(h) // the first error says more
		return err
	}
	if ch, err := l.c.channel(); err == nil {
		ch.watch(h)
	}
	_, _, local, _ := coreInfo(h)
	l.mu.Lock()
	l.h = h
	l.addr = netip.AddrPortFrom(l.attr.Local.Addr(), local.Port())
	l.attr.Local = l.addr // the port stays, should the listener be opened again
	l.mu.Unlock()
	return nil
}

// has tells whether an address can be bound at all: the kernel does not say that a port is
// taken where one of the two who want it has the wildcard address.
func (l *listener) has(a netip.Addr) bool {
	h, err := coreCreateID(l.ec, l.attr.PortSpace, l.token)
	if err != nil {
		return false
	}
	err = coreBind(h, netip.AddrPortFrom(a, 0))
	_ = coreDestroyID(h) // it has served
	return err == nil
}

// Addr implements [verbs.Listener].
func (l *listener) Addr() netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// event takes an event, on the listener's goroutine.
func (l *listener) event() {
	switch l.ev.kind {
	case cmRequest:
		l.request()
	case cmRemoval:
		l.away()
	}
}

// request queues a request, and waits while the backlog is full.
func (l *listener) request() {
	id, err := l.adopt()
	if err != nil {
		_ = coreDestroyID(l.ev.request) // which rejects it
		return
	}
	// There is room: the last one was waited for.
	if err := l.queue.Put(id.public(), nil); err != nil {
		_ = id.Close() // which rejects it
		return
	}
	l.queue.WaitForRoom()
}

// fail is told that events cannot be read any more.
func (l *listener) fail(err error) {
	l.queue.Fail(fmt.Errorf("reading from /dev/infiniband/%s, listen again: %w", cmNode, err))
}

// adopt makes an identifier of a request.
func (l *listener) adopt() (*cmid, error) {
	h := l.ev.request
	device, port, local, remote := coreInfo(h)
	if l.attr.Device != "" && device != l.attr.Device || l.attr.Port != 0 && port != l.attr.Port {
		return nil, verbs.ErrNoDevice
	}
	c := l.c
	dev, err := c.use(device)
	if err != nil {
		return nil, err
	}
	ch, err := c.channel()
	if err != nil {
		dev.release()
		return nil, err
	}
	param := l.ev.param
	id := &cmid{
		c: c, ch: ch, dev: dev, token: newToken(), h: h, req: &param, class: l.attr.TrafficClass,
		local: local, remote: remote, gone: make(chan struct{}),
	}
	if isUD(l.attr.PortSpace) {
		id.forDatagrams(l.attr.PortSpace, l.attr.TrafficClass)
		id.ud.port = port
	}
	ch.watch(h)
	ch.add(id.token, id)
	if err := coreMoveID(h, ch.ec, id.token); err != nil {
		ch.remove(id.token)
		dev.release()
		return nil, err
	}
	id.made.Made("identifier")
	return id, nil
}

// away is told that the device of the listener's address is gone. The address is taken again when it is back.
func (l *listener) away() {
	l.mu.Lock()
	h := l.h
	l.h = nil
	l.mu.Unlock()
	if h != nil {
		removeID(h)
	}
	t := time.NewTicker(returnRetry)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.queue.Gone():
			return
		}
		if l.open() == nil {
			return
		}
	}
}

// GetRequest implements [verbs.Listener].
func (l *listener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	c, err := l.queue.Get(ctx)
	if err != nil {
		return nil, fmt.Errorf("rdmacore: waiting for a request: %w", err)
	}
	return c, nil
}

// Stats implements [verbs.Listener]. What the kernel drops it does not tell.
func (l *listener) Stats() verbs.ListenerStats { return l.queue.Stats() }

// Close implements [verbs.Listener].
func (l *listener) Close() error {
	rest, first := l.queue.Close()
	if !first {
		return nil
	}
	l.mu.Lock()
	h := l.h
	l.h = nil
	l.mu.Unlock()
	if h != nil {
		_ = coreDestroyID(h) // it listens no more in any case; requests unread are rejected
	}
	for _, c := range rest {
		_ = c.Close() // which rejects
	}
	l.drain.close()
	l.drain.wait()
	l.mu.Lock()
	h = l.h // opened again meanwhile
	l.h = nil
	l.mu.Unlock()
	if h != nil {
		_ = coreDestroyID(h) // as above
	}
	coreDestroyEC(l.ec)
	l.made.Gone()
	return nil
}
