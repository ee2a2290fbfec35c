package softroce

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

var pageSize = os.Getpagesize()

// arena is a mapping out of which regions are registered.
type arena struct {
	pd  *pd
	mu  sync.Mutex
	mem []byte // nil once closed: the address may be another's by then
	mrs int    // regions that lie in it
}

func (p *pd) NewArena(size int) (verbs.Arena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("softroce: arena of %d bytes: not a multiple of the page size %d: %w", size, pageSize, syscall.EINVAL)
	}
	mem, err := mapMemory(size)
	if err != nil {
		return nil, fmt.Errorf("softroce: arena of %d bytes: %w", size, err)
	}
	a := &arena{pd: p, mem: mem}
	if err := p.addArena(a); err != nil {
		_ = unmapMemory(mem) // pages nobody has seen
		return nil, err
	}
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
	if a.mem == nil {
		return false
	}
	start, at := addressOf(a.mem), addressOf(mem)
	if at < start || at-start > uintptr(len(a.mem)) || uintptr(len(mem)) > uintptr(len(a.mem))-(at-start) {
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

func (a *arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	if a.mrs > 0 {
		return fmt.Errorf("softroce: arena with %d regions: %w", a.mrs, verbs.ErrBusy)
	}
	mem := a.mem
	a.mem = nil
	a.pd.removeArena(a)
	return unmapMemory(mem)
}
