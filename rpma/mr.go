package rpma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// MR is a registered memory region. While it is registered, operations of this side and, as its usage says, of
// peers that know its descriptor access it.
type MR struct {
	peer  *Peer
	mr    verbs.MR
	mem   []byte
	usage Usage
	addr  uint64
	lkey  uint32
	rkey  uint32

	block rc.Block    // of Alloc
	arena verbs.Arena // of a large Alloc

	mu     sync.Mutex // of Close
	gone   bool
	closed atomic.Bool
}

// Alloc registers n bytes of new memory: zeroed, page-aligned, outside the Go heap. It is ordinary memory,
// which nothing makes persistent.
func (p *Peer) Alloc(n int, u Usage) (*MR, error) {
	const op = "alloc"
	switch {
	case n <= 0:
		return nil, invalid(op, "region of %d bytes", n)
	case u&FlushPersistent != 0:
		return nil, invalid(op, "memory that is not persistent has no use as %v: map a file and Register it", FlushPersistent)
	}
	if err := p.begin(op, "memory region"); err != nil {
		return nil, err
	}
	m, err := p.alloc(n, u)
	if err != nil {
		p.end("memory region")
		return nil, opError(op, err)
	}
	return m, nil
}

func (p *Peer) alloc(n int, u Usage) (*MR, error) {
	m := &MR{peer: p, usage: u}
	if n <= rc.MaxBlock {
		b, err := p.dev.Get(n, true)
		if err != nil {
			return nil, err
		}
		m.block, m.mem = b, b.Bytes()[:n:n]
		if err := m.register(nil); err != nil {
			p.dev.Put(b)
			return nil, err
		}
		return m, nil
	}
	page := os.Getpagesize()
	if n > int(^uint(0)>>1)-page {
		return nil, fmt.Errorf("region of %d bytes: %w", n, syscall.ENOMEM)
	}
	a, err := p.dev.PD().NewArena((n + page - 1) / page * page)
	if err != nil {
		return nil, err
	}
	m.arena, m.mem = a, a.Bytes()[:n:n]
	if err := m.register(nil); err != nil {
		_ = a.Close() // nothing uses it
		return nil, err
	}
	return m, nil
}

// Register registers memory of the caller's: from mmap, as pmem.Map gives it, never of the Go heap, which moves and is collected
// behind a device's back. It stays the caller's, and mapped until the region is closed. With
// [FlushPersistent], b is a shared mapping of a file.
func (p *Peer) Register(b []byte, u Usage) (*MR, error) { return p.RegisterPersistent(b, u, nil) }

// RegisterPersistent is Register, and says how a range of b is made persistent when a peer's [Flush] asks for it. It is called for
// several peers at a time. A nil persist, and devices that know how by themselves, take their own way: msync(2) for the embedded device.
func (p *Peer) RegisterPersistent(b []byte, u Usage, persist func(mem []byte) error) (*MR, error) {
	const op = "register"
	if len(b) == 0 {
		return nil, invalid(op, "region without memory")
	}
	if err := p.begin(op, "memory region"); err != nil {
		return nil, err
	}
	m := &MR{peer: p, usage: u, mem: b[:len(b):len(b)]}
	if err := m.register(persist); err != nil {
		p.end("memory region")
		return nil, opError(op, err)
	}
	return m, nil
}

func (m *MR) register(persist func(mem []byte) error) (err error) {
	if m.usage == 0 {
		return invalid("register", "region without use")
	}
	p := m.peer
	access := m.usage.access(p.native, p.iwarp)
	by, ok := p.dev.PD().(verbs.Persister)
	if ok && persist != nil && access&verbs.FlushPersistent != 0 {
		m.mr, err = by.RegPersistentMR(m.mem, access, persist)
	} else {
		m.mr, err = p.dev.PD().RegMR(m.mem, access)
	}
	if err != nil {
		return err
	}
	m.addr, m.lkey, m.rkey = m.mr.Addr(), m.mr.LKey(), m.mr.RKey()
	return nil
}

// Bytes is the region's memory; nil after Close. What Alloc gave must not be touched any more then.
func (m *MR) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.mem
}

// Len is the region's length.
func (m *MR) Len() int { return len(m.mem) }

// Usage is what the region is for.
func (m *MR) Usage() Usage { return m.usage }

// Slice is a range of the region. It is checked when it is used.
func (m *MR) Slice(off, n int) Local { return Local{m, off, n} }

// AppendBinary appends the descriptor by which a peer reaches the region, of [DescriptorSize] bytes. It is secret as far as the memory
// is: whoever knows it and has a connection of the same Peer can access the memory as the usage says.
func (m *MR) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint64(b, m.addr)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(m.mem)))
	b = binary.LittleEndian.AppendUint32(b, m.rkey)
	return append(b, byte(m.usage)), nil
}

// MarshalBinary returns the descriptor.
func (m *MR) MarshalBinary() ([]byte, error) { return m.AppendBinary(nil) }

// Close ends the registration: once it returns nil no peer touches the memory. Operations that still use it fail. Where it says EBUSY a peer may
// still be at it, and Close is to be called again later. Closing twice is no error.
func (m *MR) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil
	}
	m.closed.Store(true)
	var err error
	if m.block.Valid() {
		err = m.peer.dev.PutRegistered(m.mr, m.block)
	} else {
		err = m.mr.Close()
		if errors.Is(err, verbs.ErrBusy) {
			return opError("close region", err)
		}
		if m.arena != nil {
			if e := m.arena.Close(); err == nil {
				err = e
			}
		}
	}
	m.gone = true
	m.peer.end("memory region")
	return opError("close region", err)
}

// Local is a range of a region of this side. The zero value is no memory at all, for operations without data.
type Local struct {
	mr  *MR
	off int
	n   int
}

// Len is the length of the range.
func (l Local) Len() int { return l.n }

// check tells what is wrong with a range of a region of the peer's. uses is 0 where any region will do.
func (l *Local) check(op string, p *Peer, uses Usage) error {
	m := l.mr
	switch {
	case m.peer != p:
		return invalid(op, "the region belongs to another Peer: keys are good in one protection domain only")
	case l.off < 0 || l.n < 0 || l.n > len(m.mem)-l.off:
		return invalid(op, "range [%d, +%d) of a region of %d bytes", l.off, l.n, len(m.mem))
	case uses != 0 && m.usage&uses == 0:
		return invalid(op, "the region is for %v, and not to be written by its owner's operations", m.usage)
	case m.closed.Load():
		return &Error{Op: op, Code: ErrInvalid, Err: fmt.Errorf("region: %w", net.ErrClosed)}
	}
	return nil
}

// sge is the range as the device wants it.
func (l *Local) sge(off uint64, n uint32) verbs.SGE {
	return verbs.SGE{Addr: l.mr.addr + uint64(l.off) + off, Length: n, LKey: l.mr.lkey}
}
