package rdmacore

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestDeviceless has a librdmacm that resolves an address to no device: that is said, and nobody follows the pointer.
func TestDeviceless(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.Build(t.Context(), devicesPkg)
	require.NoError(t, err)
	out, err := exec.Command("gcc", "-print-file-name=librdmacm.so.1").Output()
	require.NoError(t, err)
	dir := filepath.Join(g.Share, "deviceless")
	require.NoError(t, os.Mkdir(dir, 0o755))
	out, err = exec.Command("gcc", "-Wall", "-shared", "-fPIC", "-Wl,-soname,librdmacm.so.1", `-DREAL="`+strings.TrimSpace(string(out))+`"`,
		"-o", filepath.Join(dir, "librdmacm.so.1"), "testdata/deviceless.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	addr := p.Near.V4.String()
	got := run(t, g, "env", "LD_LIBRARY_PATH="+g.SharePath("deviceless"), prog, "-addr", addr)
	assert.Contains(t, got, "listen: <nil>")
	assert.Contains(t, got, "resolve: rdmacore: no RDMA device serves the address: librdmacm has found a way to "+addr+" and no device for it, there are [\"rxe0\"]")
	assert.Contains(t, run(t, g, prog, "-addr", addr), "resolve: <nil>", "the real one does")
}
