package softroce

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// mapFile maps a file of some pages.
func mapFile(t *testing.T, pages int) []byte {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.Truncate(int64(pages*pageSize)))
	mem, err := unix.Mmap(int(f.Fd()), 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return mem
}

// dirty returns how many pages of a mapping are not on the disk.
func dirty(t *testing.T, mem []byte) (pages int) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, smaps, ok := bytes.Cut(smaps, fmt.Appendf(nil, "%x-", verbs.AddressOf(mem)))
	require.True(t, ok)
	for _, field := range []string{"Shared_Dirty:", "Private_Dirty:"} {
		_, smaps, ok = bytes.Cut(smaps, []byte(field))
		require.True(t, ok)
		var kb int
		_, err := fmt.Fscan(bytes.NewReader(smaps), &kb)
		require.NoError(t, err)
		pages += kb << 10 / pageSize
	}
	return pages
}

// TestFlushSyncsPages: the pages that a FLUSH touches are synced, and no others.
func TestFlushSyncsPages(t *testing.T) {
	const start = 77 // the region begins in the middle of a page
	for _, c := range []struct {
		off, n int
		level  uint8
		pages  int
	}{
		{0, 1, wire.FlushRange, 1},
		{0, pageSize - start, wire.FlushRange, 1},
		{0, pageSize - start + 1, wire.FlushRange, 2},
		{2*pageSize - start, 1, wire.FlushRange, 1},
		{2*pageSize - start - 1, 2, wire.FlushRange, 2},
		{100, 3 * pageSize, wire.FlushRange, 4},
		{5000, 0, wire.FlushRange, 0},
		{0, 0, wire.FlushMR, 4},
	} {
		var left int
		for range 5 { // the kernel may write what nobody has asked it to
			if left = flushPages(t, start, c.off, c.n, c.level); left >= 4-c.pages {
				break
			}
		}
		var fs unix.Statfs_t
		require.NoError(t, unix.Statfs(os.TempDir(), &fs))
		if fs.Type != unix.TMPFS_MAGIC { // which has no disk
			require.Equal(t, 4-c.pages, left, c)
		}
	}
}

// flushPages has a part of four pages of a file made persistent, and returns how many are not.
func flushPages(t *testing.T, start, off, n int, level uint8) (left int) {
	mem := mapFile(t, 4)
	for i := range mem {
		mem[i] = byte(i >> 8)
	}
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{rd: 4})
		r := &reader{p, p.end.reg(mem[start:], verbs.FlushPersistent)}
		defer func() { require.NoError(t, r.m.Close()) }()
		r.send(r.flush(peerPSN, persistent, level, off, n))
		require.Empty(t, requirePlaced(t, r.take(), peerPSN, 1))
	})
	return dirty(t, mem)
}

// TestPersistenceOfArenas: it is refused, unless the consumer has a way, and leaves nothing behind.
func TestPersistenceOfArenas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newPeer(t, link{}).end.node
		a, err := n.pd.NewArena(pageSize)
		require.NoError(t, err)
		_, err = n.pd.RegMR(a.Bytes(), verbs.FlushPersistent)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = n.pd.RegPersistentMR(a.Bytes(), verbs.FlushGlobal, nil)
		require.ErrorIs(t, err, syscall.EINVAL)
		m, err := n.pd.RegPersistentMR(a.Bytes(), verbs.FlushGlobal, func([]byte) error { return nil })
		require.NoError(t, err)
		require.ErrorIs(t, a.Close(), verbs.ErrBusy)
		require.NoError(t, m.Close())
		require.NoError(t, a.Close())
	})
}
