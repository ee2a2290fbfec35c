package softroce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
)

const defaultBacklog = 1024

// listener is a [verbs.Listener].
type listener struct {
	p        *Provider
	in       *instance
	key      listenKey
	bound    netip.Addr // without zone; the zero value: both families
	addr     netip.AddrPort
	backlog  int
	tclass   uint8
	freePort func()
	short    func(error)
	wake     chan struct{} // capacity 1: the queue is not empty
	gone     chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool
	queue   []verbs.CMID
	taken   uint64
	dropped uint64
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
		backlog: attr.Backlog, tclass: attr.TrafficClass, freePort: free, short: attr.Short, wake: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	if l.backlog <= 0 {
		l.backlog = defaultBacklog
	}
	in.mu.Lock()
	in.listeners[l.key] = append(in.listeners[l.key], l)
	in.mu.Unlock()
	return l, nil
}

// Addr implements [verbs.Listener].
func (l *listener) Addr() netip.AddrPort { return l.addr }

// room tells whether a request more may wait, or what becomes of it.
func (l *listener) room() ibcm.Verdict {
	switch {
	case l.closed:
		return verbs.RejInvalidServiceID
	case len(l.queue) >= l.backlog:
		l.dropped++
		return ibcm.Dropped
	}
	return ibcm.Taken
}

// offer decides on a request from a port of the peer's.
func (l *listener) offer(conn *ibcm.Conn, q *ibcm.REQ, port uint16) ibcm.Verdict {
	l.mu.Lock()
	v := l.room()
	l.mu.Unlock()
	if v != ibcm.Taken {
		return v
	}
	path := conn.Path()
	route, err := l.in.dev.conn.Route(path.Local, path.Remote)
	switch {
	case share.Shortage(err):
		l.in.short(err)
		l.mu.Lock()
		l.dropped++
		l.mu.Unlock()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.room(); v != ibcm.Taken {
		return v
	}
	// For the identifier and for the connection. The caller holds the device.
	l.in.dev.retain()
	l.in.dev.retain()
	conn.SetHandler(c.onCM)
	l.queue = append(l.queue, c)
	l.signal()
	return ibcm.Taken
}

func (l *listener) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// remove takes a request out of the queue, if it is still there.
func (l *listener) remove(c verbs.CMID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, c)
	if i < 0 {
		return false
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	return true
}

// GetRequest implements [verbs.Listener].
func (l *listener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	for {
		l.mu.Lock()
		err := ctx.Err()
		switch {
		case err != nil:
			if len(l.queue) > 0 {
				l.signal() // the wake-up that came with the end of ctx is another's
			}
		case l.closed:
			err = net.ErrClosed
		}
		if err != nil {
			l.mu.Unlock()
			return nil, fmt.Errorf("softroce: waiting for a request: %w", err)
		}
		if len(l.queue) > 0 {
			c := l.queue[0]
			l.queue[0] = nil
			l.queue = l.queue[1:]
			l.taken++
			if len(l.queue) > 0 {
				l.signal() // for the next who waits
			}
			l.mu.Unlock()
			return c, nil
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-l.gone:
		case <-ctx.Done():
		}
	}
}

// Stats implements [verbs.Listener].
func (l *listener) Stats() verbs.ListenerStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return verbs.ListenerStats{Requests: l.taken + uint64(len(l.queue)), Dropped: l.dropped}
}

// Close implements [verbs.Listener].
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	close(l.gone)
	l.mu.Unlock()

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
	for _, c := range queue {
		_ = c.Close() // which rejects
	}
	in.dev.release()
	return nil
}

var _ verbs.Listener = (*listener)(nil)
