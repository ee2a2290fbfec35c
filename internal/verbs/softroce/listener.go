package softroce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
)

// listener is a [verbs.Listener].
type listener struct {
	p        *Provider
	in       *instance
	key      listenKey
	bound    netip.Addr // without zone; the zero value: both families
	addr     netip.AddrPort
	tclass   uint8
	freePort func()
	short    func(error)
	queue    *verbs.RequestQueue
	made     leak.Mark
}

func (p *Provider) listen(in *instance, attr *verbs.ListenAttr) (*listener, error) {
	addr := attr.Local.Addr()
	if addr.Is4In6() && !addr.Unmap().IsUnspecified() {
		addr = addr.Unmap()
	}
	bound := addr.WithZone("")
	switch {
	case !addr.IsValid():
		addr = netip.IPv6Unspecified()
	case addr.IsUnspecified():
		if attr.DualStack {
			bound = netip.Addr{}
		}
	case addr.IsMulticast():
		return nil, syscall.EADDRNOTAVAIL
	default:
		_, err := in.dev.conn.Route(addr, addr)
		if errors.Is(err, syscall.ENETUNREACH) {
			err = syscall.EADDRNOTAVAIL // a broadcast address, for one
		}
		if err != nil {
			return nil, err
		}
	}
	port, free, err := in.share.BindPort(attr.PortSpace, bound, attr.Local.Port())
	if err != nil {
		return nil, err
	}
	l := &listener{
		p: p, in: in, key: listenKey{attr.PortSpace, port}, bound: bound, addr: netip.AddrPortFrom(addr, port),
		tclass: attr.TrafficClass, freePort: free, short: attr.Short, queue: verbs.NewRequestQueue(attr.Backlog),
	}
	in.mu.Lock()
	in.listeners[l.key] = append(in.listeners[l.key], l)
	in.mu.Unlock()
	l.made.Made("listener")
	return l, nil
}

// Addr implements [verbs.Listener].
func (l *listener) Addr() netip.AddrPort { return l.addr }

// verdict is what becomes of a request of which the queue says err.
func verdict(err error) ibcm.Verdict {
	switch {
	case err == nil:
		return ibcm.Taken
	case errors.Is(err, verbs.ErrBacklog):
		return ibcm.Dropped
	}
	return verbs.RejInvalidServiceID // closed
}

// offer decides on a request from a port of the peer's.
func (l *listener) offer(conn *ibcm.Conn, q *ibcm.REQ, port uint16) ibcm.Verdict {
	if err := l.queue.Room(); err != nil {
		return verdict(err)
	}
	path := conn.Path()
	route, err := l.in.dev.conn.Route(path.Local, path.Remote)
	switch {
	case share.Shortage(err):
		l.in.short(err)
		l.queue.Drop()
		return ibcm.Dropped
	case err != nil:
		return verbs.RejConsumer
	}
	mtu := verbs.MTUFromCode(q.PathMTU)
	if mtu > pathMTU(route.MTU) {
		return verbs.RejInvalidMTU
	}
	c := &cmid{
		p: l.p, in: l.in, space: l.key.space, tclass: l.tclass, mtu: mtu, l: l, req: q, conn: conn,
		local: netip.AddrPortFrom(path.Local, l.key.port), remote: netip.AddrPortFrom(path.Remote, port),
		gone: make(chan struct{}), undone: 1,
	}
	return verdict(l.queue.Put(c, func() {
		// For the identifier and for the connection. The caller holds the device.
		l.in.dev.retain()
		l.in.dev.retain()
		c.made.Made("identifier")
		conn.SetHandler(c.onCM)
	}))
}

// GetRequest implements [verbs.Listener].
func (l *listener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	c, err := l.queue.Get(ctx)
	if err != nil {
		return nil, fmt.Errorf("softroce: waiting for a request: %w", err)
	}
	return c, nil
}

// Stats implements [verbs.Listener].
func (l *listener) Stats() verbs.ListenerStats { return l.queue.Stats() }

// Close implements [verbs.Listener].
func (l *listener) Close() error {
	rest, first := l.queue.Close()
	if !first {
		return nil
	}
	in := l.in
	in.mu.Lock()
	ls := slices.DeleteFunc(in.listeners[l.key], func(o *listener) bool { return o == l })
	if len(ls) == 0 {
		delete(in.listeners, l.key)
	} else {
		in.listeners[l.key] = ls
	}
	in.mu.Unlock()
	l.freePort()
	for _, c := range rest {
		_ = c.Close() // which rejects
	}
	l.made.Gone()
	in.dev.release()
	return nil
}

var _ verbs.Listener = (*listener)(nil)
