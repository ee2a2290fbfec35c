//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain.
type pd struct {
	dev *device
	verbs.Domain

	mu      sync.Mutex             // before the domain's own
	h       *corePD                // nil once closed, or its device was given up
	objects map[revocable]struct{} // those that the device does not know
	mrs     map[uint32]*mr         // by lkey
	made    leak.Mark
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
	p.Unuse()
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
	p := &pd{dev: d, Domain: verbs.Domain{Provider: "rdmacore"}, h: h, mrs: make(map[uint32]*mr)}
	d.mu.Lock()
	d.pds[p] = struct{}{}
	d.mu.Unlock()
	p.made.Made("protection domain")
	return p, nil
}

// use counts an object of the domain and returns C's domain.
func (p *pd) use() (*corePD, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == nil {
		return nil, fmt.Errorf("rdmacore: protection domain: %w", p.dev.closedError())
	}
	return p.h, p.Use()
}

// Close implements [verbs.PD].
func (p *pd) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Domain.Close(func() error {
		d := p.dev
		if p.h != nil {
			if err := coreDeallocPD(p.h); err != nil && !d.gone.Load() {
				return d.failure("closing a protection domain", err)
			}
		}
		p.h = nil
		p.made.Gone()
		d.mu.Lock()
		delete(d.pds, p)
		d.mu.Unlock()
		d.release()
		return nil
	})
}

// NewArena implements [verbs.PD]. A process forked by other means than package os does
// not get the pages, so that writing to its copies cannot move the originals away from the device.
func (p *pd) NewArena(size int) (verbs.Arena, error) {
	a, err := p.Domain.NewArena(size, func(size int) ([]byte, error) { return mapArena(size, unix.Madvise) }, unmap)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// mr is a memory region.
type mr struct {
	pd         *pd
	arena      *verbs.CountedArena // nil: a mapping of the caller's own
	addr       uint64
	lkey, rkey uint32
	size       int

	mu     sync.Mutex
	h      *coreMR // nil once closed, or its device was given up
	closed bool
	mem    []byte
	made   leak.Mark
}

const allAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic | verbs.FlushGlobal | verbs.FlushPersistent

// RegMR implements [verbs.PD].
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	switch {
	case len(mem) == 0:
		return nil, fmt.Errorf("rdmacore: region of no memory: %w", syscall.EINVAL)
	case access&(verbs.FlushGlobal|verbs.FlushPersistent) != 0 && !p.dev.attr.native:
		return nil, unsupported("FLUSH access on device " + p.dev.name)
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
	m := &mr{pd: p, arena: p.ArenaOf(mem), mem: mem[:len(mem):len(mem)], addr: uint64(verbs.AddressOf(mem)), size: len(mem)}
	err = register(p.dev.attr.odp, func(onDemand bool) (err error) {
		m.h, m.lkey, m.rkey, err = coreRegMR(h, mem, access, onDemand)
		return err
	})
	if err != nil {
		m.arena.Unuse()
		p.Unuse()
		what := fmt.Sprintf("registering %d bytes", len(mem))
		return nil, p.dev.failure(what, p.dev.c.p.host.memlock(len(mem), unpinnable(err)))
	}
	p.add(m)
	p.list(m)
	m.made.Made("memory region")
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

// unpinnable says what it takes to register memory that a device cannot pin.
func unpinnable(err error) error {
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		return err
	}
	return &Fault{
		What: "the device cannot pin this memory, and has no on-demand paging, which files on persistent memory (DAX) need, whatever their size",
		Fix:  "use a device that has it (ibv_devinfo -v: odp), the memory by itself (/dev/dax*), a file on a disk, or the embedded device, softroce",
		Err:  err,
	}
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
	m.arena.Unuse()
	m.pd.remove(m)
	m.made.Gone()
	return nil
}
