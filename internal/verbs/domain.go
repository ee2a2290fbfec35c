package verbs

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
)

// Domain is for providers: it counts what a protection domain has, so that nothing is closed before what lies in it.
type Domain struct {
	Provider string // what errors begin with

	mu     sync.Mutex
	closed bool
	users  int // regions, queue pairs and the like
	arenas []*CountedArena
}

// Use counts an object of the domain.
func (d *Domain) Use() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("%s: protection domain: %w", d.Provider, net.ErrClosed)
	}
	d.users++
	return nil
}

// Unuse is told that an object is no more.
func (d *Domain) Unuse() {
	d.mu.Lock()
	d.users--
	d.mu.Unlock()
}

// NewArena maps an arena of whole pages.
func (d *Domain) NewArena(size int, mmap func(size int) ([]byte, error), munmap func([]byte) error) (*CountedArena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("%s: arena of %d bytes: not a multiple of the page size %d: %w", d.Provider, size, pageSize, syscall.EINVAL)
	}
	mem, err := mmap(size)
	if err != nil {
		return nil, fmt.Errorf("%s: arena of %d bytes: %w", d.Provider, size, err)
	}
	a := &CountedArena{d: d, mem: mem, munmap: munmap}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = munmap(mem) // pages nobody has seen
		return nil, fmt.Errorf("%s: protection domain: %w", d.Provider, net.ErrClosed)
	}
	d.arenas = append(d.arenas, a)
	a.made.Made("arena")
	return a, nil
}

// ArenaOf counts a region in the arena in which mem lies, and returns the arena, or nil when mem lies in none.
func (d *Domain) ArenaOf(mem []byte) *CountedArena {
	d.mu.Lock()
	arenas := slices.Clone(d.arenas) // an arena's lock comes before the domain's
	d.mu.Unlock()
	for _, a := range arenas {
		if a.use(mem) {
			return a
		}
	}
	return nil
}

// Close closes a domain that has nothing left, and no arena: else the error is [ErrBusy]. The provider's part, which the domain
// stays open without, is done by last; it is called once at most, unless it fails.
func (d *Domain) Close(last func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	if d.users > 0 || len(d.arenas) > 0 {
		return fmt.Errorf("%s: protection domain with %d arenas, %d regions and queue pairs: %w", d.Provider, len(d.arenas), d.users, ErrBusy)
	}
	if err := last(); err != nil {
		return err
	}
	d.closed = true
	return nil
}

// CountedArena is an [Arena] that knows how many regions lie in it.
type CountedArena struct {
	d      *Domain
	munmap func([]byte) error
	made   leak.Mark

	mu      sync.Mutex
	mem     []byte // nil once closed: the address may be another's by then
	regions int
}

var _ Arena = (*CountedArena)(nil)

// Bytes implements [Arena].
func (a *CountedArena) Bytes() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mem
}

// use counts a region if mem lies in the arena.
func (a *CountedArena) use(mem []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return false
	}
	start, at := AddressOf(a.mem), AddressOf(mem)
	if at < start || at-start > uintptr(len(a.mem)) || uintptr(len(mem)) > uintptr(len(a.mem))-(at-start) {
		return false
	}
	a.regions++
	return true
}

// Unuse is told that a region is no more. A nil arena has none.
func (a *CountedArena) Unuse() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.regions--
	a.mu.Unlock()
}

// Close implements [Arena].
func (a *CountedArena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	if a.regions > 0 {
		return fmt.Errorf("%s: arena with %d regions: %w", a.d.Provider, a.regions, ErrBusy)
	}
	mem := a.mem
	a.mem = nil
	d := a.d
	d.mu.Lock()
	if i := slices.Index(d.arenas, a); i >= 0 {
		d.arenas = slices.Delete(d.arenas, i, i+1)
	}
	d.mu.Unlock()
	a.made.Gone()
	return a.munmap(mem)
}
