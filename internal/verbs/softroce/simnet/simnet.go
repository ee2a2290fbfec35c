// Package simnet is a simulated network for softroce devices: hosts with addresses, and
// between them loss, duplication, reordering, delay, corruption, limited rates and queues. Its
// connections stand where UDP sockets stand otherwise.
//
// Packets are really encoded, and their ICRC is computed by the sender and checked by
// the receiver, so what is damaged on the way is dropped as a socket drops it.
//
// Time is that of package time. Inside a [testing/synctest] bubble it is therefore
// simulated. Chance comes from a seed, for each queue pair's requests and for its responses
// separately, so that the same ones are lost in each run, whichever goroutine is first at
// an instant. A run on simulated time repeats itself as far as its senders do.
package simnet

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// Options say how bad the network is. Probabilities are between 0 and 1 and per packet.
type Options struct {
	Loss    float64
	Dup     float64 // a second copy arrives, with a delay of its own
	Reorder float64 // the packet is held back by ReorderBy
	Corrupt float64 // one bit flips

	Delay     time.Duration // one way
	Jitter    time.Duration // added to it, between 0 and this; alone it does not reorder
	ReorderBy time.Duration // 0: twice Delay and Jitter, and at least 100 microseconds

	// Rate is that of each direction of each pair of addresses, in bytes per second of what is above
	// UDP; 0 is without limit. Queue is how many bytes may wait for it, or, without a rate, on the way;
	// what comes on top is lost. 0 is without limit.
	Rate  int
	Queue int

	MTU int // of every interface; 0: 65536, as Linux's loopback
}

// Frame is a packet on its way, for filters. Data is BTH to pad and must be left as it is.
type Frame struct {
	Src, Dst netip.AddrPort
	Data     []byte
}

// Stats counts packets.
type Stats struct {
	Sent, Delivered    uint64
	Lost               uint64 // by chance
	Dropped            uint64 // by a filter, a partition, or for want of a receiver
	Overflowed         uint64 // no room in a queue
	Corrupted, BadICRC uint64 // damaged on the way; noticed by the receiver
	Duplicated         uint64
	Reordered          uint64
}

// Network joins hosts.
type Network struct {
	seed uint64

	mu      sync.Mutex
	opts    Options
	hosts   map[netip.Addr]*Host
	order   []*Host // as they came
	links   map[pair]*link
	cut     map[pair]bool
	filters []*filter
	port    uint16
	stats   Stats
	free    []*frame
}

type pair struct{ from, to netip.Addr }

// link is one direction of a pair of addresses.
type link struct {
	chance map[uint32]*rand.Rand // by queue pair, requests and responses
	last   time.Time             // when the packet before arrives
	idle   time.Time             // when the last byte of what was sent has left
	queued int                   // bytes on the way
}

// frame is an encoded packet on its way.
type frame struct {
	at       time.Time
	seq      uint64
	link     *link
	src, dst netip.AddrPort
	to       *conn // the member that a packet to a group is for
	tc, hop  uint8
	buf      []byte // BTH to ICRC
}

// firstPort is where the UDP source ports begin.
const firstPort = 49152

// New returns a network without hosts. Runs with the same seed meet the same chances.
func New(seed uint64, opts Options) *Network {
	return &Network{
		seed: seed, opts: opts, port: firstPort,
		hosts: make(map[netip.Addr]*Host), links: make(map[pair]*link), cut: make(map[pair]bool),
	}
}

// SetOptions changes the network for packets yet to be sent.
func (n *Network) SetOptions(opts Options) {
	n.mu.Lock()
	n.opts = opts
	n.mu.Unlock()
}

// Stats returns what happened to packets so far.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// Partition drops what hosts with these addresses send to each other, in both directions.
func (n *Network) Partition(a, b netip.Addr) { n.setCut(a, b, true) }

// Heal undoes Partition.
func (n *Network) Heal(a, b netip.Addr) { n.setCut(a, b, false) }

func (n *Network) setCut(a, b netip.Addr, cut bool) {
	n.mu.Lock()
	n.cut[pair{a, b}], n.cut[pair{b, a}] = cut, cut
	n.mu.Unlock()
}

type filter struct {
	drop func(*Frame) bool
	left int // drops to come; negative: without end
}

// DropNext drops the next count packets that match; a nil match is all of them.
func (n *Network) DropNext(count int, match func(*Frame) bool) { n.addFilter(count, match) }

// Filter drops every packet that match reports, until remove is called. match runs
// under a lock of the network, one packet at a time in the order they are sent, and may just as well only look.
func (n *Network) Filter(match func(*Frame) bool) (remove func()) {
	f := n.addFilter(-1, match)
	return func() {
		n.mu.Lock()
		f.left = 0
		n.mu.Unlock()
	}
}

func (n *Network) addFilter(count int, match func(*Frame) bool) *filter {
	f := &filter{match, count}
	n.mu.Lock()
	n.filters = append(n.filters, f)
	n.mu.Unlock()
	return f
}

// filtered tells whether a filter drops the packet.
func (n *Network) filtered(f *frame) bool {
	if len(n.filters) == 0 {
		return false
	}
	view := Frame{f.src, f.dst, f.data()}
	drop := false
	kept := n.filters[:0]
	for _, fl := range n.filters {
		if !drop && fl.left != 0 && (fl.drop == nil || fl.drop(&view)) {
			drop = true
			if fl.left > 0 {
				fl.left--
			}
		}
		if fl.left != 0 {
			kept = append(kept, fl)
		}
	}
	n.filters = kept
	return drop
}

// Host is a machine on the network.
type Host struct {
	net   *Network
	addrs []netip.Addr
	conns []*conn // under Network.mu
}

// Host adds a machine. Its addresses are its own alone.
func (n *Network) Host(addrs ...netip.Addr) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &Host{net: n, addrs: addrs}
	for _, a := range addrs {
		if n.hosts[a] != nil {
			panic(fmt.Sprintf("simnet: two hosts with address %v", a))
		}
		n.hosts[a] = h
	}
	n.order = append(n.order, h)
	return h
}

// Open gives a process of the host its face to the network. Several share the UDP
// port: a flow (source address and port) reaches one of them, whichever, unless one asked for it by Prefer.
func (h *Host) Open(handler netio.Handler) (netio.Conn, error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &conn{host: h, handler: handler, wake: make(chan struct{}, 1), done: make(chan struct{})}
	for i := range c.ports {
		c.ports[i] = n.nextPort()
	}
	h.conns = append(h.conns, c)
	go c.run()
	return c, nil
}

// nextPort returns another UDP source port each time, until there are none left. Network.mu is held.
func (n *Network) nextPort() uint16 {
	if n.port++; n.port < firstPort {
		n.port = firstPort
	}
	return n.port
}

// receiver picks the process that a packet reaches.
func (h *Host) receiver(f *frame) *conn {
	for _, c := range h.conns {
		if c.prefers(f.dst.Addr(), f.src) {
			return c
		}
	}
	if len(h.conns) == 0 {
		return nil
	}
	x := uint32(f.src.Port()) * 0x9E3779B1
	for _, b := range f.src.Addr().As16() {
		x = (x ^ uint32(b)) * 0x01000193
	}
	return h.conns[x>>8%uint32(len(h.conns))]
}

func (n *Network) link(from, to netip.Addr) *link {
	l := n.links[pair{from, to}]
	if l == nil {
		l = &link{chance: make(map[uint32]*rand.Rand)}
		n.links[pair{from, to}] = l
	}
	return l
}

// chance returns what decides about a packet. Queue pairs are told apart by their first
// packets' order: their numbers may be random.
func (n *Network) chance(l *link, f *frame) *rand.Rand {
	key := binary.BigEndian.Uint32(f.buf[4:]) << 8 // the destination
	if !wire.Opcode(f.buf[0]).IsRequest() {
		key |= 1
	}
	r := l.chance[key]
	if r == nil {
		r = rand.New(rand.NewPCG(n.seed, mix(f.src.Addr())*31+mix(f.via())+uint64(len(l.chance))<<32))
		l.chance[key] = r
	}
	return r
}

func mix(a netip.Addr) uint64 {
	x := uint64(14695981039346656037)
	for _, b := range a.As16() {
		x = (x ^ uint64(b)) * 1099511628211
	}
	return x
}

func (o *Options) mtu() int {
	if o.MTU != 0 {
		return o.MTU
	}
	return 65536
}

// via is the address of the host that a frame goes to.
func (f *frame) via() netip.Addr {
	if f.to == nil {
		return f.dst.Addr()
	}
	for _, a := range f.to.host.addrs {
		if a.Is4() == f.dst.Addr().Is4() {
			return a
		}
	}
	return f.dst.Addr()
}

// launch decides a packet's fate. Network.mu is held.
func (n *Network) launch(now time.Time, f *frame) {
	o := &n.opts
	n.stats.Sent++
	l := n.link(f.src.Addr(), f.via())
	f.link = l
	// Chance is asked the same number of times for each packet, so that one fate does not
	// change those after it.
	r := n.chance(l, f)
	lose, dup := r.Float64() < o.Loss, r.Float64() < o.Dup
	hold, corrupt := r.Float64() < o.Reorder, r.Float64() < o.Corrupt
	bit, jitter, again := r.Uint32(), r.Float64(), r.Float64()

	if n.filtered(f) || n.cut[pair{f.src.Addr(), f.via()}] {
		n.stats.Dropped++
		n.recycle(f)
		return
	}
	sent := now
	if o.Rate > 0 {
		if l.idle.Before(now) {
			l.idle = now
		}
		if o.Queue > 0 && int(l.idle.Sub(now).Seconds()*float64(o.Rate))+len(f.buf) > o.Queue {
			n.stats.Overflowed++
			n.recycle(f)
			return
		}
		l.idle = l.idle.Add(time.Duration(len(f.buf)) * time.Second / time.Duration(o.Rate))
		sent = l.idle
	} else if o.Queue > 0 && l.queued+len(f.buf) > o.Queue {
		n.stats.Overflowed++
		n.recycle(f)
		return
	}
	if lose {
		n.stats.Lost++
		n.recycle(f)
		return
	}
	if corrupt {
		n.stats.Corrupted++
		bit %= uint32(len(f.buf) * 8)
		if bit/8 == 4 {
			bit += 8 // the one byte that the ICRC does not cover
		}
		f.buf[bit/8] ^= 1 << (bit % 8)
	}
	f.at = sent.Add(o.Delay + time.Duration(jitter*float64(o.Jitter)))
	if dup {
		n.stats.Duplicated++
		g := n.frame()
		buf := g.buf
		*g = *f
		g.buf = buf[:0]
		g.buf = append(g.buf, f.buf...)
		g.at = sent.Add(o.Delay + time.Duration(again*float64(o.Jitter)))
		n.deliver(g)
	}
	if hold {
		n.stats.Reordered++
		by := o.ReorderBy
		if by == 0 {
			by = max(2*(o.Delay+o.Jitter), 100*time.Microsecond)
		}
		f.at = f.at.Add(by)
	} else {
		if f.at.Before(l.last) {
			f.at = l.last
		}
		l.last = f.at
	}
	n.deliver(f)
}

// deliver queues a packet at its receiver.
func (n *Network) deliver(f *frame) {
	c := f.to
	if h := n.hosts[f.dst.Addr()]; h != nil {
		c = h.receiver(f)
	}
	if c == nil {
		n.stats.Dropped++
		n.recycle(f)
		return
	}
	f.link.queued += len(f.buf)
	c.enqueue(f)
}

const maxFree = 4096

func (n *Network) frame() *frame {
	if k := len(n.free); k > 0 {
		f := n.free[k-1]
		n.free = n.free[:k-1]
		return f
	}
	return &frame{buf: make([]byte, 0, 4096+64)}
}

func (n *Network) recycle(f *frame) {
	f.link, f.to = nil, nil
	if len(n.free) < maxFree {
		n.free = append(n.free, f)
	}
}
