// Package pmem maps persistent memory: files on persistent memory, and, for lack of that, files on a disk.
//
// On a file system with direct access (DAX: ext4 and xfs on an NVDIMM or CXL memory, mounted with dax) a mapping is the
// memory itself. [Map] asks for it with MAP_SYNC (mmap(2)), which makes the kernel write what it keeps of a file, above all where its blocks
// are, before the first store to a page goes on: from then on a store is persistent when it has left the processor's caches, and
// [Mapping.Persist] sees to that without a system call. Any other file is mapped as it always is, and Persist calls
// msync(2). [Mapping.IsPMem] says which of the two a mapping is.
//
//	f, err := os.OpenFile("/mnt/pmem/log", os.O_RDWR|os.O_CREATE, 0o600)
//	err = f.Truncate(1 << 20)
//	m, err := pmem.Map(f, 0, 1<<20)
//	copy(m.Bytes()[at:], record)
//	err = m.Persist(at, len(record)) // now it is there after a power failure
//
// A mapping may be registered with package rpma, so that a peer writes into it. Then it must stay mapped until the
// region is closed.
//
// A file that is made shorter while it is mapped takes the memory away: touching it ends the program with SIGBUS.
package pmem

import (
	"fmt"
	"os"
	"sync"
	"syscall"
)

// Mapping is mapped memory of a file. Its methods may be called by several goroutines at a time.
type Mapping struct {
	name string
	data []byte // what was asked for
	head int    // bytes of whole that are before data
	dax  bool   // mapped with MAP_SYNC

	mu    sync.RWMutex // held for reading while whole must stay
	whole []byte       // from the beginning of a page; nil when closed
}

// Map maps n bytes of f, from off on, for reading and writing. f must be open for both and that long at least; it
// may be closed afterwards. The memory is shared with all who map the file, and with peers if it is registered.
//
// The memory of a device-dax (/dev/dax0.0) is mapped in whole multiples of its alignment, mostly 2 MiB.
func Map(f *os.File, off int64, n int) (*Mapping, error) {
	m, err := mapFile(f, off, n)
	if err != nil {
		return nil, fmt.Errorf("pmem: map %d bytes of %s from %d on: %w", n, f.Name(), off, err)
	}
	return m, nil
}

// Bytes is the memory, from the offset on that was asked for. It must not be touched after Close.
func (m *Mapping) Bytes() []byte { return m.data }

// IsPMem reports whether the memory is persistent memory, mapped with MAP_SYNC. Otherwise it is the page cache of a file.
func (m *Mapping) IsPMem() bool { return m.dax }

// String says what is mapped and how it is made persistent.
func (m *Mapping) String() string {
	how := "page cache, msync"
	switch {
	case m.dax && flushName != "":
		how = "MAP_SYNC, " + flushName
	case m.dax:
		how = "MAP_SYNC, msync"
	}
	return fmt.Sprintf("%s (%d bytes, %s)", m.name, len(m.data), how)
}

// Persist returns when what was stored in n bytes from off on before the call survives a power failure. Bytes around
// these may become persistent too: those of the same cache lines, or of the same pages where msync is called.
//
// An error of msync means that nothing is known about what the disk has of these pages, and a second call that succeeds does
// not tell either: the kernel reports a failed write once (fsync(2)).
func (m *Mapping) Persist(off, n int) error {
	if off < 0 || n < 0 || off > len(m.data)-n {
		return fmt.Errorf("pmem: persist %s: [%d:%d+%d] is outside: %w", m.name, off, off, n, syscall.EINVAL)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.whole == nil {
		return fmt.Errorf("pmem: persist %s: %w", m.name, os.ErrClosed)
	}
	if n == 0 {
		return nil
	}
	if m.dax && flushName != "" {
		flush(m.data[off : off+n])
		return nil
	}
	off += m.head
	begin := off &^ (pageSize - 1)
	if err := msync(m.whole[begin : off+n]); err != nil {
		return fmt.Errorf("pmem: persist %s: %w", m.name, err)
	}
	return nil
}

// PersistBytes is Persist of a part of Bytes. It is what [rpma.Peer.RegisterPersistent] takes, so that a peer's flushes
// are done as those of this program are:
//
//	mr, err := peer.RegisterPersistent(m.Bytes(), rpma.WriteDst|rpma.FlushPersistent, m.PersistBytes)
//
// [rpma.Peer.RegisterPersistent]: https://pkg.go.dev/github.com/go-rdma/rdma/rpma#Peer.RegisterPersistent
func (m *Mapping) PersistBytes(b []byte) error {
	if off := offset(m.data, b); off <= uintptr(len(m.data)) {
		return m.Persist(int(off), len(b))
	}
	return fmt.Errorf("pmem: persist %s: bytes of something else: %w", m.name, syscall.EINVAL)
}

// Close unmaps the memory, which a peer must not be able to reach any more: regions on it are closed first. It makes nothing
// persistent.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := m.whole
	if whole == nil {
		return fmt.Errorf("pmem: close %s: %w", m.name, os.ErrClosed)
	}
	if err := unmap(whole); err != nil {
		return fmt.Errorf("pmem: close %s: %w", m.name, err)
	}
	m.whole = nil
	return nil
}

var pageSize = os.Getpagesize()
