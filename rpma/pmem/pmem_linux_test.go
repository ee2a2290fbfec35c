package pmem

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// dax names a directory with direct access, as test/pmem does in a guest. The tests are then about persistent memory, and
// otherwise about ordinary files.
var dax = os.Getenv("RDMA_PMEM_DIR")

func newFile(t *testing.T, pages int) *os.File {
	t.Helper()
	dir := dax
	if dir == "" {
		dir = t.TempDir()
	}
	f, err := os.CreateTemp(dir, "map-")
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	})
	require.NoError(t, f.Truncate(int64(pages*pageSize)))
	return f
}

func newMapping(t *testing.T, f *os.File, off int64, n int) *Mapping {
	t.Helper()
	m, err := Map(f, off, n)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := m.Close(); !errors.Is(err, os.ErrClosed) {
			assert.NoError(t, err)
		}
	})
	return m
}

// smaps is what the kernel knows of the mapping: its flags, and how many bytes of it are not on the disk.
func smaps(t *testing.T, m *Mapping) (flags []string, dirty int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, b, ok := bytes.Cut(b, fmt.Appendf(nil, "\n%s-", strings.TrimPrefix(fmt.Sprintf("%p", &m.whole[0]), "0x")))
	require.True(t, ok)
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Shared_Dirty", "Private_Dirty":
			var kb int
			_, err := fmt.Sscan(value, &kb)
			require.NoError(t, err)
			dirty += kb << 10
		case "VmFlags":
			return strings.Fields(value), dirty
		}
	}
	require.Fail(t, "no VmFlags")
	return nil, 0
}

// TestMap: what is stored is in the file, wherever the range begins, and the kernel has the mapping as IsPMem says.
func TestMap(t *testing.T) {
	for _, c := range []struct {
		off int64
		n   int
	}{
		{0, 1},
		{0, 4 * pageSize},
		{77, 3 * pageSize},
		{int64(pageSize), pageSize},
		{int64(2*pageSize) - 1, 2},
		{int64(4*pageSize) - 1, 1},
	} {
		t.Run(fmt.Sprintf("%d from %d on", c.n, c.off), func(t *testing.T) {
			f := newFile(t, 4)
			m := newMapping(t, f, c.off, c.n)
			require.NoError(t, f.Close()) // the mapping needs it no longer
			assert.Equal(t, dax != "", m.IsPMem())
			flags, _ := smaps(t, m)
			assert.Equal(t, dax != "", slices.Contains(flags, "sf"), "MAP_SYNC: %v", flags)
			assert.Contains(t, flags, "sh")
			assert.Len(t, m.Bytes(), c.n)
			assert.Equal(t, c.n, cap(m.Bytes()))
			want := make([]byte, 4*pageSize)
			for i := range m.Bytes() {
				m.Bytes()[i] = byte(i*7 + 1)
				want[int(c.off)+i] = byte(i*7 + 1)
			}
			require.NoError(t, m.Persist(0, c.n))
			got, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
			switch {
			case dax == "":
				assert.Contains(t, m.String(), "page cache, msync")
			case flushName == "":
				assert.Contains(t, m.String(), "MAP_SYNC, msync")
			default:
				assert.Contains(t, m.String(), "MAP_SYNC, CL")
			}
			require.NoError(t, m.Close())
			require.ErrorIs(t, m.Close(), os.ErrClosed)
			require.ErrorIs(t, m.Persist(0, c.n), os.ErrClosed)
		})
	}
}

// TestPersistPages: of a file in the page cache, the pages of the range go to the disk, and no others.
func TestPersistPages(t *testing.T) {
	if dax != "" {
		return // there is no page cache
	}
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(os.TempDir(), &fs))
	const start = 77 // the mapping begins in the middle of a page
	for _, c := range []struct{ off, n, pages int }{
		{0, 1, 1},
		{0, pageSize - start, 1},
		{0, pageSize - start + 1, 2},
		{2*pageSize - start, 1, 1},
		{2*pageSize - start - 1, 2, 2},
		{100, 3 * pageSize, 4},
		{5000, 0, 0},
		{4*pageSize - start, 0, 0},
	} {
		var left int
		for range 5 { // the kernel may write what nobody has asked it to
			m := newMapping(t, newFile(t, 4), start, 4*pageSize-start)
			for i := 0; i < len(m.Bytes()); i += pageSize / 2 {
				m.Bytes()[i] = 1
			}
			require.NoError(t, m.Persist(c.off, c.n))
			_, dirty := smaps(t, m)
			if left = dirty / pageSize; left >= 4-c.pages {
				break
			}
		}
		if fs.Type != unix.TMPFS_MAGIC { // which has no disk
			assert.Equal(t, 4-c.pages, left, c)
		}
	}
}

func TestMapErrors(t *testing.T) {
	f := newFile(t, 1)
	dir, err := os.Open(filepath.Dir(f.Name()))
	require.NoError(t, err)
	defer dir.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	reading, err := os.Open(f.Name())
	require.NoError(t, err)
	defer reading.Close()
	writing, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer writing.Close()
	closed, err := os.Open(f.Name())
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	for _, c := range []struct {
		name string
		f    *os.File
		off  int64
		n    int
		is   error
		says string
	}{
		{"nothing", f, 0, 0, syscall.EINVAL, ""},
		{"a negative length", f, 0, -1, syscall.EINVAL, ""},
		{"a negative offset", f, -1, 1, syscall.EINVAL, ""},
		{"the end is beyond 63 bits", f, math.MaxInt64, 1, syscall.EINVAL, ""},
		{"the file is shorter", f, 0, pageSize + 1, syscall.EINVAL, "Truncate makes it longer"},
		{"the file ends before", f, int64(pageSize), 1, syscall.EINVAL, "Truncate makes it longer"},
		{"open for reading", reading, 0, 1, syscall.EACCES, "os.O_RDWR"},
		{"open for writing", writing, 0, 1, syscall.EACCES, "os.O_RDWR"},
		{"closed", closed, 0, 1, os.ErrClosed, ""},
		{"a directory", dir, 0, 1, syscall.ENODEV, "neither a file"},
		{"no memory behind a device", null, 0, 1, syscall.ENODEV, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Map(c.f, c.off, c.n)
			require.ErrorIs(t, err, c.is)
			assert.Nil(t, m)
			assert.Contains(t, err.Error(), c.says)
			assert.Contains(t, err.Error(), "pmem: map ")
		})
	}
}

func TestPersistBounds(t *testing.T) {
	m := newMapping(t, newFile(t, 2), 10, 100)
	for _, c := range []struct{ off, n int }{{-1, 1}, {0, -1}, {0, 101}, {100, 1}, {101, 0}, {1, math.MaxInt}, {math.MaxInt, 1}, {math.MaxInt, math.MaxInt}} {
		require.ErrorIs(t, m.Persist(c.off, c.n), syscall.EINVAL, c)
	}
	for _, c := range []struct{ off, n int }{{0, 0}, {0, 100}, {99, 1}, {100, 0}} {
		require.NoError(t, m.Persist(c.off, c.n), c)
	}
	for _, b := range [][]byte{m.Bytes(), m.Bytes()[3:7], m.Bytes()[99:], m.Bytes()[50:50]} {
		require.NoError(t, m.PersistBytes(b))
	}
	for _, b := range [][]byte{m.whole[:11], m.whole[5:10], make([]byte, 1), nil} {
		require.ErrorIs(t, m.PersistBytes(b), syscall.EINVAL)
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() { _ = m.PersistBytes(m.Bytes()[3:50]) }))
	assert.Zero(t, testing.AllocsPerRun(10, func() { _ = m.Persist(3, 50) }))
}

// TestCloseDuringPersist: the memory stays until whoever is at it is done.
func TestCloseDuringPersist(t *testing.T) {
	for range 50 {
		m := newMapping(t, newFile(t, 16), 0, 16*pageSize)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for {
					if err := m.Persist(i*pageSize, 2*pageSize); err != nil {
						assert.ErrorIs(t, err, os.ErrClosed)
						return
					}
				}
			})
		}
		require.NoError(t, m.Close())
		wg.Wait()
	}
}
