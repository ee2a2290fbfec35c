package softroce

import (
	"encoding/binary"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// resident tells which pages of a mapping are in memory (proc_pid_pagemap(5)).
func resident(t *testing.T, mem []byte) (present []bool) {
	f, err := os.Open("/proc/self/pagemap")
	require.NoError(t, err)
	defer f.Close()
	entries := make([]byte, len(mem)/os.Getpagesize()*8)
	_, err = f.ReadAt(entries, int64(verbs.AddressOf(mem))/int64(os.Getpagesize())*8)
	require.NoError(t, err)
	for ; len(entries) > 0; entries = entries[8:] {
		present = append(present, binary.NativeEndian.Uint64(entries)>>63 != 0)
	}
	return present
}

// TestAdvise: pages are in memory after advice, and those beside them are not.
func TestAdvise(t *testing.T) {
	d, err := newDevice(&Config{Open: new(pipe).Open}, 1)
	require.NoError(t, err)
	defer d.Close()
	p, err := d.AllocPD()
	require.NoError(t, err)
	defer p.Close()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 8*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	require.NoError(t, unix.Madvise(mem, unix.MADV_NOHUGEPAGE))
	region, err := p.RegMR(mem, verbs.LocalWrite)
	require.NoError(t, err)
	m := region.(*mr)

	require.Equal(t, []bool{false, false, false, false, false, false, false, false}, resident(t, mem))
	require.NoError(t, m.Advise(0, 8*page, verbs.AdvicePrefetchNoFault))
	require.NoError(t, m.Advise(8*page, 0, verbs.AdvicePrefetchWrite))
	require.NotContains(t, resident(t, mem), true)
	require.NoError(t, m.Advise(page+1, 1, verbs.AdvicePrefetchWrite))
	require.NoError(t, m.Advise(4*page-1, 2, verbs.AdvicePrefetchWrite))
	require.Equal(t, []bool{false, true, false, true, true, false, false, false}, resident(t, mem))
	require.NoError(t, m.Advise(6*page, page, verbs.AdvicePrefetch))

	for _, bad := range [][2]int{{-1, 1}, {0, -1}, {0, 8*page + 1}, {8*page + 1, 0}, {8 * page, 1}} {
		require.ErrorIs(t, m.Advise(bad[0], bad[1], verbs.AdvicePrefetch), syscall.EINVAL)
	}
	require.ErrorIs(t, m.Advise(0, 1, 3), syscall.EINVAL)
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.Advise(0, 1, verbs.AdvicePrefetch), net.ErrClosed)
}
