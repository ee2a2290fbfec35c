package rdmacore

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestFiles registers files on persistent memory and on a disk.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	g := vmtest.Start(t, vm.Config{
		PMem:  []vm.Image{{Path: filepath.Join(dir, "pmem")}, {Path: filepath.Join(dir, "dax")}},
		Disks: []vm.Image{{Path: filepath.Join(dir, "disk")}},
	})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	require.NoError(t, g.MountPMem(t.Context(), 0, "/mnt/pmem"))
	require.NoError(t, g.MountDisk(t.Context(), 0, "/mnt/disk"))
	dev, err := g.DeviceDAX(t.Context(), 1)
	require.NoError(t, err)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := g.Command(ctx, prog, "-test.v", "-test.run=^TestFiles$", "-device="+p.Near.RDMA, "-dax=/mnt/pmem/f", "-disk=/mnt/disk/f", "-daxdev="+dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestFiles")
	t.Logf("%s", out)
}
