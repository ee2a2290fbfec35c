//go:build linux

package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// pd is a protection domain. Its number is what the peer compares.
type pd struct {
	dev *device
	num uint32

	mu     sync.Mutex
	closed bool
	arenas []*arena
	users  int // regions, queue pairs, shared receive queues
}

var errClosedPD = fmt.Errorf("shm: protection domain: %w", net.ErrClosed)

// AllocPD implements [verbs.Device].
func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, errClosedPD
	}
	return &pd{dev: d, num: d.domains.Add(1)}, nil
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
	p.mu.Unlock()
	p.dev.release()
	return nil
}

// arena is a segment that the peer has mapped.
type arena struct {
	pd      *pd
	segment uint32

	mu  sync.Mutex
	mem []byte // nil once closed
	mrs int
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
	mem, num, err := p.dev.export(size)
	if err != nil {
		return nil, fmt.Errorf("shm: arena of %d bytes: %w", size, err)
	}
	a := &arena{pd: p, segment: num, mem: mem}
	p.arenas = append(p.arenas, a)
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
	a.pd.mu.Lock()
	a.pd.arenas = slices.DeleteFunc(a.pd.arenas, func(o *arena) bool { return o == a })
	a.pd.mu.Unlock()
	a.pd.dev.unexport(mem, a.segment)
	return nil
}

// mr is a memory region. What the peer needs to know of it stands in its entry on the board.
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

	closing sync.Mutex
	closed  bool
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
	return m.access&verbs.RemoteInvalidate == 0 || uint32(m.word(regKey).Load()) == m.key
}

func (m *mr) dead() bool { return m.refs.Load() < 0 || !m.valid() }

func (m *mr) word(field int) *atomic.Uint64 { return regWord(m.pd.dev.board, m.key, field) }

// offset returns where [addr, addr+n) lies in the region.
func (m *mr) offset(addr, n uint64) (off uint64, ok bool) {
	off = addr - m.addr
	return off, off <= m.size && n <= m.size-off
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
	if err := p.use(); err != nil {
		return nil, err
	}
	m := &mr{pd: p, mem: mem[:len(mem):len(mem)], size: uint64(len(mem)), access: access, drained: make(chan struct{}, 1)}
	p.mu.Lock()
	arenas := slices.Clone(p.arenas) // an arena's lock comes before the domain's
	p.mu.Unlock()
	for _, a := range arenas {
		if a.use(mem) {
			m.arena = a
			break
		}
	}
	if err := m.persistBy(persist); err != nil {
		m.unuse()
		return nil, err
	}
	// Offsets in a page stay as they are in memory, and with them the alignment of atomics.
	page := uint64(pageSize)
	m.addr = rand.Uint64()>>2&^(page-1) | uint64(addressOf(mem))&(page-1)
	if err := p.dev.regions.add(p.dev, m); err != nil {
		m.unuse()
		return nil, err
	}
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
	m.word(regKey).Store(0)
	if m.refs.Load() >= 0 && m.refs.Add(mrClosed) != mrClosed {
		<-m.drained
	}
	if users := m.word(regUsers); users.Load() != 0 {
		for end := time.Now().Add(closePatience); users.Load() != 0 && m.pd.dev.linked(); runtime.Gosched() {
			if time.Now().After(end) {
				return fmt.Errorf("shm: the peer is still at the region: %w", verbs.ErrBusy)
			}
		}
	}
	m.closed, m.mem = true, nil
	m.pd.dev.regions.remove(m)
	m.unuse()
	return nil
}

// unuse takes the region back from what counts it.
func (m *mr) unuse() {
	if m.arena != nil {
		m.arena.unuse()
	}
	m.pd.unuse()
}

// regionTable finds regions by key. A key is the number of the entry on the board, and random bits above it.
type regionTable struct {
	chunks [maxMRs / mrChunk]atomic.Pointer[[mrChunk]atomic.Pointer[mr]]

	mu   sync.Mutex
	next uint32
	free []uint32
}

const mrChunk = 256

func (t *regionTable) add(d *device, m *mr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	num := t.next
	if n := len(t.free); n > 0 {
		num = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		if num == maxMRs {
			return fmt.Errorf("shm: more than %d regions with one process: %w", maxMRs, syscall.ENOMEM)
		}
		t.next++
	}
	m.key = (1+rand.Uint32N(1<<(32-mrBits)-1))<<mrBits | num
	c := t.chunks[num/mrChunk].Load()
	if c == nil {
		c = new([mrChunk]atomic.Pointer[mr])
		t.chunks[num/mrChunk].Store(c)
	}
	m.word(regUsers).Store(0)
	if m.arena != nil || m.access&(remoteAccess|flushAccess) != 0 {
		m.word(regPlace).Store(ownerServes<<32 | uint64(m.pd.num))
		if m.arena != nil {
			m.word(regPlace).Store(uint64(m.arena.segment)<<32 | uint64(m.pd.num))
			m.word(regOffset).Store(offsetIn(m.mem, m.arena.mem))
		}
		m.word(regLength).Store(m.size)
		m.word(regAddr).Store(m.addr)
		m.word(regAccess).Store(uint64(m.access))
		m.word(regKey).Store(uint64(m.key))
	}
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

// find returns the region of a key in a domain, or nil.
func (t *regionTable) find(p *pd, key uint32) *mr {
	num := key & (maxMRs - 1)
	c := t.chunks[num/mrChunk].Load()
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

var errProtection = errors.New("shm: key, range or rights are wrong")

// check finds the regions of a scatter/gather list and appends the entries to dst.
func (t *regionTable) check(p *pd, dst []piece, sgl []verbs.SGE, access verbs.Access) ([]piece, error) {
	for i := range sgl {
		s := &sgl[i]
		if s.Length == 0 {
			continue
		}
		m := t.find(p, s.LKey)
		if m == nil || m.access&access != access {
			return dst, errProtection
		}
		off, ok := m.offset(s.Addr, uint64(s.Length))
		if !ok {
			return dst, errProtection
		}
		dst = append(dst, piece{m, off, s.Length})
	}
	return dst, nil
}

// find returns a region of the domain, or nil.
func (p *pd) find(key uint32) *mr { return p.dev.regions.find(p, key) }
