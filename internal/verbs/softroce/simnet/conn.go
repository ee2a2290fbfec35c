package simnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// conn is a process's face to the network.
type conn struct {
	host    *Host
	handler netio.Handler
	ports   [4]uint16
	wake    chan struct{} // capacity 1: the queue has a new head
	done    chan struct{} // closed by Close
	closing sync.Once

	// Under Network.mu.
	queue     []*frame // a heap, earliest first
	seq       uint64
	preferred []flow
	groups    []netip.Addr // as often as it was joined
	closed    bool

	reading sync.Mutex // held while packets are handed over
	batch   []*frame
	packets []netio.Packet
}

type flow struct {
	local  netip.Addr
	remote netip.AddrPort
}

func headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

func (c *conn) Send(b *netio.TxBatch) error {
	n := c.host.net
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer b.Reset()
	if c.closed {
		return net.ErrClosed
	}
	var err error
	for i := range b.Len() {
		path, hdr, frags := b.Packet(i)
		f := n.frame()
		f.buf = append(f.buf[:0], hdr...)
		for _, p := range frags {
			f.buf = append(f.buf, p...)
		}
		f.buf = append(f.buf, make([]byte, hdr[1]>>4&3)...)
		size := len(f.buf) + wire.ICRCLen
		if headers(path.Remote)+size > n.opts.mtu() {
			err = fmt.Errorf("simnet: packet of %d bytes: %w", size, syscall.EMSGSIZE)
			path.SetTooLong()
			n.recycle(f)
			continue
		}
		f.src = netip.AddrPortFrom(path.Local, c.source(path))
		f.dst = netip.AddrPortFrom(path.Remote, netio.Port)
		f.tc, f.hop = path.TrafficClass, path.HopLimit
		if f.hop == 0 {
			f.hop = 64
		}
		crc := wire.ICRCStart(path.Local, path.Remote, f.src.Port(), 8+size, 0)
		crc = wire.ICRCHeader(crc, f.buf[:len(hdr)])
		crc = wire.ICRCBytes(crc, f.buf[len(hdr):])
		f.buf = append(f.buf, 0, 0, 0, 0)
		wire.PutICRC(f.buf[size-wire.ICRCLen:], crc)
		if path.Remote.IsMulticast() {
			n.multicast(now, f)
		} else {
			n.launch(now, f)
		}
	}
	return err
}

// data is the frame without its ICRC.
func (f *frame) data() []byte { return f.buf[:len(f.buf)-wire.ICRCLen] }

func (f *frame) before(g *frame) bool {
	if !f.at.Equal(g.at) {
		return f.at.Before(g.at)
	}
	return f.seq < g.seq
}

// enqueue adds a packet to the heap. Network.mu is held.
func (c *conn) enqueue(f *frame) {
	c.seq++
	f.seq = c.seq
	c.queue = append(c.queue, f)
	i := len(c.queue) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.queue[i].before(c.queue[up]) {
			break
		}
		c.queue[i], c.queue[up] = c.queue[up], c.queue[i]
		i = up
	}
	if i == 0 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// pop takes the earliest packet. Network.mu is held.
func (c *conn) pop() *frame {
	f := c.queue[0]
	last := len(c.queue) - 1
	c.queue[0] = c.queue[last]
	c.queue[last] = nil
	c.queue = c.queue[:last]
	for i := 0; ; {
		k := 2*i + 1
		if k >= last {
			break
		}
		if k+1 < last && c.queue[k+1].before(c.queue[k]) {
			k++
		}
		if !c.queue[k].before(c.queue[i]) {
			break
		}
		c.queue[k], c.queue[i] = c.queue[i], c.queue[k]
		i = k
	}
	return f
}

// run delivers packets when their time comes.
func (c *conn) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if wait := c.readAll(); wait >= 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-c.done:
			return
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// readAll hands over what is due and returns the time until something is;
// negative: nothing is on its way.
func (c *conn) readAll() time.Duration {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, wait := c.read()
		if n == 0 {
			return wait
		}
	}
}

// Poll implements [netio.Conn].
func (c *conn) Poll() int {
	if !c.reading.TryLock() {
		return 0
	}
	defer c.reading.Unlock()
	n, _ := c.read()
	return n
}

// read hands over one batch of what is due and returns its size, or the time until
// something is, as readAll. c.reading is held.
func (c *conn) read() (int, time.Duration) {
	n := c.host.net
	now := time.Now()
	n.mu.Lock()
	c.packets = c.packets[:0]
	wait := time.Duration(-1)
	for len(c.queue) > 0 && len(c.batch) < netio.MaxBatch && !c.closed {
		if d := c.queue[0].at.Sub(now); d > 0 {
			wait = d
			break
		}
		f := c.pop()
		c.batch = append(c.batch, f)
		f.link.queued -= len(f.buf)
		if id, ok := wire.Verify(f.src.Addr(), f.dst.Addr(), f.src.Port(), f.buf, 0); !ok || id != 0 {
			n.stats.BadICRC++
			continue
		}
		n.stats.Delivered++
		p := netio.Packet{Local: f.dst.Addr(), Remote: f.src, TrafficClass: f.tc, HopLimit: f.hop, Data: f.data()}
		if f.to != nil {
			p.Interface = index
		}
		c.packets = append(c.packets, p)
	}
	n.mu.Unlock()
	taken := len(c.batch)
	if len(c.packets) > 0 {
		c.handler.HandlePackets(c.packets)
	}
	n.mu.Lock()
	for i, f := range c.batch {
		n.recycle(f)
		c.batch[i] = nil
	}
	n.mu.Unlock()
	c.batch = c.batch[:0]
	return taken, wait
}

// Route implements [netio.Conn]: every address reaches every other of its family.
func (c *conn) Route(local, remote netip.Addr) (netio.Route, error) {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if local.IsValid() && !local.IsUnspecified() {
		if !slices.Contains(c.host.addrs, local) {
			return netio.Route{}, fmt.Errorf("simnet: %v: %w", local, syscall.EADDRNOTAVAIL)
		}
	} else {
		i := slices.IndexFunc(c.host.addrs, func(a netip.Addr) bool { return a.Is4() == remote.Is4() })
		if i < 0 {
			return netio.Route{}, fmt.Errorf("simnet: no route to %v: %w", remote, syscall.ENETUNREACH)
		}
		local = c.host.addrs[i]
	}
	if local.Is4() != remote.Is4() {
		return netio.Route{}, fmt.Errorf("simnet: no route from %v to %v: %w", local, remote, syscall.ENETUNREACH)
	}
	return netio.Route{Local: local, Remote: remote, Interface: "sim0", MTU: n.opts.mtu()}, nil
}

func (c *conn) Addrs() ([]netip.Addr, error) { return slices.Clone(c.host.addrs), nil }

func (c *conn) Prefer(local netip.Addr, remote netip.AddrPort) {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range c.host.conns {
		o.preferred = slices.DeleteFunc(o.preferred, func(f flow) bool { return f == flow{local, remote} })
	}
	c.preferred = append(c.preferred, flow{local, remote})
}

// Fresh implements [netio.Conn]: there are always enough ports.
func (c *conn) Fresh(p *netio.Path) uint16 {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	port := n.nextPort()
	p.SetFresh(uint32(port), nil)
	return port
}

// source is the UDP source port of a path.
func (c *conn) source(p *netio.Path) uint16 {
	if port, ok := p.FreshPort(); ok {
		return uint16(port)
	}
	return c.ports[p.Flow()%uint32(len(c.ports))]
}

func (c *conn) prefers(local netip.Addr, remote netip.AddrPort) bool {
	return len(c.preferred) > 0 && slices.Contains(c.preferred, flow{local, remote})
}

func (c *conn) Close() error {
	c.closing.Do(func() {
		n := c.host.net
		n.mu.Lock()
		c.closed = true
		for _, f := range c.queue {
			f.link.queued -= len(f.buf)
			n.recycle(f)
		}
		c.queue = nil
		c.host.conns = slices.DeleteFunc(c.host.conns, func(o *conn) bool { return o == c })
		n.mu.Unlock()
		close(c.done)
	})
	c.reading.Lock() // no handler runs
	defer c.reading.Unlock()
	return nil
}
