//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
)

// core is what a provider has with cgo.
type core struct {
	p *Provider

	mu   sync.Mutex
	open map[string]*device
	ec   *eventChannel

	idle   idle
	reaper reaper
}

func (c *core) init(p *Provider) {
	c.p = p
	c.open = make(map[string]*device)
}

// order is where messages pass between goroutines unseen by the race detector.
var order race.Sync

var tokens atomic.Uint64

// newToken returns what stands for a Go object in C.
func newToken() uint64 { return tokens.Add(1) }

// device is an open device.
//
// Locks are taken in this order, each optional: those of an identifier, of a queue pair, of a completion
// queue, the device's. None is held while a handler runs.
type device struct {
	c      *core
	name   string
	attr   attrs
	port   []portAttrs // at the time of opening
	maxMsg int64       // longest message of any port
	iwarp  bool

	refs    atomic.Int64 // opens, and whatever lives on the device
	closing *time.Timer  // until it is closed, if nobody takes hold of it again; guarded by core.mu
	gone    atomic.Bool
	async   *drainer

	ctx   *coreCtx
	using sync.RWMutex // held by those who make something of ctx

	// groupsMu lets one queue pair at a time attach or detach. rdma_rxe of Linux 6.1 may attach one to a group that it
	// is about to forget because its last member leaves: the queue pair then hears nothing, and cannot be destroyed.
	groupsMu sync.Mutex

	table table
	gids  gids

	mu     sync.Mutex
	shards []*shard
	next   int
	cqs    map[uint64]*cq // by token, as the others
	srqs   map[uint64]*srq
	qps    map[uint64]*qp
	nums   map[uint32]*qp
	pds    map[*pd]struct{}
}

// use returns the open device of that name, held for the caller.
func (c *core) use(name string) (*device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.open[name]; d != nil && !d.gone.Load() && d.retainOpen() {
		return d, nil
	}
	d, err := c.openDevice(name)
	if err != nil {
		return nil, noDevice(c.p.host.cannotOpen(name, err))
	}
	c.open[name] = d
	return d, nil
}

// listedDevices are the devices that libibverbs can drive.
func listedDevices() (map[string]verbs.LinkTransport, error) {
	list, err := coreList()
	if err != nil {
		return nil, err
	}
	m := make(map[string]verbs.LinkTransport, len(list))
	for _, l := range list {
		m[l.name] = l.transport
	}
	return m, nil
}

func (c *core) openDevice(name string) (*device, error) {
	drivers, err := listedDevices()
	if err != nil {
		return nil, err
	}
	transport, ok := drivers[name]
	if !ok {
		return nil, errNoDriver
	}
	ctx, fd, err := coreOpen(name)
	if err != nil {
		return nil, err
	}
	d := &device{
		c: c, name: name, ctx: ctx, iwarp: transport == verbs.TransportIWARP,
		cqs: make(map[uint64]*cq), srqs: make(map[uint64]*srq), qps: make(map[uint64]*qp), nums: make(map[uint32]*qp),
		pds: make(map[*pd]struct{}),
	}
	d.refs.Store(1)
	if d.attr, err = coreQuery(ctx); err == nil {
		for i := range d.attr.ports {
			p, perr := coreQueryPort(ctx, i+1)
			if perr != nil {
				err = perr
				break
			}
			d.port = append(d.port, p)
			d.maxMsg = max(d.maxMsg, p.maxMsg)
		}
	}
	if err != nil {
		_, _ = syscall.Close(fd), coreClose(ctx)
		return nil, err
	}
	var kind int
	var token uint64
	d.async, err = drain(fd, "uverbs "+name,
		func() (err error) { kind, token, err = coreAsyncEvent(ctx); return err },
		func() { d.asyncEvent(kind, token) },
		func(error) { d.lost() })
	if err != nil {
		_ = coreClose(ctx) // the first error says more
		return nil, err
	}
	return d, nil
}

// tryRetain holds the device unless nobody else does.
func (d *device) tryRetain() bool { return d.retain(1) }

// retainOpen holds the device unless it is closed, also while nobody else does.
func (d *device) retainOpen() bool { return d.retain(0) }

func (d *device) retain(least int64) bool {
	for {
		n := d.refs.Load()
		if n < least {
			return false
		}
		if d.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// closedRefs stand for those of a device that is closed.
const closedRefs = -1 << 32

// idleTime is how long a device stays open when nobody needs it any more: opening it takes as long as all else that
// a connection takes, and there may be one connection after the other.
const idleTime = time.Second

// release gives a hold back. The last one closes the device after a while.
func (d *device) release() {
	if d.refs.Add(-1) > 0 {
		return
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if d.refs.Load() > 0 || d.closing != nil {
		return // in use again
	}
	d.closing = time.AfterFunc(idleTime, d.close)
	if d.gone.Load() {
		d.closing.Reset(0)
	}
}

// close closes the device, unless somebody has taken hold of it meanwhile.
func (d *device) close() {
	d.c.mu.Lock()
	d.closing = nil
	closed := d.refs.CompareAndSwap(0, closedRefs)
	if closed && d.c.open[d.name] == d {
		delete(d.c.open, d.name)
	}
	d.c.mu.Unlock()
	if closed {
		d.shutdown()
	}
}

func (d *device) shutdown() {
	d.async.close()
	d.async.wait()
	for _, s := range d.shards {
		s.close()
	}
	_ = coreClose(d.ctx) // nobody is left to tell
}

// Close implements [verbs.Device].
func (d *device) Close() error {
	d.release()
	return nil
}

func (d *device) Name() string { return d.name }

func (d *device) Dup() (verbs.Device, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("rdmacore: device %s: %w", d.name, net.ErrClosed)
	}
	return d, nil
}

// failure names the device in an error of C's, which on a device that is gone can be any.
func (d *device) failure(what string, err error) error {
	if d.gone.Load() || errors.Is(err, syscall.EIO) {
		err = syscall.ENODEV
	}
	return fmt.Errorf("rdmacore: %s on %s: %w", what, d.name, err)
}

const portDown = 1

var portStates = [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

func (d *device) Info() *verbs.DeviceInfo {
	info := d.c.p.host.describe(d.name)
	a := &d.attr
	info.MaxQP, info.MaxCQE, info.MaxQPWR, info.MaxSGE = a.maxQP, a.maxCQE, a.maxQPWR, a.maxSGE
	info.NativeFlush, info.NativeAtomicWrite = a.native, a.native
	info.MaxRDAtomic, info.ODP = min(a.maxRDAtomic, a.maxInitRDAtomic), a.odp
	info.Ports = info.Ports[:0]
	gids, ports := d.query()
	for i, p := range ports {
		if i == 0 || p.maxMsg < info.MaxMsgSize {
			info.MaxMsgSize = p.maxMsg
		}
		port := verbs.PortInfo{Num: i + 1, MTU: verbs.MTUFromCode(uint8(p.activeMTU))}
		if p.state >= 0 && p.state < len(portStates) {
			port.State = portStates[p.state]
		}
		for _, g := range gids {
			if g.port != i+1 {
				continue
			}
			if port.Interface == "" && g.ifindex != 0 {
				if ifi, err := net.InterfaceByIndex(g.ifindex); err == nil {
					port.Interface = ifi.Name
				}
			}
			if !slices.Contains(port.GIDs, g.gid) {
				port.GIDs = append(port.GIDs, g.gid)
			}
		}
		info.Ports = append(info.Ports, port)
	}
	return &info
}

// query tells what changes while a device is open. One that is gone has no addresses, and its ports are down.
func (d *device) query() (gids []gidEntry, ports []portAttrs) {
	ports = slices.Clone(d.port)
	for i := range ports {
		ports[i].state = portDown
	}
	if d.enter() != nil {
		return nil, ports
	}
	defer d.leave()
	gids, _ = coreGIDs(d.ctx) // the ports are shown without
	for i := range ports {
		if p, err := coreQueryPort(d.ctx, i+1); err == nil {
			ports[i] = p
		}
	}
	return gids, ports
}

// devices describes the kernel's devices of these names.
func (c *core) devices(names []string) ([]verbs.DeviceInfo, error) {
	var infos []verbs.DeviceInfo
	for _, name := range names {
		d, err := c.use(name)
		if err != nil {
			info := c.p.host.describe(name)
			info.Unusable = err
			infos = append(infos, info)
			continue
		}
		infos = append(infos, *d.Info())
		d.release()
	}
	return infos, nil
}

// Open implements [verbs.Provider].
func (p *Provider) Open(name string) (verbs.Device, error) {
	if name == "" {
		return nil, noDevice(errors.New("a device without a name"))
	}
	if err := p.check(name, 0); err != nil {
		return nil, err
	}
	d, err := p.core.use(name)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// asyncEvent takes an asynchronous event of the device.
func (d *device) asyncEvent(kind int, token uint64) {
	d.mu.Lock()
	q, c, s := d.qps[token], d.cqs[token], d.srqs[token]
	d.mu.Unlock()
	switch kind {
	case asyncCQ:
		if c != nil {
			c.fail(fmt.Errorf("rdmacore: completion queue overrun: %w", syscall.ENOSPC))
		}
	case asyncQP:
		if q != nil {
			q.broke()
		}
	case asyncSRQ:
		for _, q := range d.receivers(s) {
			q.broke()
		}
	case asyncCommEst:
		if q != nil && q.onCommEst != nil {
			q.onCommEst()
		}
	case asyncSRQLimit:
		if s != nil && s.limitEvent != nil {
			s.limitEvent()
		}
	case asyncDevice:
		d.lost()
	case asyncPort:
		d.gids.forget()
		// A port that is down may come back before the transport gives up, which the connections then tell.
	case asyncNone:
	}
}

// receivers are the queue pairs that receive from a shared queue.
func (d *device) receivers(s *srq) (qps []*qp) {
	if s == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.qps {
		if q.srq == s {
			qps = append(qps, q)
		}
	}
	return qps
}

// shard is a completion channel and the goroutine that reads it.
type shard struct {
	d     *device
	ch    *coreChan
	drain *drainer
	buf   [coreEvents]uint64
	seat  seat
}

// shard returns the channel for the next completion queue, and its number.
func (d *device) shard() (*shard, int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.next
	d.next = (d.next + 1) % max(1, runtime.GOMAXPROCS(0))
	if i < len(d.shards) {
		return d.shards[i], i, nil
	}
	i = len(d.shards)
	s := &shard{d: d}
	ch, fd, err := coreCreateChan(d.ctx)
	if err != nil {
		return nil, 0, err
	}
	s.ch = ch
	if s.drain, err = newDrainer(fd, "completions of "+d.name); err != nil {
		_ = coreDestroyChan(ch) // the first error says more
		return nil, 0, err
	}
	s.seat.init(s.drain, s.take)
	go s.drain.run(s.take, func() {}, nil) // that the device is gone is told elsewhere
	d.shards = append(d.shards, s)
	return s, i, nil
}

// take calls Notify itself, since the channel is not closed by handlers: known to be empty, it is not read again before it is
// readable.
func (s *shard) take() error {
	n, drained, err := coreCQEvents(s.ch, s.buf[:])
	if err != nil {
		return err
	}
	s.notify(s.buf[:n])
	if drained {
		return syscall.EAGAIN
	}
	return nil
}

func (s *shard) notify(tokens []uint64) {
	for _, token := range tokens {
		s.d.mu.Lock()
		c := s.d.cqs[token]
		s.d.mu.Unlock()
		if c != nil {
			c.disarmed()
			c.notified()
		}
	}
}

func (s *shard) close() {
	s.seat.close()
	s.drain.close()
	s.drain.wait()
	_ = coreDestroyChan(s.ch) // nobody is left to tell
}

var _ verbs.Device = (*device)(nil)
