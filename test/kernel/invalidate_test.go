package kernel

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// SENDs with invalidate both ways: of a memory window, which is what the kernel invalidates for programs, and of a region of softroce's.
func TestInvalidate(t *testing.T) {
	vmtest.Require(t, vm.Package{Name: "gcc", File: "/usr/bin/gcc"}, vm.Package{Name: "librdmacm-dev", File: "/usr/include/rdma/rdma_cma.h"},
		vm.Package{Name: "libibverbs-dev", File: "/usr/include/infiniband/verbs.h"})
	families(t, func(t *testing.T, w *world) {
		name := "invalidate-" + w.kernel.String()
		out, err := exec.CommandContext(w.ctx, "gcc", "-O2", "-Wall", "-o", filepath.Join(w.g.Share, name), "testdata/invalidate.c",
			"-lrdmacm", "-libverbs").CombinedOutput()
		require.NoError(t, err, "%s", out)
		stop := w.capture(t)
		p := port()
		s := w.listens(w.c(w.g.SharePath(name), w.kernel, p), p)
		require.Contains(t, w.peer("invalidate", "-s", w.kernel, "-p", p).ends(), "both are invalidated")
		said := s.ends()
		require.Contains(t, said, "received 3000 bytes: success, the key\nwindow: hello\n")
		require.Contains(t, said, "Flushed Error, window: \n") // what comes last is refused
		stop("RC Send Last Invalidate", "RC Acknowledge")
	})
}
