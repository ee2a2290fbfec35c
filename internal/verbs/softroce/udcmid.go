package softroce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
)

// ipoibQKey is the Q_Key of PSIPoIB. On InfiniBand it is that of the broadcast group of IPoIB, for which this
// is the default of subnet managers; on RoCE there is no such group.
const ipoibQKey = 0x0b1b

func datagrams(ps verbs.PortSpace) bool { return ps == verbs.PSUDP || ps == verbs.PSIPoIB }

func spaceQKey(ps verbs.PortSpace) uint32 {
	if ps == verbs.PSIPoIB {
		return ipoibQKey
	}
	return verbs.UDPQKey
}

// udid is a [verbs.UDCMID].
type udid struct {
	p             *Provider
	in            *instance
	space         verbs.PortSpace
	far           bool // the peer is another host
	tclass        uint8
	mtu           verbs.MTU
	local, remote netip.AddrPort // local may have no address
	ifi           string         // the interface; empty: any
	freePort      func()         // active
	events        verbs.EventQueue
	gone          chan struct{} // closed by Close
	made          leak.Mark

	// Of a request.
	l   *listener
	req *ibcm.SIDRREQ
	r   *ibcm.LookupRequest

	mu       sync.Mutex
	closed   bool
	q        *qp
	asked    bool // Lookup was called
	answered bool // the request was
	groups   map[netip.Addr]membership
}

// membership is what Join has made, by the group's address without zone.
type membership struct {
	key      groupKey
	sendOnly bool
}

var _ verbs.UDCMID = (*udid)(nil)

func (p *Provider) resolveUD(in *instance, attr *verbs.CMIDAttr) (*udid, error) {
	c := &udid{p: p, in: in, space: attr.PortSpace, tclass: attr.TrafficClass, gone: make(chan struct{})}
	if err := c.find(attr.Local.Addr().Unmap(), attr.Remote.Addr().Unmap()); err != nil {
		return nil, err
	}
	c.remote = netip.AddrPortFrom(c.remote.Addr(), attr.Remote.Port())
	ports := in.share
	if attr.Local.Port() == 0 { // as of connections
		ports = in.sources
	}
	port, free, err := ports.BindPort(attr.PortSpace, c.local.Addr(), attr.Local.Port())
	if err != nil {
		return nil, err
	}
	c.local, c.freePort = netip.AddrPortFrom(c.local.Addr(), port), free
	c.events.SetHandler(attr.Handler)
	c.made.Made("identifier")
	return c, nil
}

// find decides on addresses, interface and MTU.
func (c *udid) find(local, to netip.Addr) error {
	conn := c.in.dev.conn
	switch {
	case to.IsUnspecified(): // this host, as for connect(2)
		if to.Is4() {
			to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		} else {
			to = netip.IPv6Loopback()
		}
	case !to.IsValid() && (!local.IsValid() || local.IsUnspecified()):
		c.local, c.mtu = netip.AddrPortFrom(local, 0), c.in.dev.portMTU()
		return nil
	case !to.IsValid():
		r, err := conn.AddrRoute(local)
		if err != nil {
			return err
		}
		c.local, c.ifi = netip.AddrPortFrom(r.Local, 0), r.Interface
		return c.limit(r.Interface, r.MTU)
	}
	find := conn.Route
	if to.IsMulticast() {
		find = conn.GroupRoute
	}
	r, err := find(local, to)
	if err != nil {
		return noGroupRoute(to, err)
	}
	c.local, c.remote, c.ifi = netip.AddrPortFrom(r.Local, 0), netip.AddrPortFrom(r.Remote, 0), r.Interface
	c.far = !to.IsMulticast() && !c.in.here(r)
	return c.limit(r.Interface, r.MTU)
}

// limit takes the MTU of an interface or route, in bytes.
func (c *udid) limit(ifi string, bytes int) error {
	if c.mtu = pathMTU(bytes); c.mtu == 0 {
		return fmt.Errorf("interface %s has an MTU of %d bytes: %w", ifi, bytes, syscall.EMSGSIZE)
	}
	return nil
}

func (c *udid) Provider() verbs.Provider { return c.p }

func (c *udid) Device() verbs.Device { return c.in.dev }

func (c *udid) LocalAddr() netip.AddrPort { return c.local }

func (c *udid) RemoteAddr() netip.AddrPort { return c.remote }

func (c *udid) SetHandler(h func(verbs.Event)) { c.events.SetHandler(h) }

func (c *udid) failure(what string, err error) error {
	return fmt.Errorf("softroce: %s: %w", what, err)
}

// CreateQP implements [verbs.CMID].
func (c *udid) CreateQP(domain verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	own, ok := domain.(*pd)
	if !ok || own.dev != c.in.dev {
		return nil, fmt.Errorf("softroce: protection domain is not of device %s: %w", c.p.cfg.name(), syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case c.q != nil:
		return nil, fmt.Errorf("softroce: the identifier has a queue pair: %w", syscall.EINVAL)
	}
	q, err := c.in.dev.newUDQP(own, attr, udAttr{qkey: spaceQKey(c.space), mtu: c.mtu})
	if err != nil {
		return nil, err
	}
	c.q = q
	return q, nil
}

// Lookup implements [verbs.UDCMID].
func (c *udid) Lookup(ctx context.Context, private []byte) (*verbs.UDParam, error) {
	u, err := c.lookup(ctx, private)
	if err != nil {
		return nil, c.failure(fmt.Sprint("looking up ", c.remote), err)
	}
	return u, nil
}

func (c *udid) lookup(ctx context.Context, private []byte) (*verbs.UDParam, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(private) > verbs.MaxPrivateSIDRREQ {
		return nil, fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), verbs.MaxPrivateSIDRREQ, syscall.EINVAL)
	}
	if to := c.remote.Addr(); !to.IsValid() || to.IsMulticast() || c.remote.Port() == 0 {
		return nil, wrongState("no address and port of a service")
	}
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, net.ErrClosed
	case c.r != nil:
		c.mu.Unlock()
		return nil, wrongState("the identifier is a peer's request")
	case c.asked:
		c.mu.Unlock()
		return nil, wrongState("the identifier was used for a lookup before")
	}
	c.asked = true
	c.mu.Unlock()

	type result struct {
		rep *ibcm.SIDRREP
		err error
	}
	outcome := make(chan result, 1)
	begun := c.in.dev.clock.Now()
	l, err := c.in.agent.Lookup(&ibcm.LookupParam{
		Path:      ibcm.Path{Local: c.local.Addr(), Remote: c.remote.Addr(), TrafficClass: c.tclass},
		ServiceID: ibcm.ServiceID(uint16(c.space), c.remote.Port()), SourcePort: c.local.Port(),
		PrivateData: private, Far: c.far,
	}, func(rep *ibcm.SIDRREP, err error) { outcome <- result{rep, err} })
	if err != nil {
		return nil, err
	}
	defer l.Cancel()
	select {
	case r := <-outcome:
		switch {
		case r.err != nil:
			return nil, c.in.blame(r.err, begun)
		case r.rep.Status != ibcm.SIDRSuccess:
			return nil, &verbs.LookupError{Status: int(r.rep.Status), PrivateData: r.rep.PrivateData[:]}
		}
		return &verbs.UDParam{
			AH:  verbs.AHAttr{Local: c.local.Addr(), Remote: c.remote.Addr(), TrafficClass: c.tclass, Port: 1},
			QPN: r.rep.QPN, QKey: r.rep.QKey, PrivateData: r.rep.PrivateData[:],
		}, nil
	case <-ctx.Done():
		return nil, c.in.blame(ctx.Err(), begun)
	case <-c.gone:
		return nil, net.ErrClosed
	}
}

// Request implements [verbs.CMID].
func (c *udid) Request() *verbs.ConnParam {
	if c.req == nil {
		return nil
	}
	return &verbs.ConnParam{PrivateData: c.req.PrivateData[ibcm.IPHeaderSize:]}
}

// Reply implements [verbs.UDCMID].
func (c *udid) Reply(qpn, qkey uint32, private []byte) error {
	if qkey == 0 {
		qkey = spaceQKey(c.space)
	}
	return c.answer(fmt.Sprint("answering ", c.remote), &ibcm.AnswerParam{QPN: qpn, QKey: qkey, PrivateData: private})
}

// Reject implements [verbs.CMID].
func (c *udid) Reject(private []byte) error {
	return c.answer(fmt.Sprint("rejecting ", c.remote), &ibcm.AnswerParam{Status: ibcm.SIDRRejected, PrivateData: private})
}

func (c *udid) answer(what string, a *ibcm.AnswerParam) error {
	switch {
	case len(a.PrivateData) > verbs.MaxPrivateSIDRREP:
		return c.failure(what, fmt.Errorf("%d bytes of private data, at most %d: %w",
			len(a.PrivateData), verbs.MaxPrivateSIDRREP, syscall.EINVAL))
	case a.Status == ibcm.SIDRSuccess && (a.QPN <= ibcm.GSIQPN || a.QPN >= verbs.MulticastQPN):
		return c.failure(what, fmt.Errorf("no queue pair %#x: %w", a.QPN, syscall.EINVAL))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.failure(what, net.ErrClosed)
	case c.r == nil:
		return c.failure(what, wrongState("the identifier is no request"))
	case c.answered:
		return c.failure(what, wrongState("the request was answered before"))
	}
	c.answered = true
	if err := c.r.Answer(a); err != nil {
		return c.failure(what, err)
	}
	return nil
}

// Connect implements [verbs.CMID].
func (c *udid) Connect(context.Context, *verbs.ConnParam) (*verbs.ConnParam, error) {
	return nil, c.failure("connecting", wrongState("datagrams have no connections, but Lookup"))
}

// Accept implements [verbs.CMID].
func (c *udid) Accept(*verbs.ConnParam) error {
	return c.failure("accepting", wrongState("datagrams have no connections, but Reply"))
}

// Disconnect implements [verbs.CMID].
func (c *udid) Disconnect() error {
	c.mu.Lock()
	q := c.q
	c.mu.Unlock()
	if q != nil {
		_ = q.ToError() // it may be closed
	}
	return nil
}

// Close implements [verbs.CMID].
func (c *udid) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.events.Close() // as promised to whoever closes
		return nil
	}
	c.closed = true
	close(c.gone)
	q, unanswered := c.q, c.r != nil && !c.answered
	c.mu.Unlock()
	if unanswered {
		// It fails if the device is gone.
		_ = c.r.Answer(&ibcm.AnswerParam{Status: ibcm.SIDRRejected})
	}
	if q != nil {
		_ = q.ToError() // it should be closed by now
		c.in.dev.groups.leaveAll(q)
	}
	c.events.Close()
	if c.freePort != nil {
		c.freePort()
	}
	c.made.Gone()
	c.in.dev.release()
	return nil
}

// lookup is asked about a new request for a datagram service. The caller holds the device.
func (in *instance) lookup(r *ibcm.LookupRequest, m *ibcm.SIDRREQ) ibcm.Verdict {
	space, port, ok := ibcm.SplitServiceID(m.ServiceID)
	if !ok || !datagrams(verbs.PortSpace(space)) {
		return ibcm.SIDRUnsupported
	}
	path := r.Path()
	l, _ := in.findListener(listenKey{verbs.PortSpace(space), port}, path.Local)
	if l == nil {
		return ibcm.SIDRUnsupported
	}
	h, err := ibcm.ParseIPHeader(m.PrivateData[:])
	if err != nil || h.Source.Addr() != path.Remote.WithZone("") || h.Destination != path.Local.WithZone("") || !goodPKey(m.PKey) {
		return ibcm.SIDRRejected
	}
	return l.offerLookup(r, m, h.Source.Port())
}

// offerLookup decides on a request from a port of the peer's.
func (l *listener) offerLookup(r *ibcm.LookupRequest, m *ibcm.SIDRREQ, port uint16) ibcm.Verdict {
	v := verdict(l.queue.Room())
	if v == ibcm.Taken {
		path := r.Path()
		c := &udid{
			p: l.p, in: l.in, space: l.key.space, tclass: path.TrafficClass, gone: make(chan struct{}), l: l, req: m, r: r,
		}
		// A way back is what the host's routes say, and how long datagrams on it may be.
		if err := c.find(path.Local, path.Remote); err != nil {
			var errno syscall.Errno
			if errors.As(err, &errno) && (errno == syscall.ENETUNREACH || errno == syscall.EADDRNOTAVAIL || errno == syscall.EMSGSIZE) {
				return ibcm.SIDRRejected
			}
			l.in.short(err)
			l.queue.Drop()
			return ibcm.Dropped
		}
		c.local, c.remote = netip.AddrPortFrom(path.Local, l.key.port), netip.AddrPortFrom(path.Remote, port)
		v = verdict(l.queue.Put(c, func() {
			l.in.dev.retain() // the caller holds it
			c.made.Made("identifier")
		}))
	}
	if v == verbs.RejInvalidServiceID { // closed meanwhile
		return ibcm.SIDRUnsupported
	}
	return v
}
