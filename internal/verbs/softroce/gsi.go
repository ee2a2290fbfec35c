package softroce

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// instance is a provider's device while it is open, with the communication
// manager on it and the process's part in sharing the network.
type instance struct {
	p     *Provider
	dev   *device
	agent *ibcm.Agent
	share Sharer

	sources Sharer // ports of active identifiers that take any

	up atomic.Bool // dev and agent are set

	mu        sync.Mutex
	listeners map[listenKey][]*listener

	shortMu   sync.Mutex
	shortErr  error // the last shortage
	shortAt   time.Time
	shortTold time.Time

	surely sureWays // of datagrams

	ownMu sync.Mutex
	own   []netip.Addr // the host's addresses, as of ownAt
	ownAt time.Time
}

// agentClock is the device's clock for package ibcm.
type agentClock struct{ Clock }

func (c agentClock) AfterFunc(d time.Duration, f func()) ibcm.Timer { return c.Clock.AfterFunc(d, f) }

// open brings up a device that is held once.
func (p *Provider) open() (*instance, error) {
	in := &instance{p: p, listeners: map[listenKey][]*listener{}, sources: newLocalShare(p.cfg)}
	var err error
	if in.share, err = p.cfg.share(in.received, in.short); err != nil {
		return nil, err
	}
	if in.dev, err = newDevice(p.cfg, in.share.Slot()); err != nil {
		_ = in.share.Close() // the first error says more
		return nil, err
	}
	cm := ibcm.Config{
		Clock: agentClock{p.cfg.clock()}, Rand: p.cfg.random64, Slot: in.share.Slot(),
		Send: in.send, Request: in.request, Lookup: in.lookup,
	}
	if p.cfg.cm != nil {
		p.cfg.cm(&cm)
	}
	in.agent = ibcm.NewAgent(cm)
	in.dev.onMAD, in.dev.onForeign, in.dev.onClosed, in.dev.ownHost = in.onMAD, in.onForeign, in.closed, in.ownAddr
	in.up.Store(true)
	in.dev.start()
	return in, nil
}

// closed follows the end of the device's network.
func (in *instance) closed() {
	in.agent.Close()
	_ = in.share.Close() // nothing depends on it any more
	in.p.forget(in)
}

// letGo is release for goroutines that closing the device would wait for.
func (d *device) letGo() {
	if d.refs.Add(-1) == 0 {
		go d.shutdown()
	}
}

// send is the agent's way out. A way may lead into the queue of a process of the peer's host that is stopped, and such
// processes together may have all those that were used: repetitions take new UDP source ports. They
// seldom come to be, and try several at once: a repeated message does no harm. To this host there is a sure way.
func (in *instance) send(p ibcm.Path, mad []byte, attempt int) error {
	copies := 1
	if attempt > 0 {
		copies = manyWays
	}
	if sure := in.sureWay(p); sure != nil && !(attempt == 0 && forService(mad)) {
		if err := in.dev.sendMAD(sure, mad); err != nil {
			return err
		}
		if copies--; copies == 0 {
			return nil
		}
	}
	path := &netio.Path{Local: p.Local, Remote: p.Remote, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit}
	if attempt == 0 {
		path.SetFlow(binary.BigEndian.Uint32(mad[ibcm.CommIDOffset:]))
		return in.dev.sendMAD(path, mad)
	}
	defer path.SetFlow(0)
	for range copies {
		in.dev.conn.Fresh(path)
		if err := in.dev.sendMAD(path, mad); err != nil {
			return err
		}
	}
	return nil
}

// forService tells whether a datagram is for a service. Handing such a one over takes a connection to the port, which
// costs its process a descriptor, while processes that are connected know each other's slots anyway.
func forService(mad []byte) bool {
	d, ok := ibcm.ParseDest(mad)
	return ok && d.Service()
}

// manyWays is on how many ways a repetition is sent.
const manyWays = 4

const ecnMask = 3

// onMAD takes a datagram for queue pair 1, which all processes of the host share.
func (in *instance) onMAD(p *netio.Packet, mad []byte) {
	if to, ok := in.target(mad); ok {
		switch err := in.share.HandOver(to, p); {
		case err == nil:
			return
		case errors.Is(err, share.ErrUnclaimed), errors.Is(err, share.ErrOwn):
			// The agent answers what can be answered for one who is not there.
		default:
			in.dev.dropped(p, "another process's, which takes no more")
			return // as good as lost: it will be sent again
		}
	}
	if in.dev.trace != nil {
		in.dev.trace.Received(p, "")
	}
	in.agent.HandleMAD(ibcm.Path{
		Local: p.Local, Remote: p.Remote.Addr(), TrafficClass: p.TrafficClass &^ ecnMask,
	}, mad)
}

// target returns whose a datagram is, if it may be another process's.
func (in *instance) target(mad []byte) (to share.Target, ok bool) {
	d, ok := ibcm.ParseDest(mad)
	if !ok {
		return to, false
	}
	if d.Service() {
		space, port, ok := ibcm.SplitServiceID(d.ServiceID)
		if !ok || in.listens(listenKey{verbs.PortSpace(space), port}) {
			return to, false
		}
		return share.Target{PortSpace: verbs.PortSpace(space), Port: port}, true
	}
	slot := uint8(d.CommID >> 24)
	return share.Target{Slot: slot}, slot != 0 && slot != in.share.Slot()
}

// onForeign takes a packet for a queue pair of another process.
func (in *instance) onForeign(p *netio.Packet, destQPN uint32) {
	slot := uint8(destQPN >> 16)
	if slot == 0 || in.share.HandOver(share.Target{Slot: slot}, p) != nil {
		in.dev.stats.unknownQP.Add(1)
		in.dev.dropped(p, "another process's, which is gone or takes no more")
	}
}

var onePacket = sync.Pool{New: func() any { return new([1]netio.Packet) }}

// received takes a packet that another process handed over.
func (in *instance) received(p *netio.Packet) {
	if !in.up.Load() || !in.dev.tryRetain() {
		return
	}
	defer in.dev.letGo()
	netio.Arrived()
	one := onePacket.Get().(*[1]netio.Packet)
	one[0] = *p
	in.dev.HandlePackets(one[:])
	one[0] = netio.Packet{}
	onePacket.Put(one)
	// Datagrams of the communication manager are few, and come from one port
	// of a kernel, whichever process they are for. What is for nobody must not cost sockets.
	if qpn, ok := destQPN(p.Data); ok && qpn != wire.QPNGSI {
		if q := in.dev.qps.find(qpn); q != nil && q.service.from(p.Remote).settled(p.Remote.Port()) {
			in.dev.conn.Prefer(p.Local, p.Remote)
		}
	}
}

func (in *instance) listens(k listenKey) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.listeners[k]) > 0
}

// findListener returns the listener for requests to addr: the one bound to it,
// else that of a wildcard. some tells whether anybody listens on the port.
func (in *instance) findListener(k listenKey, addr netip.Addr) (l *listener, some bool) {
	addr = addr.WithZone("")
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, c := range in.listeners[k] {
		switch a := c.bound; {
		case a == addr:
			return c, true
		case !a.IsValid() || a.IsUnspecified() && a.Is4() == addr.Is4():
			l = c
		}
	}
	return l, len(in.listeners[k]) > 0
}

// request decides on a connection request.
func (in *instance) request(conn *ibcm.Conn, q *ibcm.REQ) ibcm.Verdict {
	space, port, ok := ibcm.SplitServiceID(q.ServiceID)
	if !ok || datagrams(verbs.PortSpace(space)) {
		return verbs.RejInvalidServiceID
	}
	k, path := listenKey{verbs.PortSpace(space), port}, conn.Path()
	l, some := in.findListener(k, path.Local)
	if !some {
		return verbs.RejInvalidServiceID
	}
	h, err := ibcm.ParseIPHeader(q.PrivateData[:])
	if l == nil || err != nil || h.Source.Addr() != path.Remote.WithZone("") || h.Destination != path.Local.WithZone("") {
		return verbs.RejConsumer
	}
	return l.offer(conn, q, h.Source.Port())
}

// ownAddr tells whether an address is this host's.
func (in *instance) ownAddr(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	in.ownMu.Lock()
	defer in.ownMu.Unlock()
	if now := in.dev.clock.Now(); in.own == nil || now.Sub(in.ownAt) > time.Second {
		addrs, err := in.dev.conn.Addrs()
		if err != nil {
			return false
		}
		in.own, in.ownAt = addrs, now
	}
	for _, o := range in.own {
		if o.WithZone("") == a.WithZone("") {
			return true
		}
	}
	return false
}

// deathGrace is the time between the death of a process and that of its
// connections: what it sent last is taken first.
const deathGrace = 10 * time.Millisecond

// watch calls died when the process dies that has a queue pair of this host.
func (in *instance) watch(addr netip.Addr, qpn uint32, died func()) (stop func()) {
	slot := uint8(qpn >> 16)
	if slot == 0 || slot == in.share.Slot() || !in.ownAddr(addr) {
		return func() {}
	}
	later := func() {
		if !in.dev.tryRetain() {
			return
		}
		in.dev.clock.AfterFunc(deathGrace, func() {
			died()
			in.dev.release()
		})
	}
	stop, err := in.share.Watch(slot, later)
	switch {
	case err == nil:
		return stop
	case errors.Is(err, share.ErrUnclaimed):
		later() // just now
	case errors.Is(err, share.ErrDropped):
		return in.watchLater(slot, later)
	}
	return func() {}
}
