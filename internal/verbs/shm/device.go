//go:build linux

package shm

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

const deviceName = "shm0"

// Limits of the device.
const (
	maxQPs      = 1 << 22 // numbers; memory ends before
	maxWR       = 1 << 14
	maxSRQWR    = 1 << 16
	maxCQE      = 1 << 20
	maxSGE      = 16
	maxInline   = 1 << 20
	maxMsgSize  = 1 << 31
	maxRDAtomic = 128
	defaultWR   = 128
	defaultSGE  = 2
)

// device is one end of a link, or what Open gives: what is made of that is for connections over any link.
type device struct {
	p     *Provider
	link  *link // nil: none
	open  bool
	table *regionTable

	board    []byte
	boardFd  int
	rings    ringAllocator
	notifier notifier
	servers  servers

	regions regionTable

	mu      sync.Mutex
	users   int  // opens, and what was made of the device
	settled bool // no goroutine of the link's uses it
	freed   bool
	cqs     []*cq // by number; nil: free
	freeCQs []uint32
	qps     map[uint32]*qp
}

// newDevice makes a device that its caller uses.
func (p *Provider) newDevice() (*device, error) { return p.newDeviceWith(boardSize) }

func (p *Provider) newDeviceWith(size int) (*device, error) {
	board, fd, err := newSegment(size)
	if err != nil {
		return nil, err
	}
	d := &device{p: p, board: board, boardFd: fd, users: 1, settled: true, qps: make(map[uint32]*qp)}
	d.table = &d.regions
	d.rings.dev = d
	d.notifier.init()
	return d, nil
}

func (d *device) Name() string { return deviceName }

func (d *device) Info() *verbs.DeviceInfo { return d.p.info() }

// info describes the device.
func (p *Provider) info() *verbs.DeviceInfo {
	info := &verbs.DeviceInfo{
		Name: deviceName, Provider: p.Name(), Transport: verbs.TransportShm,
		MaxQP: maxQPs, MaxCQE: maxCQE, MaxQPWR: maxWR, MaxSGE: maxSGE, MaxMsgSize: maxMsgSize, MaxInline: maxInline,
		MaxRDAtomic: maxRDAtomic, NativeFlush: true, NativeAtomicWrite: true,
	}
	port := verbs.PortInfo{Num: 1, State: "ACTIVE", MTU: pathMTU}
	addrs, _ := net.InterfaceAddrs() // none, if the system does not tell
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				port.GIDs = append(port.GIDs, ip.Unmap())
			}
		}
	}
	info.Ports = []verbs.PortInfo{port}
	return info
}

// Dup implements [verbs.Device].
func (d *device) Dup() (verbs.Device, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("shm: device: %w", net.ErrClosed)
	}
	return d, nil
}

// Close implements [verbs.Device].
func (d *device) Close() error {
	d.release()
	return nil
}

// tryRetain counts a user, unless the device is on its way out.
func (d *device) tryRetain() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.freed || d.users == 0 && (d.link == nil || d.link.active) {
		return false
	}
	d.users++
	return true
}

// release is the end of a user. The active end of a link goes with its last one, the passive end with the link.
func (d *device) release() {
	d.mu.Lock()
	d.users--
	last := d.users == 0
	d.mu.Unlock()
	if !last {
		return
	}
	if d.link != nil && d.link.active {
		d.link.close()
	}
	d.tryFree()
}

// tryFree gives the memory back if nobody needs it any more.
func (d *device) tryFree() {
	d.mu.Lock()
	if d.freed || d.users > 0 || !d.settled {
		d.mu.Unlock()
		return
	}
	d.freed = true
	d.mu.Unlock()
	d.notifier.close()
	d.rings.free()
	if d.link != nil {
		d.link.free()
	}
	if d.boardFd >= 0 {
		_ = unix.Close(d.boardFd)
	}
	dropSegment(d.board)
}

// settle is told that the link's goroutine is about to end.
func (d *device) settle() {
	d.mu.Lock()
	d.settled = true
	d.mu.Unlock()
	d.tryFree()
}

// addCQ gives a completion queue its number. It is whole when it can be found: the peer may ring for any number at any time.
func (d *device) addCQ(c *cq) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	num, err := d.freeNumber()
	if err != nil {
		return err
	}
	c.num, c.arm = num, armWord(d.board, num)
	c.arm.Store(unarmed)
	d.cqs[num] = c
	return nil
}

// numberCQ gives a completion queue of an open device its number on a link.
func (d *device) numberCQ(c *cq) (num uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if num, err = d.freeNumber(); err == nil {
		d.cqs[num] = c
	}
	return num, err
}

// freeNumber takes a number for a completion queue. d.mu is held.
func (d *device) freeNumber() (num uint32, err error) {
	if n := len(d.freeCQs); n > 0 {
		num = d.freeCQs[n-1]
		d.freeCQs = d.freeCQs[:n-1]
		return num, nil
	}
	if len(d.cqs) == maxCQs {
		return 0, fmt.Errorf("shm: more than %d completion queues with one process: %w", maxCQs, syscall.ENOMEM)
	}
	d.cqs = append(d.cqs, nil)
	return uint32(len(d.cqs) - 1), nil
}

func (d *device) removeCQ(num uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs[num] = nil
	d.freeCQs = append(d.freeCQs, num)
}

// cq finds a completion queue; nil: there is none.
func (d *device) cq(num uint32) *cq {
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(num) >= int64(len(d.cqs)) {
		return nil
	}
	return d.cqs[num]
}

// qp finds a queue pair; nil: there is none.
func (d *device) qp(num uint32) *qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps[num]
}

// everyQP calls f with each queue pair there is.
func (d *device) everyQP(f func(q *qp)) {
	d.mu.Lock()
	qps := make([]*qp, 0, len(d.qps))
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	d.mu.Unlock()
	for _, q := range qps {
		f(q)
	}
}

// lastQPN is the last number of a queue pair in this process, of 24 bits as on the wire of others.
var lastQPN atomic.Uint32

func init() { lastQPN.Store(rand.Uint32()) }

func (d *device) addQP(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		q.num = lastQPN.Add(1) & 0xffffff
		if q.num > 1 && d.qps[q.num] == nil {
			d.qps[q.num] = q
			return
		}
	}
}

func (d *device) removeQP(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.num)
}

// notifier calls Notify on a goroutine of its own, for completions that arise inside a consumer's call.
type notifier struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	due     []*cq
	running bool
	closed  bool
}

func (n *notifier) init() { n.wake = make(chan struct{}, 1) }

// add has a queue's Notify called.
func (n *notifier) add(c *cq) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.due = append(n.due, c)
	if !n.running {
		n.running = true
		go n.run()
	}
	n.ring()
}

func (n *notifier) ring() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// close lets the goroutine end. It does not wait: a handler may be the caller.
func (n *notifier) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.ring()
}

func (n *notifier) run() {
	var cqs []*cq
	for range n.wake {
		n.mu.Lock()
		cqs, n.due = n.due, cqs[:0]
		closed := n.closed
		n.mu.Unlock()
		for i, c := range cqs {
			c.notified()
			cqs[i] = nil
		}
		if closed {
			return
		}
	}
}
