//go:build cgo

package rdmacore

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

var pageSize = os.Getpagesize()

// vmFlags are what the kernel knows of the mapping that begins at mem (proc(5), smaps).
func vmFlags(t *testing.T, mem []byte) []string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	found := false
	for s := bufio.NewScanner(f); s.Scan(); {
		l := s.Text()
		found = found || strings.HasPrefix(l, fmt.Sprintf("%x-%x ", verbs.AddressOf(mem), verbs.AddressOf(mem)+uintptr(len(mem))))
		if flags, ok := strings.CutPrefix(l, "VmFlags:"); ok && found {
			return strings.Fields(flags)
		}
	}
	require.Fail(t, "there is no mapping of exactly these pages")
	return nil
}

// TestArena: pages are not for children to copy, and huge where that fits.
func TestArena(t *testing.T) {
	for _, size := range []int{pageSize, hugePage - pageSize, hugePage, hugePage + pageSize, 3 * hugePage} {
		p := &pd{dev: &device{}}
		a, err := p.NewArena(size)
		require.NoError(t, err)
		mem := a.Bytes()
		require.Len(t, mem, size)
		mem[0], mem[size-1] = 1, 2
		flags := vmFlags(t, mem)
		require.Contains(t, flags, "dc", "not copied by fork")
		if size%hugePage == 0 {
			require.Zero(t, verbs.AddressOf(mem)%hugePage)
			if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
				require.Contains(t, flags, "hg")
			}
		}
		require.NoError(t, a.Close())
		require.NoError(t, p.Domain.Close(func() error { return nil }), "the arena is not the domain's any more")
	}
}

// TestArenaWithoutHugePages: a kernel without them gives small ones.
func TestArenaWithoutHugePages(t *testing.T) {
	mem, err := mapArena(hugePage, func(mem []byte, advice int) error {
		if advice == unix.MADV_HUGEPAGE {
			return syscall.EINVAL
		}
		return unix.Madvise(mem, advice)
	})
	require.NoError(t, err)
	mem[hugePage-1] = 1
	require.NoError(t, unmap(mem))
	_, err = mapArena(hugePage, func([]byte, int) error { return syscall.EINVAL })
	require.ErrorIs(t, err, syscall.EINVAL, "without this pages are not safe")
}

// TestOnDemand: memory that cannot be pinned is paged, by a device that can.
func TestOnDemand(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		odp          bool
		plain, paged error
		want         error
		tries        int
	}{
		{false, nil, other, nil, 1},
		{true, nil, other, nil, 1},
		{false, syscall.EOPNOTSUPP, nil, syscall.EOPNOTSUPP, 1},
		{true, syscall.EOPNOTSUPP, nil, nil, 2},
		{true, syscall.EOPNOTSUPP, other, other, 2},
		{true, syscall.ENOMEM, nil, syscall.ENOMEM, 1},
	} {
		tries := 0
		err := register(c.odp, func(onDemand bool) error {
			tries++
			require.Equal(t, tries == 2, onDemand)
			if onDemand {
				return c.paged
			}
			return c.plain
		})
		require.Equal(t, c.want, err)
		require.Equal(t, c.tries, tries)
	}
}
