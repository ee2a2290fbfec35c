//go:build linux

package shm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestShrunkFile: a region's file gets shorter than its mapping. Whoever accesses what is not there any more is told, and the owner's
// process, which would get SIGBUS, lives on.
func TestShrunkFile(t *testing.T) {
	_, fds := held(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	size := 4 * pageSize
	require.NoError(t, f.Truncate(int64(size)))
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	one, other := New(), New()
	z, w := connected(t, one, other) // which goes on
	for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead, verbs.OpFetchAdd, verbs.OpAtomicWrite} {
		x, y := connected(t, one, other)
		mr, err := y.pd.RegMR(mem, everything|verbs.FlushPersistent)
		require.NoError(t, err)
		do := func(off int) verbs.Status {
			n := 8
			_, err := x.qp.PostSend([]verbs.SendWR{{
				Op: op, Flags: verbs.Signaled, RemoteAddr: mr.Addr() + uint64(off), RKey: mr.RKey(), SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: uint32(n), LKey: x.mr.LKey()}},
			}})
			require.NoError(t, err)
			var wc [1]verbs.WC
			require.Eventually(t, func() bool {
				n, err := x.cq.Poll(wc[:])
				require.NoError(t, err)
				return n == 1
			}, 10*time.Second, 100*time.Microsecond)
			return wc[0].Status
		}
		require.NoError(t, f.Truncate(int64(size)))
		require.Equal(t, verbs.Success, do(size-8))
		require.NoError(t, f.Truncate(int64(pageSize)))
		require.Equal(t, verbs.Success, do(pageSize-8))
		require.Equal(t, verbs.RemOpErr, do(size-8), "%v", op)
		require.NoError(t, mr.Close())
		for _, s := range []*side{x, y} {
			busy, err := s.close()
			require.NoError(t, err)
			require.False(t, busy)
		}
	}
	ping(t, z, w)
	for _, s := range []*side{z, w} {
		_, err := s.close()
		require.NoError(t, err)
	}
	require.NoError(t, unix.Munmap(mem))
	require.NoError(t, f.Close())
	requireNothingHeld(t, fds)
}
