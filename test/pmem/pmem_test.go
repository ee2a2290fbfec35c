// Package pmem tests persistent memory in guests with an NVDIMM, whose content is a file of the host's: what was persistent
// when a guest was killed is there when the next one boots.
package pmem

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

const (
	mapPkg = "github.com/go-rdma/rdma/rpma/pmem"
	logPkg = "github.com/go-rdma/rdma/test/pmem/cmd/pmemlog"
	farPkg = "github.com/go-rdma/rdma/examples/rpma/log"
)

// TestKilled pulls the plug of a guest and looks at its files in the next one.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	cfg := vm.Config{
		NoRDMA: true, // the port is softroce's
		PMem:   []vm.Image{{Path: filepath.Join(dir, "pmem")}, {Path: filepath.Join(dir, "dax")}},
		Disks:  []vm.Image{{Path: filepath.Join(dir, "disk")}},
	}
	boot := func() *vm.Guest {
		g := vmtest.Start(t, cfg)
		require.NoError(t, g.MountPMem(t.Context(), 0, "/mnt/pmem"))
		require.NoError(t, g.MountDisk(t.Context(), 0, "/mnt/disk"))
		device, err := g.DeviceDAX(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, "/dev/dax1.0", device)
		return g
	}
	g := boot()
	t.Run("mappings", func(t *testing.T) { testMappings(t, g) })

	// The kernel writes nothing that it is not asked to write.
	_, err := g.Script(t.Context(), `
sync
echo 0 >/proc/sys/vm/dirty_writeback_centisecs
mount -o remount,commit=3600 /mnt/pmem
mount -o remount,commit=3600 /mnt/disk`)
	require.NoError(t, err)
	far := func(file string, n int) string {
		prog, err := g.Build(t.Context(), farPkg)
		require.NoError(t, err)
		c := g.Command(t.Context(), prog, "-file="+file, "-n="+strconv.Itoa(n))
		c.Env = []string{"RDMANET_DEVICE=softroce"}
		return vmtest.Run(t, c).Succeeds()
	}
	for _, c := range []struct{ file, says string }{{"/mnt/pmem/far", "MAP_SYNC"}, {"/mnt/disk/far", "page cache, msync"}} {
		out := far(c.file, 20)
		assert.Contains(t, out, c.says)
		assert.Contains(t, out, "client: appended 20 records, each persistent")
	}
	prog, err := g.Build(t.Context(), logPkg)
	require.NoError(t, err)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-file=/mnt/pmem/log"}, "MAP_SYNC"},
		{[]string{"-file=/dev/dax1.0"}, "MAP_SYNC"},
		{[]string{"-file=/mnt/disk/log"}, "page cache, msync"},
		{[]string{"-file=/mnt/pmem/plain", "-plain"}, ""}, // the last: another file's msync would help it
	} {
		p := vmtest.Run(t, g.Command(t.Context(), prog, c.args...))
		p.Says("stored: 1")
		assert.Contains(t, p.Output(), c.says)
	}
	require.NoError(t, g.Close()) // kills QEMU

	g = boot()
	prog, err = g.Build(t.Context(), logPkg)
	require.NoError(t, err)
	count := func(file string) string {
		out, err := g.Command(t.Context(), prog, "-check", "-file="+file).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	// What an NVDIMM that is memory of the host's has was never in a cache, so the last record is there too.
	assert.Equal(t, "records: 101, from the first on: 101", count("/mnt/pmem/log"))
	assert.Equal(t, "records: 101, from the first on: 101", count("/dev/dax1.0"))
	assert.Equal(t, "records: 100, from the first on: 100", count("/mnt/disk/log"))
	// What a peer has written, by RDMA, and flushed.
	for _, file := range []string{"/mnt/pmem/far", "/mnt/disk/far"} {
		assert.Contains(t, far(file, 0), "server: the log has 20 records")
	}
	assert.Equal(t, "records: 0, from the first on: 0", count("/mnt/pmem/plain"), "the kernel forgets where the blocks are without MAP_SYNC")
}

// testMappings runs the tests of package pmem on a file system with direct access.
func testMappings(t *testing.T, g *vm.Guest) {
	prog, err := g.BuildTest(t.Context(), mapPkg)
	require.NoError(t, err)
	c := g.Command(t.Context(), prog, "-test.v", "-test.timeout=5m")
	c.Env = []string{"RDMA_PMEM_DIR=/mnt/pmem"}
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestMap")
}
