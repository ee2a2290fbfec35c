package rpma

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Peer is one device and one protection domain on it: regions, connections and shared receive queues work together only
// if they are of one Peer. Who is not to reach what another one may reach gets a Peer of its own.
type Peer struct {
	provider verbs.Provider
	dev      *rc.Device
	name     string
	iwarp    bool
	native   bool   // the device has FLUSH and ATOMIC WRITE
	maxMsg   uint64 // bytes of one operation

	mu       sync.Mutex
	children map[string]int
	closed   bool
}

// maxOp is the longest operation: 2 GiB (IBTA 9.7.7.1.2).
const maxOp = 1 << 31

// NewPeer opens a device that [Devices], [LookupLocal] or [LookupRemote] described.
func NewPeer(d *Device) (*Peer, error) {
	const op = "peer"
	switch {
	case d == nil:
		return nil, invalid(op, "no device")
	case d.Unusable != nil:
		return nil, opError(op, fmt.Errorf("device %s: %w", d.Name, d.Unusable))
	}
	provider := cm.Default().Provider(d.Provider)
	if provider == nil {
		return nil, opError(op, fmt.Errorf("provider %q is not part of this build: %w", d.Provider, errors.ErrUnsupported))
	}
	v, err := provider.Open(d.Name)
	if err != nil {
		return nil, opError(op, err)
	}
	info := v.Info()
	dev, err := rc.NewDevice(v, d.Provider)
	if err != nil {
		return nil, opError(op, err)
	}
	p := &Peer{
		provider: provider, dev: dev, name: d.Name, iwarp: info.Transport == verbs.TransportIWARP,
		native: info.NativeFlush && info.NativeAtomicWrite, maxMsg: maxOp, children: make(map[string]int),
	}
	if m := info.MaxMsgSize; m > 0 && m < maxOp {
		p.maxMsg = uint64(m)
	}
	return p, nil
}

// begin counts a child, unless the peer is closed.
func (p *Peer) begin(op, child string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return opError(op, fmt.Errorf("peer on %s: %w", p.name, net.ErrClosed))
	}
	p.children[child]++
	return nil
}

// end forgets a child.
func (p *Peer) end(child string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.children[child]--; p.children[child] == 0 {
		delete(p.children, child)
	}
}

// Close closes the device. While regions, connections, endpoints or shared receive queues are open it refuses with
// EBUSY, naming them, and the peer stays usable. Closing twice is no error.
func (p *Peer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if len(p.children) > 0 {
		var open []string
		for child, n := range p.children {
			open = append(open, fmt.Sprintf("%d %s", n, plural(child, n)))
		}
		slices.Sort(open)
		return opError("close peer", fmt.Errorf("still open: %s: %w", strings.Join(open, ", "), syscall.EBUSY))
	}
	p.closed = true
	return opError("close peer", p.dev.Release())
}

func plural(s string, n int) string {
	if n == 1 {
		return s
	}
	return s + "s"
}
