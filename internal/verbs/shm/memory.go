//go:build linux

package shm

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain. Its number is what the peer compares.
type pd struct {
	dev   *device
	num   uint32
	views atomic.Pointer[[]*view] // replaced under mu

	mu      sync.Mutex
	closed  bool
	arenas  []*arena
	regions map[*mr]struct{} // of an open device: what a peer that is to come will see
	users   int              // regions, queue pairs, shared receive queues
	made    leak.Mark
}

var errClosedPD = fmt.Errorf("shm: protection domain: %w", net.ErrClosed)

// AllocPD implements [verbs.Device].
func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, errClosedPD
	}
	p := &pd{dev: d, num: d.p.domains.Add(1)}
	var views []*view
	if d.open {
		p.regions = make(map[*mr]struct{})
	} else {
		views = []*view{{dev: d}}
	}
	p.views.Store(&views)
	p.made.Made("protection domain")
	return p, nil
}

func (p *pd) use() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosedPD
	}
	p.users++
	return nil
}

func (p *pd) unuse() {
	p.mu.Lock()
	p.users--
	p.mu.Unlock()
}

// CreateAH implements [verbs.PD].
func (p *pd) CreateAH(*verbs.AHAttr) (verbs.AH, error) {
	return nil, unsupported("datagrams")
}

func unsupported(what string) error { return fmt.Errorf("shm: %s: %w", what, errors.ErrUnsupported) }

// Close implements [verbs.PD].
func (p *pd) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	if p.users > 0 || len(p.arenas) > 0 {
		defer p.mu.Unlock()
		return fmt.Errorf("shm: protection domain with %d arenas, %d regions and queues: %w", len(p.arenas), p.users, verbs.ErrBusy)
	}
	p.closed = true
	p.made.Gone()
	if p.dev.open {
		p.sweep()
	}
	p.mu.Unlock()
	p.dev.release()
	return nil
}

// arena is a segment that the peer has mapped, or each peer that has a connection with the domain.
type arena struct {
	pd      *pd
	segment uint32 // its number on the link
	size    int
	fd      int // of an open device's: to be given to peers; else -1

	mu   sync.Mutex
	mem  []byte // nil once closed
	mrs  int
	made leak.Mark
}

// NewArena implements [verbs.PD].
func (p *pd) NewArena(size int) (verbs.Arena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("shm: arena of %d bytes: not a multiple of the page size %d: %w", size, pageSize, syscall.EINVAL)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosedPD
	}
	a := &arena{pd: p, size: size, fd: -1}
	var err error
	if p.dev.open {
		if a.mem, a.fd, err = newSegment(size); err == nil {
			if err = p.show(a); err != nil {
				dropSegment(a.mem)
				_ = unix.Close(a.fd)
			}
		}
	} else {
		a.mem, a.segment, err = p.dev.export(size)
	}
	if err != nil {
		return nil, fmt.Errorf("shm: arena of %d bytes: %w", size, err)
	}
	p.arenas = append(p.arenas, a)
	a.made.Made("arena")
	return a, nil
}

func (a *arena) Bytes() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mem
}

// use counts a region if mem lies in the arena.
func (a *arena) use(mem []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil || !within(mem, a.mem) {
		return false
	}
	a.mrs++
	return true
}

func (a *arena) unuse() {
	a.mu.Lock()
	a.mrs--
	a.mu.Unlock()
}

// Close implements [verbs.Arena].
func (a *arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	if a.mrs > 0 {
		return fmt.Errorf("shm: arena with %d regions: %w", a.mrs, verbs.ErrBusy)
	}
	mem := a.mem
	a.mem = nil
	a.made.Gone()
	p := a.pd
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arenas = slices.DeleteFunc(p.arenas, func(o *arena) bool { return o == a })
	if !p.dev.open {
		p.dev.unexport(mem, a.segment)
		return nil
	}
	p.hide(a)
	dropSegment(mem)
	return unix.Close(a.fd)
}
