//go:build linux

package shm

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

var pageSize = os.Getpagesize()

const (
	// seals keep a segment's size for ever: memory that is there cannot be taken away from who has mapped it.
	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

	// needed are the seals that a peer's segment must have.
	needed = unix.F_SEAL_SHRINK

	maxSegments = 1 << 13 // of one side of a link
	maxSegment  = 1 << 40 // bytes
)

// newSegment makes memory that can be given to a peer. The descriptor is for that alone.
func newSegment(size int) (mem []byte, fd int, err error) {
	fd, err = unix.MemfdCreate("go-rdma-shm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { //nolint:errorlint // a bare errno; before Linux 6.3
		fd, err = unix.MemfdCreate("go-rdma-shm", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		err = os.NewSyscallError("ftruncate", err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		err = os.NewSyscallError("fcntl", err)
	} else if mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	leak.MadeMemory("memfd, mapped", mem)
	return mem, fd, nil
}

// dropSegment gives memory back, also if a peer keeps it mapped.
func dropSegment(mem []byte) {
	leak.GoneMemory(mem)
	_ = unix.Madvise(mem, unix.MADV_REMOVE)
	_ = unix.Munmap(mem)
}

// mapping is a segment of the peer's. Its memory stays while somebody holds it.
type mapping struct {
	mem  []byte
	room *budget
	refs atomic.Int64 // negative once it was given up
	made leak.Mark
}

const givenUp = -1 << 62

// mapSegment maps what a peer has sent. Nothing that the peer does later makes an access fail: the memory is of
// tmpfs, without huge pages that may run out, and cannot shrink.
func mapSegment(fd int, size uint64, room *budget) (*mapping, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("no memfd: %w", err)
	case got&needed != needed:
		return nil, fmt.Errorf("segment may shrink: %w", syscall.EPROTO)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("segment on another file system: %w", syscall.EPROTO)
	}
	if size == 0 || size > maxSegment || size%uint64(pageSize) != 0 || uint64(int(size)) != size || int(size) < 0 || st.Size < int64(size) {
		return nil, fmt.Errorf("segment of %d bytes in a file of %d: %w", size, st.Size, syscall.EPROTO)
	}
	if !room.take(size) {
		return nil, fmt.Errorf("segment of %d bytes: peers' segments are %d, of %d bytes: %w", size, room.n.Load(), room.bytes.Load(), syscall.ENOMEM)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		room.give(size)
		return nil, os.NewSyscallError("mmap", err)
	}
	m := &mapping{mem: mem, room: room}
	m.made.Made("mapping of a peer's memfd")
	return m, nil
}

// room is what peers' segments take of what a process has: of its address space, and of the mappings that Linux lets it have
// (vm.max_map_count, 65530). What they cost is little, and without a limit a peer could use it all up. Other users' processes have room of
// their own: they have links before anybody is asked whether he wants them, and must not leave this user's without.
var (
	room        = budget{mostN: mostMappings, mostBytes: mostMapped}
	foreignRoom = budget{mostN: mostMappings / 4, mostBytes: mostMapped / 4}
)

// roomFor is where the segments of a peer have room.
func roomFor(c verbs.Cred) *budget {
	if trusted(uint32(c.UID)) {
		return &room
	}
	return &foreignRoom
}

type budget struct {
	mostN, mostBytes int64
	n, bytes         atomic.Int64
}

const (
	mostMappings = 1 << 14
	mostMapped   = 1 << (30 + 14*(^uint(0)>>63)) // bytes: 1 GiB, or 16 TiB
)

func (b *budget) take(size uint64) bool {
	n, bytes := b.n.Add(1), b.bytes.Add(int64(size))
	if n <= b.mostN && bytes <= b.mostBytes {
		return true
	}
	b.give(size)
	return false
}

func (b *budget) give(size uint64) {
	b.n.Add(-1)
	b.bytes.Add(-int64(size))
}

func (m *mapping) unmap() {
	size := uint64(len(m.mem))
	m.made.Gone()
	_ = unix.Munmap(m.mem)
	m.room.give(size)
}

// hold keeps the memory, unless it was given up.
func (m *mapping) hold() bool {
	for {
		n := m.refs.Load()
		if n < 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mapping) release() {
	if m.refs.Add(-1) == givenUp {
		m.unmap()
	}
}

// giveUp unmaps the memory as soon as nobody holds it. It is called once.
func (m *mapping) giveUp() {
	if m.refs.Add(givenUp) == givenUp {
		m.unmap()
	}
}
