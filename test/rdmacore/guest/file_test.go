//go:build guest

package guest

import (
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rpma/pmem"
)

var (
	daxFile  = flag.String("dax", "", "a file to be, on a file system with direct access")
	diskFile = flag.String("disk", "", "a file to be, on another one")
	daxDev   = flag.String("daxdev", "", "persistent memory by itself")
)

// TestFiles registers mappings of files, and much memory.
func TestFiles(t *testing.T) {
	p := provider(t)
	d, err := p.Open(*device)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	const all = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
	mapped := func(name string, n int64) []byte {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			require.NoError(t, f.Truncate(n))
		}
		m, err := pmem.Map(f, 0, int(n))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m.Bytes()
	}
	for _, n := range []int64{2 << 20, 64 << 20} {
		_, err = pd.RegMR(mapped(*daxFile, n), all)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "on-demand paging")
		require.ErrorContains(t, err, "softroce")
		t.Log(err)
	}
	registers := func(what string, mem []byte) {
		start := time.Now()
		mr, err := pd.RegMR(mem, all)
		require.NoError(t, err, what)
		took := time.Since(start)
		require.NoError(t, mr.Close())
		t.Logf("%s: %d MiB registered in %v, %.1f GB/s; deregistered in %v", what, len(mem)>>20, took, float64(len(mem))/float64(took.Nanoseconds()),
			time.Since(start)-took)
	}
	registers("persistent memory by itself", mapped(*daxDev, 64<<20))
	registers("a file on a disk", mapped(*diskFile, 64<<20))
	mem, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	registers("memory that was not touched", mem)
	registers("memory that was", mem)
	require.NoError(t, unix.Munmap(mem))
}
