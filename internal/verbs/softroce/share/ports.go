package share

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

type portKey struct {
	ps   verbs.PortSpace
	port uint16
}

// heldPort is a port that the process has a name for.
type heldPort struct {
	addrs  []netip.Addr // bound
	giveUp func()       // the name
}

// portTable is the ports of one process.
type portTable struct {
	mu     sync.Mutex
	held   map[portKey]*heldPort
	closed bool
}

// Ports that are chosen for those who ask for any: the range that Linux chooses
// from by default (ip_local_port_range).
const (
	firstFree = 32768
	freePorts = 60999 - firstFree + 1
)

// conflict tells whether two addresses cannot be bound to one port, as two sockets cannot.
func conflict(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid():
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a == b || a.IsUnspecified() || b.IsUnspecified()
}

// bind adds addr to a port. claim gets the port's name among the processes.
func (t *portTable) bind(ps verbs.PortSpace, addr netip.Addr, port uint16,
	claim func(portKey) (giveUp func(), err error),
) (uint16, func(), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, nil, net.ErrClosed
	}
	if port != 0 {
		release, err := t.add(portKey{ps, port}, addr, claim)
		return port, release, err
	}
	for i, at := range []int{rand.IntN(freePorts), rand.IntN(freePorts)} {
		tries := 64 // at random; then all, from a random one on
		if i == 1 {
			tries = freePorts
		}
		for j := range tries {
			n := at + j
			if i == 0 {
				n = rand.IntN(freePorts)
			}
			k := portKey{ps, uint16(firstFree + n%freePorts)}
			if t.held[k] != nil {
				continue
			}
			release, err := t.add(k, addr, claim)
			if err == nil {
				return k.port, release, nil
			}
			if !errors.Is(err, syscall.EADDRINUSE) {
				return 0, nil, err
			}
		}
	}
	return 0, nil, &InUseError{Target: Target{PortSpace: ps}, UID: -1}
}

func (t *portTable) add(k portKey, addr netip.Addr, claim func(portKey) (func(), error)) (func(), error) {
	h := t.held[k]
	if h == nil {
		giveUp, err := claim(k)
		if err != nil {
			return nil, err
		}
		h = &heldPort{giveUp: giveUp}
		t.held[k] = h
	} else if slices.ContainsFunc(h.addrs, func(a netip.Addr) bool { return conflict(a, addr) }) {
		return nil, &InUseError{Target{PortSpace: k.ps, Port: k.port}, syscall.Geteuid(), syscall.Getpid()}
	}
	h.addrs = append(h.addrs, addr)
	return sync.OnceFunc(func() { t.remove(k, h, addr) }), nil
}

func (t *portTable) remove(k portKey, h *heldPort, addr netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	i := slices.Index(h.addrs, addr)
	h.addrs = slices.Delete(h.addrs, i, i+1)
	if len(h.addrs) == 0 {
		delete(t.held, k)
		h.giveUp()
	}
}

func (t *portTable) has(ps verbs.PortSpace, port uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[portKey{ps, port}] != nil
}

// close gives all ports up.
func (t *portTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, h := range t.held {
		h.giveUp()
	}
	clear(t.held)
}
