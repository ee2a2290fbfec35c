package softroce

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// mr is a memory region. Its address in work requests is a random number, not a
// pointer, so that nothing about this process can be read from it.
type mr struct {
	pd     *pd
	arena  *verbs.CountedArena // nil: a mapping of the caller's own
	mem    []byte              // for those who hold the region; nil once closed
	size   uint64
	addr   uint64
	key    uint32 // local and remote
	access verbs.Access

	persist func(mem []byte) error // with FlushPersistent

	// refs counts accesses in progress; it is negative once the region is closed.
	refs    atomic.Int64
	invalid atomic.Bool   // by a peer's request
	drained chan struct{} // told when a closed region has no access in progress
	closing sync.Once
	made    leak.Mark
}

const mrClosed = -1 << 62

// hold begins an access, unless the region is closed or invalid.
func (m *mr) hold() bool {
	if m.refs.Add(1) > 0 && !m.invalid.Load() {
		return true
	}
	m.release()
	return false
}

// release ends an access.
func (m *mr) release() {
	if m.refs.Add(-1) == mrClosed {
		select {
		case m.drained <- struct{}{}:
		default:
		}
	}
}

// dead tells whether the region's keys are nobody's any more.
func (m *mr) dead() bool { return m.refs.Load() < 0 || m.invalid.Load() }

// offset returns where [addr, addr+n) lies in the region. An address before it
// wraps around to one far behind: the region itself does not wrap.
func (m *mr) offset(addr, n uint64) (off uint64, ok bool) {
	off = addr - m.addr
	return off, off <= m.size && n <= m.size-off
}

// Range implements [verbs.Ranger].
func (m *mr) Range(addr, n uint64, access verbs.Access) (off uint64, ok bool) {
	off, ok = m.offset(addr, n)
	return off, ok && m.access&access == access
}

const allAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic |
	verbs.FlushGlobal | verbs.FlushPersistent | verbs.RemoteInvalidate

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	return p.register(mem, access, nil)
}

func (p *pd) register(mem []byte, access verbs.Access, persist func(mem []byte) error) (verbs.MR, error) {
	switch {
	case len(mem) == 0:
		return nil, fmt.Errorf("softroce: region of no memory: %w", syscall.EINVAL)
	case access&^allAccess != 0:
		return nil, fmt.Errorf("softroce: unknown access flags %#x: %w", uint16(access), syscall.EINVAL)
	case access&(verbs.RemoteWrite|verbs.RemoteAtomic) != 0 && access&verbs.LocalWrite == 0:
		// ibv_reg_mr(3): remote writes need local ones.
		return nil, fmt.Errorf("softroce: remote write or atomic access without local write: %w", syscall.EINVAL)
	}
	if err := p.Use(); err != nil {
		return nil, err
	}
	m := &mr{
		pd: p, arena: p.ArenaOf(mem), mem: mem[:len(mem):len(mem)], size: uint64(len(mem)),
		access: access, drained: make(chan struct{}, 1),
	}
	if err := m.persistBy(persist); err != nil {
		m.unuse()
		return nil, err
	}
	// Offsets in a page stay as they are in memory, and with them the alignment of atomics.
	page := uint64(pageSize)
	m.addr = p.dev.cfg.random64()>>2&^(page-1) | uint64(verbs.AddressOf(mem))&(page-1)
	p.dev.mrs.add(p.dev.cfg, m)
	m.made.Made("memory region")
	return m, nil
}

func (m *mr) Bytes() []byte {
	defer m.release()
	if m.refs.Add(1) <= 0 {
		return nil
	}
	return m.mem // also of an invalid region: it is closed by its owner
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

func (m *mr) Close() error {
	m.closing.Do(func() {
		m.pd.dev.mrs.remove(m)
		if m.refs.Add(mrClosed) != mrClosed {
			<-m.drained
		}
		m.mem = nil // the memory may be unmapped from now on
		m.unuse()
		m.made.Gone()
	})
	return nil
}

// unuse takes the region back from what counts it.
func (m *mr) unuse() {
	m.arena.Unuse()
	m.pd.Unuse()
}

// keys finds the regions that requests name in a domain, under the lock of whoever has it.
type keys struct {
	pd   *pd
	last *mr // the last one that a request named
}

// checkSGL finds the regions of a scatter/gather list and appends the entries to dst.
func (k *keys) checkSGL(dst []sge, sgl []verbs.SGE, access verbs.Access) ([]sge, error) {
	err := verbs.Gather(sgl, access, k.find, func(m *mr, off uint64, n uint32) { dst = append(dst, sge{m, off, n}) })
	return dst, err
}

// find returns the region of a key, if it is of the domain.
func (k *keys) find(key uint32) *mr {
	m := k.last
	if m == nil || m.key != key || m.dead() {
		if m = k.pd.dev.mrs.find(key); m == nil || m.dead() {
			return nil
		}
		k.last = m
	}
	if m.pd != k.pd {
		return nil
	}
	return m
}

// mrTable finds regions by key.
type mrTable [64]struct {
	mu sync.RWMutex
	m  map[uint32]*mr
	_  [32]byte // a cache line each
}

// add gives m a key that no other region has.
func (t *mrTable) add(cfg *Config, m *mr) {
	for {
		key := uint32(cfg.random64())
		if key == 0 {
			continue
		}
		s := &t[key%uint32(len(t))]
		s.mu.Lock()
		if s.m[key] == nil {
			if s.m == nil {
				s.m = make(map[uint32]*mr)
			}
			m.key = key
			s.m[key] = m
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

func (t *mrTable) remove(m *mr) {
	s := &t[m.key%uint32(len(t))]
	s.mu.Lock()
	delete(s.m, m.key)
	s.mu.Unlock()
}

// find returns the region of a key, or nil.
func (t *mrTable) find(key uint32) *mr {
	s := &t[key%uint32(len(t))]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[key]
}
