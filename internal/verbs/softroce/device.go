package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// device is a softroce device: the queue pairs of one process slot on a network.
//
// Locks are taken in this order, each optional: qp.mu, then one of cq.mu,
// congestion.mu, and the tables' locks. None is held while a handler runs
// or a goroutine waits; qp.mu is held while packets are sent, which does not block.
type device struct {
	cfg   *Config
	slot  uint8
	clock Clock
	epoch time.Time
	conn  netio.Conn
	trace *trace.Recorder // nil: off

	// onMAD takes datagrams for QPN 1 whose Q_Key is right, onForeign packets for
	// queue pairs of another slot, onClosed the end. All are set before start,
	// and called with no lock held. The first two may run inside any
	// consumer's CQ.Poll: they must not call a consumer's handler themselves.
	onMAD     func(p *netio.Packet, mad []byte)
	onForeign func(p *netio.Packet, destQPN uint32)
	onClosed  func()
	// ownHost tells whether an address is this host's. It is set before start, too, or nil.
	ownHost func(netip.Addr) bool

	started  atomic.Bool
	refs     atomic.Int64 // opens, and whatever lives on the device
	qps      qpTable
	mrs      mrTable
	paths    congestionTable
	works    sync.Pool // of *work
	notifier notifier
	replier  replier
	groups   groupTable
	polling  atomic.Int32 // consumers that are reading the network
	spins    spinning
	seat     seat
	holds    holding
	madPSN   atomic.Uint32
	stats    counters

	persister persister
}

// newDevice opens the network for a device, which is held once. Packets are
// dropped until start.
func newDevice(cfg *Config, slot uint8) (*device, error) {
	d := &device{cfg: cfg, slot: slot, clock: cfg.clock(), trace: cfg.trace()}
	d.epoch = d.clock.Now()
	d.notifier.wake = make(chan struct{}, 1)
	d.replier.wake = make(chan struct{}, 1)
	d.refs.Store(1)
	conn, err := cfg.open(d)
	if err != nil {
		return nil, err
	}
	d.conn = conn
	d.spins.net, _ = conn.(attended)
	d.seat.dev = d
	go d.notifier.run()
	return d, nil
}

// start lets packets in. The handlers are set.
func (d *device) start() { d.started.Store(true) }

func unsupported(what string) error {
	return fmt.Errorf("softroce: %s: %w", what, errors.ErrUnsupported)
}

// now returns the time in nanoseconds since the device began; it is never 0.
func (d *device) now() int64 { return int64(d.clock.Now().Sub(d.epoch)) + 1 }

// retain holds the device. The caller already holds it, directly or not.
func (d *device) retain() { d.refs.Add(1) }

// tryRetain holds the device unless it is gone.
func (d *device) tryRetain() bool {
	for {
		n := d.refs.Load()
		if n == 0 {
			return false
		}
		if d.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release gives a hold back; with the last one the network is closed.
func (d *device) release() {
	if d.refs.Add(-1) == 0 {
		d.shutdown()
	}
}

func (d *device) shutdown() {
	_ = d.conn.Close() // nothing depends on it any more
	d.notifier.close()
	d.replier.close()
	if d.trace != nil {
		d.trace.Flush()
	}
	if d.onClosed != nil {
		d.onClosed()
	}
}

func (d *device) Close() error {
	d.release()
	return nil
}

func (d *device) Name() string { return d.cfg.name() }

func (d *device) Dup() (verbs.Device, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: device %s: %w", d.Name(), net.ErrClosed)
	}
	return d, nil
}

// poll reads the network on a consumer's goroutine.
func (d *device) poll() int {
	d.polling.Add(1)
	defer d.polling.Add(-1)
	return d.conn.Poll()
}

// Limits that DeviceInfo tells.
const (
	maxQPs     = 1 << 15 // of the 2^16 numbers of a slot: a free one is found quickly
	maxWR      = 1 << 14
	maxSGE     = 16
	maxInline  = 256
	maxMsgSize = 1 << 31 // 2 GiB, the most of the specification
)

// portMTU is that of the port, which serves all interfaces. Connections and datagrams take that of their route.
func (d *device) portMTU() verbs.MTU {
	if c, ok := d.conn.(interface{ MTU() int }); ok {
		return max(pathMTU(c.MTU()), minMTU)
	}
	return 1024
}

func (d *device) Info() *verbs.DeviceInfo {
	port := verbs.PortInfo{Num: 1, State: "ACTIVE", MTU: d.portMTU()}
	if gids, err := d.conn.Addrs(); err == nil {
		port.GIDs = gids
	}
	return &verbs.DeviceInfo{
		Name: d.cfg.name(), Provider: "softroce", Transport: verbs.TransportIB,
		Ports: []verbs.PortInfo{port},
		MaxQP: maxQPs, MaxCQE: maxCQE, MaxQPWR: maxWR, MaxSGE: maxSGE,
		MaxMsgSize: maxMsgSize, MaxInline: maxInline, MaxRDAtomic: maxRDAtomic,
		NativeFlush: true, NativeAtomicWrite: true,
	}
}

// HandlePackets takes what the network received: runs of packets for one queue
// pair are handled under one lock, and the answers leave together.
func (d *device) HandlePackets(ps []netio.Packet) {
	if !d.started.Load() || !d.tryRetain() {
		return
	}
	w := d.begin()
	for i := 0; i < len(ps); {
		qpn, ok := destQPN(ps[i].Data)
		if !ok {
			d.stats.malformed.Add(1)
			i++
			continue
		}
		j := i + 1
		for j < len(ps) {
			if q, ok := destQPN(ps[j].Data); !ok || q != qpn {
				break
			}
			j++
		}
		d.handleRun(w, qpn, ps[i:j])
		i = j
	}
	w.end(true)
	if d.refs.Add(-1) == 0 {
		// Closing the network waits for this very handler.
		go d.shutdown()
	}
}

func destQPN(b []byte) (uint32, bool) {
	if len(b) < wire.BTHLen {
		return 0, false
	}
	return uint32(b[5])<<16 | uint32(b[6])<<8 | uint32(b[7]), true
}

func (d *device) handleRun(w *work, qpn uint32, ps []netio.Packet) {
	switch {
	case qpn == wire.QPNGSI:
		for i := range ps {
			d.handleMAD(w, &ps[i])
		}
	case qpn == wire.QPNMulticast:
		d.received(ps)
		d.handleGroup(w, ps)
	case qpn == 0:
		d.received(ps)
		d.stats.unknownQP.Add(uint64(len(ps)))
	case uint8(qpn>>16) != d.slot:
		if d.onForeign == nil {
			d.received(ps)
			d.stats.unknownQP.Add(uint64(len(ps)))
			return
		}
		for i := range ps {
			d.onForeign(&ps[i], qpn)
		}
	default:
		d.received(ps)
		if q := d.qps.find(qpn); q != nil {
			q.receive(w, ps)
		} else {
			d.stats.unknownQP.Add(uint64(len(ps)))
		}
	}
}

// received records packets that are for this process, or for nobody.
func (d *device) received(ps []netio.Packet) {
	if d.trace == nil {
		return
	}
	for i := range ps {
		d.trace.Received(&ps[i], "")
	}
}

// dropped records a packet that nobody takes.
func (d *device) dropped(p *netio.Packet, why string) {
	if d.trace != nil {
		d.trace.Received(p, "dropped: "+why)
	}
}

// handleMAD checks a datagram to the general services interface.
func (d *device) handleMAD(w *work, p *netio.Packet) {
	h := &w.in
	switch {
	case h.Decode(p.Data) != nil:
		d.stats.malformed.Add(1)
	case h.Opcode != wire.UDSendOnly:
		d.stats.wrongType.Add(1)
	case p.Local.IsMulticast():
		d.stats.wrongAddr.Add(1)
	case !goodPKey(h.PKey):
		d.stats.wrongPKey.Add(1)
	case h.QKey != wire.QKeyGSI:
		d.stats.wrongQKey.Add(1)
	case d.onMAD == nil:
		d.stats.unknownQP.Add(1)
	default:
		d.onMAD(p, h.Payload)
		return
	}
	d.dropped(p, "no datagram for the general services interface")
}

// goodPKey tells whether a packet's partition key matches the default one, which
// is a full member: the low 15 bits count (IBTA 10.9.3).
func goodPKey(k uint16) bool { return k&0x7FFF == wire.DefaultPKey&0x7FFF }

// sendMAD sends a management datagram to the peer's general services interface.
func (d *device) sendMAD(path *netio.Path, mad []byte) error {
	w := d.begin()
	defer w.end(false)
	w.out = wire.Packet{
		BTH: wire.BTH{
			Opcode: wire.UDSendOnly, Pad: wire.PadFor(len(mad)), PKey: wire.DefaultPKey,
			DestQP: wire.QPNGSI, PSN: d.madPSN.Add(1) & wire.PSNMask,
		},
		DETH: wire.DETH{QKey: wire.QKeyGSI, SrcQP: wire.QPNGSI},
	}
	w.out.PutHeaders(w.tx.Add(path, w.out.HeaderLen()))
	w.tx.Payload(mad)
	err := d.conn.Send(w.tx)
	w.tx.Reset()
	return err
}

// qpTable finds queue pairs by the lower 16 bits of their number, without a lock.
type qpTable struct {
	pages [256]atomic.Pointer[[256]atomic.Pointer[qp]]
	mu    sync.Mutex
	n     int
	begun bool
	next  uint16 // number, less one
}

func (t *qpTable) find(qpn uint32) *qp {
	page := t.pages[uint8(qpn>>8)].Load()
	if page == nil {
		return nil
	}
	return page[uint8(qpn)].Load()
}

// add gives q a free number and publishes it, unless the table is full. Numbers follow one another, so that one comes
// again as late as can be: a peer that has not heard of the end of its last owner takes a new connection of it for stale (IBTA 12.9.8.3.1).
func (t *qpTable) add(cfg *Config, slot uint8, q *qp) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == maxQPs {
		return false
	}
	if !t.begun {
		t.begun, t.next = true, uint16(cfg.random64())
	}
	for {
		t.next++
		qpn := uint32(slot)<<16 | uint32(t.next)
		if qpn <= wire.QPNGSI || qpn == wire.QPNMulticast || t.find(qpn) != nil {
			continue
		}
		q.num = qpn
		page := &t.pages[uint8(qpn>>8)]
		if page.Load() == nil {
			page.Store(new([256]atomic.Pointer[qp]))
		}
		page.Load()[uint8(qpn)].Store(q)
		t.n++
		return true
	}
}

func (t *qpTable) remove(q *qp) {
	t.mu.Lock()
	t.pages[uint8(q.num>>8)].Load()[uint8(q.num)].Store(nil)
	t.n--
	t.mu.Unlock()
}

// each calls f for every queue pair.
func (t *qpTable) each(f func(q *qp)) {
	for i := range t.pages {
		page := t.pages[i].Load()
		if page == nil {
			continue
		}
		for j := range page {
			if q := page[j].Load(); q != nil {
				f(q)
			}
		}
	}
}
