//go:build linux

package shm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// mr is a memory region. What a peer needs to know of it stands in its entry on the board that the peer looks at.
type mr struct {
	pd     *pd
	arena  *arena // nil: a mapping of the caller's own, which the peer asks for
	mem    []byte
	size   uint64
	addr   uint64
	key    uint32
	access verbs.Access

	persist func(mem []byte) error // with FlushPersistent

	refs    atomic.Int64  // accesses of this side; negative once the region is closed
	drained chan struct{} // told when a closed region has none
	invalid atomic.Bool   // a peer has invalidated it, as this side was told; of an open device

	closing sync.Mutex
	closed  bool
	made    leak.Mark
}

const mrClosed = -1 << 62

// hold begins an access of this side, unless the region is closed or its keys are no more.
func (m *mr) hold() bool {
	if m.refs.Add(1) > 0 && m.valid() {
		return true
	}
	m.release()
	return false
}

func (m *mr) release() {
	if m.refs.Add(-1) == mrClosed {
		select {
		case m.drained <- struct{}{}:
		default:
		}
	}
}

// valid tells whether no peer has invalidated the region.
func (m *mr) valid() bool {
	if m.access&verbs.RemoteInvalidate == 0 {
		return true
	}
	if m.pd.dev.open {
		return !m.invalid.Load()
	}
	return uint32(m.word((*m.pd.views.Load())[0], regKey).Load()) == m.key
}

func (m *mr) dead() bool { return m.refs.Load() < 0 || !m.valid() }

func (m *mr) word(v *view, field int) *atomic.Uint64 { return regWord(v.dev.board, m.key, field) }

// publish shows the region to a peer.
func (m *mr) publish(v *view) {
	m.word(v, regUsers).Store(0)
	if m.arena == nil {
		m.word(v, regPlace).Store(ownerServes<<32 | uint64(m.pd.num))
	} else {
		m.word(v, regPlace).Store(uint64(v.segment(m.arena))<<32 | uint64(m.pd.num))
		m.word(v, regOffset).Store(offsetIn(m.mem, m.arena.mem))
	}
	m.word(v, regLength).Store(m.size)
	m.word(v, regAddr).Store(m.addr)
	m.word(v, regAccess).Store(uint64(m.access))
	m.word(v, regKey).Store(uint64(m.key))
}

// offset returns where [addr, addr+n) lies in the region.
func (m *mr) offset(addr, n uint64) (off uint64, ok bool) {
	off = addr - m.addr
	return off, off <= m.size && n <= m.size-off
}

// Range implements [verbs.Ranger].
func (m *mr) Range(addr, n uint64, access verbs.Access) (off uint64, ok bool) {
	off, ok = m.offset(addr, n)
	return off, ok && m.access&access == access
}

const remoteAccess = verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic | verbs.RemoteInvalidate

// RegMR implements [verbs.PD].
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	return p.register(mem, access, nil)
}

func (p *pd) register(mem []byte, access verbs.Access, persist func(mem []byte) error) (verbs.MR, error) {
	switch {
	case len(mem) == 0:
		return nil, fmt.Errorf("shm: region of no memory: %w", syscall.EINVAL)
	case access&^(verbs.LocalWrite|remoteAccess|flushAccess) != 0:
		return nil, fmt.Errorf("shm: unknown access flags %#x: %w", uint16(access), syscall.EINVAL)
	case access&(verbs.RemoteWrite|verbs.RemoteAtomic) != 0 && access&verbs.LocalWrite == 0:
		// ibv_reg_mr(3): remote writes need local ones.
		return nil, fmt.Errorf("shm: remote write or atomic access without local write: %w", syscall.EINVAL)
	}
	if err := p.Use(); err != nil {
		return nil, err
	}
	m := &mr{pd: p, mem: mem[:len(mem):len(mem)], size: uint64(len(mem)), access: access, drained: make(chan struct{}, 1)}
	m.arena = p.arenaOf(mem)
	if err := m.persistBy(persist); err != nil {
		m.unuse()
		return nil, err
	}
	// Offsets in a page stay as they are in memory, and with them the alignment of atomics.
	page := uint64(pageSize)
	m.addr = rand.Uint64()>>2&^(page-1) | uint64(addressOf(mem))&(page-1)
	if err := p.dev.table.add(m); err != nil {
		m.unuse()
		return nil, err
	}
	m.made.Made("memory region")
	return m, nil
}

func (m *mr) Bytes() []byte {
	m.closing.Lock()
	defer m.closing.Unlock()
	return m.mem
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// closePatience is how long Close waits for copies of the peer's that are under way: they take as long, unless the
// peer is stopped.
const closePatience = time.Millisecond

// Close implements [verbs.MR]. The key is taken from the board first and the peer's accesses are counted afterwards; the peer
// counts an access first and looks at the key afterwards. So each access is seen here, or sees that the region is no more.
func (m *mr) Close() error {
	m.closing.Lock()
	defer m.closing.Unlock()
	if m.closed {
		return nil
	}
	p := m.pd
	if m.refs.Load() >= 0 {
		if m.refs.Add(mrClosed) != mrClosed {
			<-m.drained
		}
		p.mu.Lock()
		for _, v := range *p.views.Load() {
			m.word(v, regKey).Store(0)
		}
		p.mu.Unlock()
	}
	if m.busy() {
		for end := time.Now().Add(closePatience); m.busy(); runtime.Gosched() {
			if time.Now().After(end) {
				return fmt.Errorf("shm: the peer is still at the region: %w", verbs.ErrBusy)
			}
		}
	}
	m.closed, m.mem = true, nil
	if p.dev.open {
		p.mu.Lock()
		delete(p.regions, m)
		p.sweep()
		p.mu.Unlock()
	}
	p.dev.table.remove(m)
	m.unuse()
	m.made.Gone()
	return nil
}

// busy tells whether a peer is at the region.
func (m *mr) busy() bool {
	m.pd.mu.Lock()
	defer m.pd.mu.Unlock()
	return slices.ContainsFunc(*m.pd.views.Load(), func(v *view) bool { return m.word(v, regUsers).Load() != 0 && v.dev.linked() })
}

// unuse takes the region back from what counts it.
func (m *mr) unuse() {
	if m.arena != nil {
		m.arena.Unuse()
	}
	m.pd.Unuse()
}

// regionTable finds regions by key. A key is the number of the entry on the board, and random bits above it. The numbers of
// open devices' regions are theirs alone, on every link.
type regionTable struct {
	base   uint32
	chunks [maxMRs / mrChunk]atomic.Pointer[[mrChunk]atomic.Pointer[mr]]

	mu   sync.Mutex
	next uint32
	free []uint32
}

const mrChunk = 256

func (t *regionTable) add(m *mr) error {
	t.mu.Lock()
	num := t.next
	if n := len(t.free); n > 0 {
		num = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		if num == maxMRs {
			t.mu.Unlock()
			return fmt.Errorf("shm: more than %d regions with one process: %w", maxMRs, syscall.ENOMEM)
		}
		t.next++
	}
	m.key = (1+rand.Uint32N(1<<(32-mrBits)-1))<<mrBits | t.base | num
	c := t.chunks[num/mrChunk].Load()
	if c == nil {
		c = new([mrChunk]atomic.Pointer[mr])
		t.chunks[num/mrChunk].Store(c)
	}
	t.mu.Unlock()
	p := m.pd
	p.mu.Lock()
	for _, v := range *p.views.Load() {
		m.publish(v)
	}
	if p.regions != nil {
		p.regions[m] = struct{}{}
	}
	p.mu.Unlock()
	c[num%mrChunk].Store(m)
	return nil
}

func (t *regionTable) remove(m *mr) {
	num := m.key & (maxMRs - 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chunks[num/mrChunk].Load()[num%mrChunk].Store(nil)
	t.free = append(t.free, num)
}

// find returns the region of a key in the domain, or nil.
func (p *pd) find(key uint32) *mr {
	num := key & (maxMRs - 1)
	c := p.dev.table.chunks[num/mrChunk].Load()
	if c == nil {
		return nil
	}
	m := c[num%mrChunk].Load()
	if m == nil || m.key != key || m.pd != p || m.dead() {
		return nil
	}
	return m
}

// piece is a range of a region of this side.
type piece struct {
	m   *mr
	off uint64
	n   uint32
}

// check finds the regions of a scatter/gather list and appends the entries to dst.
func (p *pd) check(dst []piece, sgl []verbs.SGE, access verbs.Access) ([]piece, error) {
	err := verbs.Gather(sgl, access, p.find, func(m *mr, off uint64, n uint32) { dst = append(dst, piece{m, off, n}) })
	return dst, err
}
