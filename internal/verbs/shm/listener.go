//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// listener is a [verbs.Listener].
type listener struct {
	p     *Provider
	key   portKey
	bound netip.Addr // the zero value: both families
	addr  netip.AddrPort
	queue *verbs.RequestQueue // nil: no listener, but an active side that has bound the port
	short func(error)
	made  leak.Mark

	anyUser bool
}

// takes tells whether a process may send requests.
func (l *listener) takes(c verbs.Cred) bool { return l.anyUser || trusted(uint32(c.UID)) }

// refuse answers a request that a listener does not take.
func (l *link) refuse(conn uint32, err error) {
	if errors.Is(err, verbs.ErrBacklog) {
		l.tell(header{Kind: msgBusy, ID: conn})
		return
	}
	l.tell(header{Kind: msgReject, Extra: verbs.RejInvalidServiceID, ID: conn})
}

// Addr implements [verbs.Listener].
func (l *listener) Addr() netip.AddrPort { return l.addr }

// GetRequest implements [verbs.Listener].
func (l *listener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	c, err := l.queue.Get(ctx)
	if err != nil {
		return nil, fmt.Errorf("shm: waiting for a request: %w", err)
	}
	return c, nil
}

// Stats implements [verbs.Listener].
func (l *listener) Stats() verbs.ListenerStats { return l.queue.Stats() }

// Close implements [verbs.Listener].
func (l *listener) Close() error {
	rest, first := l.queue.Close()
	if !first {
		return nil
	}
	l.p.ports.remove(l.key, l)
	for _, c := range rest {
		_ = c.Close() // which rejects
	}
	l.made.Gone()
	return nil
}

type portKey struct {
	ps   verbs.PortSpace
	port uint16
}

// heldPort is a port that the process has the name of.
type heldPort struct {
	users  []*listener
	giveUp func()
}

// portTable is the ports of one process. Inside it addresses conflict as those of sockets do;
// between processes a port has one holder for all addresses.
type portTable struct {
	mu   sync.Mutex
	held map[portKey]*heldPort
}

// Ports for those who ask for any: the range that Linux chooses from by default (ip_local_port_range).
const (
	firstFree = 32768
	freePorts = 60999 - firstFree + 1
)

func conflict(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid():
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return sameAddr(a, b) || a.IsUnspecified() || b.IsUnspecified()
}

// bind gives a port to a user; claim gets its name among the processes.
func (t *portTable) bind(l *listener, ps verbs.PortSpace, port uint16, claim func(portKey) (giveUp func(), err error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if port != 0 {
		return t.add(portKey{ps, port}, l, claim)
	}
	at := rand.IntN(freePorts)
	for i := range freePorts {
		k := portKey{ps, uint16(firstFree + (at+i)%freePorts)}
		if t.held[k] != nil {
			continue
		}
		if err := t.add(k, l, claim); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("no port is free: %w", syscall.EADDRINUSE)
}

func (t *portTable) add(k portKey, l *listener, claim func(portKey) (func(), error)) error {
	h := t.held[k]
	if h == nil {
		giveUp, err := claim(k)
		if err != nil {
			return err
		}
		h = &heldPort{giveUp: giveUp}
		if t.held == nil {
			t.held = make(map[portKey]*heldPort)
		}
		t.held[k] = h
	} else if slices.ContainsFunc(h.users, func(o *listener) bool { return conflict(o.bound, l.bound) }) {
		return fmt.Errorf("port %d: %w by this process", k.port, syscall.EADDRINUSE)
	}
	l.key = k
	h.users = append(h.users, l)
	return nil
}

func (t *portTable) remove(k portKey, l *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[k]
	h.users = slices.DeleteFunc(h.users, func(o *listener) bool { return o == l })
	if len(h.users) == 0 {
		delete(t.held, k)
		h.giveUp()
	}
}

// listener finds who listens at an address, or nil.
func (t *portTable) listener(k portKey, ip netip.Addr) *listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[k]
	if h == nil {
		return nil
	}
	for _, l := range h.users {
		if l.queue != nil && (!l.bound.IsValid() || sameAddr(l.bound, ip) || l.bound.IsUnspecified() && l.bound.Is4() == ip.Is4()) {
			return l
		}
	}
	return nil
}

// outOf tells whether an error is that descriptors or memory ran out.
func outOf(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS}, func(e error) bool { return errors.Is(err, e) })
}

// short tells listeners that descriptors or memory ran out, if that is what err says.
func (t *portTable) short(k portKey, err error) {
	if !outOf(err) {
		return
	}
	t.mu.Lock()
	var ls []*listener
	if h := t.held[k]; h != nil {
		ls = slices.Clone(h.users)
	}
	t.mu.Unlock()
	for _, l := range ls {
		if l.short != nil {
			l.short(err)
		}
	}
}

var _ verbs.Listener = (*listener)(nil)
