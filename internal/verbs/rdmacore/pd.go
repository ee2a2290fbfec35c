//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain.
type pd struct {
	dev *device

	mu      sync.Mutex
	h       *corePD // nil once closed, or its device was given up
	closed  bool
	arenas  []*arena
	users   int                    // regions, queue pairs and the like
	objects map[revocable]struct{} // of these those that the device does not know
	mrs     map[uint32]*mr         // by lkey
}

// revocable is what goes with its device.
type revocable interface{ revoke() }

func (p *pd) add(o revocable) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil {
		p.objects = make(map[revocable]struct{})
	}
	p.objects[o] = struct{}{}
}

// remove forgets an object that was closed.
func (p *pd) remove(o revocable) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.objects, o)
	p.users--
}

// AllocPD implements [verbs.Device].
func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("rdmacore: protection domain: %w", net.ErrClosed)
	}
	if err := d.enter(); err != nil {
		d.release()
		return nil, err
	}
	defer d.leave()
	h, err := coreAllocPD(d.ctx)
	if err != nil {
		d.release()
		return nil, d.failure("protection domain", err)
	}
	p := &pd{dev: d, h: h, mrs: make(map[uint32]*mr)}
	d.mu.Lock()
	d.pds[p] = struct{}{}
	d.mu.Unlock()
	return p, nil
}

// use counts an object of the domain and returns C's domain.
func (p *pd) use() (*corePD, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == nil {
		return nil, fmt.Errorf("rdmacore: protection domain: %w", p.dev.closedError())
	}
	p.users++
	return p.h, nil
}

func (p *pd) unuse() {
	p.mu.Lock()
	p.users--
	p.mu.Unlock()
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

// Close implements [verbs.PD].
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.users > 0 || len(p.arenas) > 0 {
		return fmt.Errorf("rdmacore: protection domain with %d arenas, %d regions and queue pairs: %w",
			len(p.arenas), p.users, verbs.ErrBusy)
	}
	d := p.dev
	if p.h != nil {
		if err := coreDeallocPD(p.h); err != nil && !d.gone.Load() {
			return d.failure("closing a protection domain", err)
		}
	}
	p.h, p.closed = nil, true
	d.mu.Lock()
	delete(d.pds, p)
	d.mu.Unlock()
	d.release()
	return nil
}

// arena is a mapping out of which regions are registered.
type arena struct {
	pd  *pd
	mu  sync.Mutex
	mem []byte // nil once closed: the address may be another's by then
	mrs int    // regions that lie in it
}

var pageSize = os.Getpagesize()

// NewArena implements [verbs.PD]. A process forked by other means than package os does
// not get the pages, so that writing to its copies cannot move the originals away from the device.
func (p *pd) NewArena(size int) (verbs.Arena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("rdmacore: arena of %d bytes: not a multiple of the page size %d: %w", size, pageSize, syscall.EINVAL)
	}
	mem, err := mapArena(size, unix.Madvise)
	if err != nil {
		return nil, fmt.Errorf("rdmacore: arena of %d bytes: %w", size, err)
	}
	a := &arena{pd: p, mem: mem}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = unmap(mem) // pages nobody has seen
		return nil, fmt.Errorf("rdmacore: protection domain: %w", net.ErrClosed)
	}
	p.arenas = append(p.arenas, a)
	return a, nil
}

// Bytes implements [verbs.Arena].
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

// Close implements [verbs.Arena].
func (a *arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	if a.mrs > 0 {
		return fmt.Errorf("rdmacore: arena with %d regions: %w", a.mrs, verbs.ErrBusy)
	}
	mem := a.mem
	a.mem = nil
	p := a.pd
	p.mu.Lock()
	if i := slices.Index(p.arenas, a); i >= 0 {
		p.arenas = slices.Delete(p.arenas, i, i+1)
	}
	p.mu.Unlock()
	return unmap(mem)
}

// mr is a memory region.
type mr struct {
	pd         *pd
	arena      *arena // nil: a mapping of the caller's own
	addr       uint64
	lkey, rkey uint32

	mu     sync.Mutex
	h      *coreMR // nil once closed, or its device was given up
	closed bool
	mem    []byte
}

const allAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// RegMR implements [verbs.PD].
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	switch {
	case len(mem) == 0:
		return nil, fmt.Errorf("rdmacore: region of no memory: %w", syscall.EINVAL)
	case access&(verbs.FlushGlobal|verbs.FlushPersistent) != 0:
		return nil, unsupported("FLUSH access")
	case access&verbs.RemoteInvalidate != 0:
		return nil, unsupported("a region that a peer can invalidate")
	case access&^allAccess != 0:
		return nil, fmt.Errorf("rdmacore: unknown access flags %#x: %w", uint16(access), syscall.EINVAL)
	case access&(verbs.RemoteWrite|verbs.RemoteAtomic) != 0 && access&verbs.LocalWrite == 0:
		// ibv_reg_mr(3): remote writes need local ones.
		return nil, fmt.Errorf("rdmacore: remote write or atomic access without local write: %w", syscall.EINVAL)
	}
	if err := p.dev.enter(); err != nil {
		return nil, err
	}
	defer p.dev.leave()
	h, err := p.use()
	if err != nil {
		return nil, err
	}
	m := &mr{pd: p, arena: p.arenaOf(mem), mem: mem[:len(mem):len(mem)], addr: uint64(addressOf(mem))}
	err = register(p.dev.attr.odp, func(onDemand bool) (err error) {
		m.h, m.lkey, m.rkey, err = coreRegMR(h, mem, access, onDemand)
		return err
	})
	if err != nil {
		if m.arena != nil {
			m.arena.unuse()
		}
		p.unuse()
		what := fmt.Sprintf("registering %d bytes", len(mem))
		return nil, p.dev.failure(what, p.dev.c.p.host.memlock(len(mem), err))
	}
	p.add(m)
	p.list(m)
	return m, nil
}

// register pins the memory, for which nothing has to be waited for later. Memory that cannot be pinned (of a file system on
// persistent memory) is left to a device that can wait for pages, as librpma does.
func register(odp bool, reg func(onDemand bool) error) error {
	err := reg(false)
	if errors.Is(err, syscall.EOPNOTSUPP) && odp {
		return reg(true)
	}
	return err
}

// Bytes implements [verbs.MR].
func (m *mr) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mem
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Close implements [verbs.MR].
func (m *mr) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.pd.unlist(m) // before another region may have the key
	if m.h != nil {
		if err := coreDeregMR(m.h); err != nil && !m.pd.dev.gone.Load() {
			m.pd.list(m)
			return m.pd.dev.failure("deregistering memory", err)
		}
	}
	m.h, m.closed, m.mem = nil, true, nil // the memory may be unmapped from now on
	if m.arena != nil {
		m.arena.unuse()
	}
	m.pd.remove(m)
	return nil
}
