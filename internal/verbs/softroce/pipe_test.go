package softroce

import (
	"errors"
	"net/netip"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// pipe joins two devices without goroutines or time: what one sends, the other
// gets when it polls. It does not allocate once it is warm.
type pipe struct {
	netio.Conn // none: what is not below panics
	handler    netio.Handler
	to         *pipe
	groups     bool // JoinGroup works
	joined     int

	mu      sync.Mutex
	arrived []netio.Packet
	free    [][]byte
	reading sync.Mutex
	batch   []netio.Packet
}

func newPipes() (a, b *pipe) {
	a, b = &pipe{}, &pipe{}
	a.to, b.to = b, a
	return a, b
}

func (p *pipe) Open(h netio.Handler) (netio.Conn, error) { p.handler = h; return p, nil }

func (p *pipe) Send(b *netio.TxBatch) error {
	to := p.to
	to.mu.Lock()
	defer to.mu.Unlock()
	for i := range b.Len() {
		path, hdr, frags := b.Packet(i)
		var buf []byte
		if n := len(to.free); n > 0 {
			buf, to.free = to.free[n-1][:0], to.free[:n-1]
		} else {
			buf = make([]byte, 0, 4200)
		}
		buf = append(buf, hdr...)
		for _, f := range frags {
			buf = append(buf, f...)
		}
		buf = append(buf, make([]byte, hdr[1]>>4&3)...)
		to.arrived = append(to.arrived, netio.Packet{
			Local: path.Remote, Remote: netip.AddrPortFrom(path.Local, 50000), Data: buf,
		})
	}
	b.Reset()
	return nil
}

func (p *pipe) Poll() int {
	if !p.reading.TryLock() {
		return 0
	}
	defer p.reading.Unlock()
	p.mu.Lock()
	p.batch = append(p.batch[:0], p.arrived...)
	p.arrived = p.arrived[:0]
	p.mu.Unlock()
	if len(p.batch) > 0 {
		p.handler.HandlePackets(p.batch)
	}
	p.mu.Lock()
	for i := range p.batch {
		p.free = append(p.free, p.batch[i].Data)
	}
	p.mu.Unlock()
	return len(p.batch)
}

func (p *pipe) JoinGroup(netip.Addr, int) (func(), error) {
	if !p.groups {
		return nil, errors.ErrUnsupported
	}
	p.joined++
	return func() { p.joined-- }, nil
}

func (p *pipe) Close() error { return nil }
