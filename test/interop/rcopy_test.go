package interop

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/interop/internal/pattern"
)

// A file as long as people copy, and lengths around C's 64 KiB messages and 128 KiB ring. An empty one
// the C program cannot map.
var rcopySizes = []int64{100_000_000, 1, 65535, 65536, 131073, 1_000_000}

// file makes a file in the guest's memory with the first n bytes of the stream of seed n and returns its path and SHA-256.
func (w *world) file(t *testing.T, n int64) (path, sum string) {
	t.Helper()
	path = fmt.Sprintf("/tmp/interop/of-%d", n)
	sum = pattern.Sum(uint64(n), n) //nolint:gosec // a seed
	shared := filepath.Join(w.g.Share, "file")
	f, err := os.Create(shared)
	require.NoError(t, err)
	_, err = io.Copy(f, pattern.RandomN(uint64(n), n)) //nolint:gosec // a seed
	require.NoError(t, err)
	require.NoError(t, f.Close())
	w.script(t, "mv /run/share/file "+path)
	return path, sum
}

func (w *world) script(t *testing.T, script string) string {
	t.Helper()
	out, err := w.g.Script(t.Context(), script)
	require.NoError(t, err)
	return out
}

// sum returns the SHA-256 of a file in the guest.
func (w *world) sum(t *testing.T, path string) string {
	t.Helper()
	out := w.script(t, "sha256sum "+path)
	require.Greater(t, len(out), 64, out)
	return out[:64]
}

func TestRcopyServerInC(t *testing.T) {
	w := theWorld(t)
	server := w.c(t, nil, "rcopy")
	server.says("waiting for connection")
	for _, n := range rcopySizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path, sum := w.file(t, n)
			out := w.goAt(t, w.jumbo, "rcopy", path, w.jumbo.Near.V4.String()+":/tmp/interop/copy").succeeds()
			assert.Contains(t, out, "sha256 "+sum)
			assert.Equal(t, sum, w.sum(t, "/tmp/interop/copy"))
			t.Log(out)
		})
	}
}

func TestRcopyServerInGo(t *testing.T) {
	w := theWorld(t)
	server := w.goAt(t, w.jumbo, "rcopy", "-dir", "/tmp/interop")
	server.says("listening on")
	for _, n := range rcopySizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path, sum := w.file(t, n)
			out := w.c(t, nil, "rcopy", path, w.jumbo.Far.V4.String()+":/anywhere/copy").succeeds()
			assert.Contains(t, out, fmt.Sprintf("%d bytes in", n))
			assert.Equal(t, sum, w.sum(t, "/tmp/interop/copy"))
			server.says("sha256 " + sum)
			t.Log(out)
		})
	}
}

// The C program takes IPv6 addresses by name only, and as a server listens on 0.0.0.0.
func TestRcopyServerInGoIPv6(t *testing.T) {
	w := theWorld(t)
	server := w.goAt(t, w.std, "rcopy", "-dir", "/tmp/interop", "-b", w.std.Far.V6.String(), "-once")
	server.says("listening on")
	path, sum := w.file(t, 2_000_000)
	w.c(t, nil, "rcopy", path, "go6:copy").succeeds()
	assert.Contains(t, server.succeeds(), "sha256 "+sum)
	assert.Equal(t, sum, w.sum(t, "/tmp/interop/copy"))
}
