//go:build linux && cgo

package rdmacore

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// isUD tells whether identifiers of a port space are for datagrams, as rdma_create_id(3) makes them.
func isUD(ps verbs.PortSpace) bool { return ps == verbs.PSUDP || ps == verbs.PSIPoIB }

// udcmid is a [verbs.UDCMID]: of an identifier all that has to do with datagrams.
type udcmid struct {
	*cmid
	space verbs.PortSpace
	tos   uint8
	port  int // of the device

	groups map[uint64]*membership // by token; guarded by cmid.mu
}

var _ verbs.UDCMID = (*udcmid)(nil)

// forDatagrams makes an identifier one for datagrams.
func (c *cmid) forDatagrams(ps verbs.PortSpace, tos uint8) {
	c.ud = &udcmid{cmid: c, space: ps, tos: tos, groups: make(map[uint64]*membership)}
}

// public is the identifier as its consumer gets it.
func (c *cmid) public() verbs.CMID {
	if c.ud != nil {
		return c.ud
	}
	return c
}

// datagramSource chooses the own address where it is for this side to do: the kernel knows only routes, and there are none to nobody,
// to a group seldom.
func (c *core) datagramSource(attr *verbs.CMIDAttr, to, from netip.AddrPort) (netip.AddrPort, error) {
	dst := to.Addr()
	named := from.Addr().IsValid() && !from.Addr().IsUnspecified()
	if named || dst.IsValid() && (!dst.IsMulticast() || attr.Device == "") {
		return from, nil
	}
	names := []string{attr.Device}
	if attr.Device == "" {
		names = c.p.host.devices()
	}
	var first error
	for _, name := range names {
		d, err := c.use(name)
		if err == nil {
			var a netip.Addr
			a, err = d.localAddr(attr.Port, like(dst, attr.Local.Addr()))
			d.release()
			if err == nil {
				return netip.AddrPortFrom(a, attr.Local.Port()), nil
			}
		}
		if first == nil {
			first = err
		}
	}
	return from, first
}

// like returns the first address that is one.
func like(as ...netip.Addr) netip.Addr {
	for _, a := range as {
		if a.IsValid() {
			return a
		}
	}
	return netip.Addr{}
}

// failure is the error of a call.
func (u *udcmid) failure(what string, about any, err error) error {
	if u.dev.gone.Load() {
		err = syscall.ENODEV
	}
	return fmt.Errorf("rdmacore: %s %v on %s: %w", what, about, u.dev.name, err)
}

// CreateQP implements [verbs.CMID].
func (u *udcmid) CreateQP(domain verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	own, ok := domain.(*pd)
	if !ok || own.dev != u.dev {
		return nil, fmt.Errorf("rdmacore: protection domain is not of device %s: %w", u.dev.name, syscall.EINVAL)
	}
	if attr.Type != verbs.UD {
		return nil, fmt.Errorf("rdmacore: %v queue pair of port space %v: %w", attr.Type, u.space, syscall.EINVAL)
	}
	if u.dev.iwarp {
		return nil, unsupported("datagrams (iWARP has none) on device " + u.dev.name)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return nil, net.ErrClosed
	case u.h == nil:
		return nil, u.failure("queue pair of", u.local, syscall.ENODEV)
	case u.q != nil:
		return nil, fmt.Errorf("rdmacore: the identifier has a queue pair: %w", syscall.EINVAL)
	}
	q, err := u.dev.newQP(own, attr, nil)
	if err != nil {
		return nil, err
	}
	if err := q.datagrams(u.h, u.port); err != nil {
		_ = q.Close() // the first error says more
		return nil, u.failure("queue pair of", u.local, u.dev.c.p.spaceFailure(u.space, err))
	}
	q.onClose = u.leaveAll
	u.q = q
	return q, nil
}

// Connect implements [verbs.CMID].
func (u *udcmid) Connect(context.Context, *verbs.ConnParam) (*verbs.ConnParam, error) {
	return nil, u.failure("connecting to", u.remote, wrongState("datagrams have no connections: Lookup"))
}

// Accept implements [verbs.CMID].
func (u *udcmid) Accept(*verbs.ConnParam) error {
	return u.failure("accepting on", u.local, wrongState("datagrams have no connections: Reply"))
}

// Disconnect implements [verbs.CMID].
func (u *udcmid) Disconnect() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.q != nil {
		_ = u.q.ToError() // it may be closed
	}
	return nil
}

// Lookup implements [verbs.UDCMID].
func (u *udcmid) Lookup(ctx context.Context, private []byte) (*verbs.UDParam, error) {
	p, err := u.lookup(ctx, private)
	if err != nil {
		return nil, u.failure("asking for the service at", u.remote, err)
	}
	return p, nil
}

func (u *udcmid) lookup(ctx context.Context, private []byte) (*verbs.UDParam, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := u.ask(private); err != nil {
		return nil, err
	}
	var p *verbs.UDParam
	var err error
	select {
	case ev := <-u.step:
		p, err = u.answer(&ev)
	case <-ctx.Done():
		err = ctx.Err()
	case <-u.gone:
		err = net.ErrClosed
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.state = cmFailed
		u.destroy() // which ends the asking
		return nil, err
	}
	u.state = cmAnswered
	return p, nil
}

// ask sends the request.
func (u *udcmid) ask(private []byte) error {
	if len(private) > verbs.MaxPrivateSIDRREQ {
		return fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), verbs.MaxPrivateSIDRREQ, syscall.EINVAL)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return net.ErrClosed
	case !u.active:
		return wrongState("the identifier is a peer's request")
	case !u.unicast():
		return wrongState("the identifier leads to no peer")
	case u.state != cmFresh:
		return wrongState("the identifier has asked before")
	case u.h == nil:
		return syscall.ENODEV
	}
	u.begins(stepAnswer)
	if err := coreLookup(u.h, private); err != nil {
		return err
	}
	u.state = cmConnecting
	return nil
}

// unicast tells whether there is one at the other end.
func (u *udcmid) unicast() bool { return u.remote.Addr().IsValid() && !u.remote.Addr().IsMulticast() }

// answer is what came of a request. The kernel gives the status of a SIDR_REP as that of the event.
func (u *udcmid) answer(ev *cmEvent) (*verbs.UDParam, error) {
	switch {
	case ev.kind == cmEstablished && ev.ud != nil:
		u.complete(&ev.ud.AH)
		return ev.ud, nil
	case ev.kind == cmUnreachable && ev.status > 0:
		return nil, &verbs.LookupError{Status: ev.status, PrivateData: ev.param.PrivateData}
	}
	return nil, refusal(ev)
}

// complete adds what the kernel does not tell.
func (u *udcmid) complete(a *verbs.AHAttr) {
	if a.Port == 0 {
		a.Port = u.port
	}
	if !a.Local.IsValid() {
		a.Local = u.local.Addr()
	}
}

// Reply implements [verbs.UDCMID].
func (u *udcmid) Reply(qpn, qkey uint32, private []byte) error {
	if err := u.reply(qpn, qkey, private); err != nil {
		return u.failure("replying to", u.remote, err)
	}
	return nil
}

func (u *udcmid) reply(qpn, qkey uint32, private []byte) error {
	if len(private) > verbs.MaxPrivateSIDRREP {
		return fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), verbs.MaxPrivateSIDRREP, syscall.EINVAL)
	}
	if qkey != 0 && (u.space != verbs.PSUDP || qkey != verbs.UDPQKey) { // the kernel has no place for one
		return unsupported(fmt.Sprintf("Q_Key %#x instead of that of port space %v", qkey, u.space))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.answerable(); err != nil {
		return err
	}
	if err := coreReply(u.h, qpn, private); err != nil {
		u.state = cmFailed
		return u.gaveUp(err)
	}
	u.state = cmAnswered
	return nil
}

// Reject implements [verbs.CMID].
func (u *udcmid) Reject(private []byte) error {
	if len(private) > verbs.MaxPrivateSIDRREP {
		return u.failure("rejecting", u.remote, fmt.Errorf("%d bytes of private data, at most %d: %w",
			len(private), verbs.MaxPrivateSIDRREP, syscall.EINVAL))
	}
	return u.cmid.Reject(private)
}

// onCM takes an event of the connection manager, on its goroutine.
func (u *udcmid) onCM(ev *cmEvent) {
	switch ev.kind {
	case cmAddrResolved, cmAddrError, cmRouteResolved, cmRouteError, cmEstablished, cmConnectError, cmUnreachable, cmRejected:
		u.stepped(ev)
	case cmJoined, cmJoinError:
		u.onGroup(ev)
	case cmRemoval:
		u.onRemoval(ev)
	case cmAddrChange:
		u.events.Post(verbs.Event{Type: verbs.EventAddrChange})
	}
}
