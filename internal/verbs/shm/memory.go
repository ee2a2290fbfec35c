//go:build linux

package shm

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain. Its number is what the peer compares.
type pd struct {
	dev *device
	num uint32
	verbs.Domain
	views atomic.Pointer[[]*view] // replaced under mu
	made  leak.Mark

	// mu comes after the locks of the domain and of arenas.
	mu      sync.Mutex
	arenas  []*arena
	regions map[*mr]struct{} // of an open device: what a peer that is to come will see
}

var errClosedPD = fmt.Errorf("shm: protection domain: %w", net.ErrClosed)

// AllocPD implements [verbs.Device].
func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, errClosedPD
	}
	p := &pd{dev: d, num: d.p.domains.Add(1), Domain: verbs.Domain{Provider: "shm"}}
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

// CreateAH implements [verbs.PD].
func (p *pd) CreateAH(*verbs.AHAttr) (verbs.AH, error) {
	return nil, unsupported("datagrams")
}

func unsupported(what string) error { return fmt.Errorf("shm: %s: %w", what, errors.ErrUnsupported) }

// Close implements [verbs.PD].
func (p *pd) Close() error {
	return p.Domain.Close(func() error {
		if p.dev.open {
			p.mu.Lock()
			p.sweep()
			p.mu.Unlock()
		}
		p.made.Gone()
		p.dev.release()
		return nil
	})
}

// arena is a segment that the peer has mapped, or each peer that has a connection with the domain.
type arena struct {
	*verbs.CountedArena
	pd      *pd
	mem     []byte
	segment uint32 // its number on the link
	size    int
	fd      int // of an open device's: to be given to peers; else -1
}

// NewArena implements [verbs.PD].
func (p *pd) NewArena(size int) (verbs.Arena, error) {
	a := &arena{pd: p, size: size, fd: -1}
	counted, err := p.Domain.NewArena(size, a.mmap, a.munmap)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	a.CountedArena = counted
	p.mu.Unlock()
	return a, nil
}

// mmap makes the arena's segment, and gives it to the peers.
func (a *arena) mmap(size int) (mem []byte, err error) {
	p := a.pd
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dev.open {
		if mem, a.fd, err = newSegment(size); err != nil {
			return nil, err
		}
		if err = p.show(a); err != nil {
			dropSegment(mem)
			_ = unix.Close(a.fd)
			return nil, err
		}
	} else if mem, a.segment, err = p.dev.export(size); err != nil {
		return nil, err
	}
	a.mem = mem
	p.arenas = append(p.arenas, a)
	return mem, nil
}

// munmap takes it back. No region is in it.
func (a *arena) munmap(mem []byte) error {
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

// arenaOf counts a region in the arena in which mem lies, and returns the arena, or nil when mem lies in none.
func (p *pd) arenaOf(mem []byte) *arena {
	counted := p.ArenaOf(mem)
	if counted == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arenas[slices.IndexFunc(p.arenas, func(a *arena) bool { return a.CountedArena == counted })]
}
