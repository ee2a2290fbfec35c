//go:build linux

package shm

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

func closeFd(fd int) error { return unix.Close(fd) }

// silentName is a port that somebody holds who takes nobody.
func silentName(t testing.TB) (fd int, addr netip.AddrPort) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	addr = netip.MustParseAddrPort("127.0.0.1:7")
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: portName(portKey{verbs.PSTCP, addr.Port()})}))
	require.NoError(t, unix.Listen(fd, 8))
	return fd, addr
}

// TestSegmentSeals: what could be taken away, or run out, while it is accessed is not mapped.
func TestSegmentSeals(t *testing.T) {
	size := 4 * pageSize
	memfd := func(flags, length, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		if err != nil {
			t.Logf("memfd with flags %#x: %v", flags, err)
			return -1
		}
		require.NoError(t, unix.Ftruncate(fd, int64(length)))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return fd
	}
	file := func() int {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		defer f.Close()
		require.NoError(t, f.Truncate(int64(size)))
		fd, err := unix.Dup(int(f.Fd()))
		require.NoError(t, err)
		return fd
	}
	for name, fd := range map[string]int{
		"without seals":   memfd(0, size, 0),
		"may shrink":      memfd(0, size, unix.F_SEAL_GROW|unix.F_SEAL_SEAL),
		"too short":       memfd(0, size-pageSize, seals),
		"cannot written":  memfd(0, size, seals|unix.F_SEAL_WRITE),
		"will be written": memfd(0, size, seals|unix.F_SEAL_FUTURE_WRITE),
		"huge pages":      memfd(unix.MFD_HUGETLB, 2<<20, seals),
		"a file":          file(),
	} {
		if fd < 0 {
			continue
		}
		_, err := mapSegment(fd, uint64(size), &room)
		require.Error(t, err, name)
		require.NoError(t, unix.Close(fd))
	}
	for _, bad := range []uint64{0, 1, uint64(pageSize) + 1, maxSegment + uint64(pageSize), ^uint64(0)} {
		fd := memfd(0, size, seals)
		_, err := mapSegment(fd, bad, &room)
		require.Error(t, err, "%d bytes", bad)
		require.NoError(t, unix.Close(fd))
	}
	fd := memfd(0, size, seals)
	m, err := mapSegment(fd, uint64(size), &room)
	require.NoError(t, err)
	require.Error(t, unix.Ftruncate(fd, 0))
	// A hole is zeros, not a fault.
	require.NoError(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(size)))
	require.Zero(t, m.mem[size-1])
	require.NoError(t, unix.Close(fd))
	m.giveUp()
}

// TestMappingHolds: memory stays while it is held, and is not held any more afterwards.
func TestMappingHolds(t *testing.T) {
	heldAtRest(t)
	mem, fd, err := newSegment(pageSize)
	require.NoError(t, err)
	defer dropSegment(mem)
	m, err := mapSegment(fd, uint64(pageSize), &room)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	require.True(t, m.hold())
	m.giveUp()
	m.mem[0] = 1
	require.Equal(t, byte(1), mem[0])
	require.False(t, m.hold())
	m.release()
	maps, _ := held(t)
	require.Equal(t, 1, maps)
}

// TestRoom: peers' segments do not take all that there is.
func TestRoom(t *testing.T) {
	b := budget{mostN: mostMappings, mostBytes: mostMapped}
	require.True(t, b.take(mostMapped))
	require.False(t, b.take(1))
	b.give(mostMapped)
	for range mostMappings {
		require.True(t, b.take(1))
	}
	require.False(t, b.take(1))
	for range mostMappings {
		b.give(1)
	}
	require.Zero(t, b.n.Load())
	require.Zero(t, b.bytes.Load())

	n, bytes := room.n.Load(), room.bytes.Load()
	mem, fd, err := newSegment(pageSize)
	require.NoError(t, err)
	defer dropSegment(mem)
	m, err := mapSegment(fd, uint64(pageSize), &room)
	require.NoError(t, err)
	require.Equal(t, n+1, room.n.Load())
	m.giveUp()
	require.Equal(t, n, room.n.Load())
	require.Equal(t, bytes, room.bytes.Load())
	room.n.Add(mostMappings)
	_, err = mapSegment(fd, uint64(pageSize), &room)
	require.ErrorIs(t, err, unix.ENOMEM)
	room.n.Add(-mostMappings)
	require.NoError(t, unix.Close(fd))
}
