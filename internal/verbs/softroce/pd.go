package softroce

import (
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain.
type pd struct {
	dev *device

	mu     sync.Mutex
	closed bool
	arenas []*arena
	users  int // regions and queue pairs
}

func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: protection domain: %w", net.ErrClosed)
	}
	return &pd{dev: d}, nil
}

// use counts a region or queue pair of the domain.
func (p *pd) use() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("softroce: protection domain: %w", net.ErrClosed)
	}
	p.users++
	return nil
}

func (p *pd) unuse() {
	p.mu.Lock()
	p.users--
	p.mu.Unlock()
}

func (p *pd) addArena(a *arena) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("softroce: protection domain: %w", net.ErrClosed)
	}
	p.arenas = append(p.arenas, a)
	return nil
}

func (p *pd) removeArena(a *arena) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.arenas, a); i >= 0 {
		p.arenas = slices.Delete(p.arenas, i, i+1)
	}
}

// arenaOf counts a region in the arena in which mem lies, and returns the arena,
// or nil when mem lies in none.
func (p *pd) arenaOf(mem []byte) *arena {
	p.mu.Lock()
	arenas := slices.Clone(p.arenas) // an arena's lock comes before the domain's
	p.mu.Unlock()
	for _, a := range arenas {
		if a.use(mem) {
			return a
		}
	}
	return nil
}

func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.users > 0 || len(p.arenas) > 0 {
		return fmt.Errorf("softroce: protection domain with %d arenas, %d regions and queue pairs: %w",
			len(p.arenas), p.users, verbs.ErrBusy)
	}
	p.closed = true
	p.dev.release()
	return nil
}
