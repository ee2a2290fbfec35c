package rpma_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rpma"
)

// TestRegisterMuch: the embedded device does not touch what is registered, be it a gigabyte: that takes no time and no memory.
// A device that pins takes both, see docs/field-reports.md.
func TestRegisterMuch(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("there is no room for it")
	}
	resident := func() int {
		b, err := os.ReadFile("/proc/self/statm")
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.Fields(string(b))[1])
		require.NoError(t, err)
		return n * os.Getpagesize()
	}
	p := newPeer(t)
	mem, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	require.NoError(t, err)
	before, start := resident(), time.Now()
	m, err := p.Register(mem, rpma.WriteDst|rpma.ReadSrc)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	took := time.Since(start)
	require.Less(t, resident()-before, 64<<20)
	require.Less(t, took, time.Second)
	require.NoError(t, unix.Munmap(mem))
	t.Logf("1 GiB registered and deregistered in %v", took)
}
