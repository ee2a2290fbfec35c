package interop

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/interop/internal/pattern"
)

// rcopySizes are a file as long as people copy, and lengths around C's 64 KiB messages and 128 KiB ring. An empty one
// the C program cannot map.
func (w *world) rcopySizes() []int64 {
	if w.device != "softroce" && !long {
		return []int64{20_000_000, 1, 131073}
	}
	return []int64{100_000_000, 1, 65535, 65536, 131073, 1_000_000}
}

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

// sums returns the SHA-256 of files in the guest.
func (w *world) sums(t *testing.T, paths ...string) (sums []string) {
	t.Helper()
	for line := range strings.Lines(w.script(t, "sha256sum "+strings.Join(paths, " "))) {
		sum, _, _ := strings.Cut(line, " ")
		require.Len(t, sum, 64, line)
		sums = append(sums, sum)
	}
	require.Len(t, sums, len(paths))
	return sums
}

func TestRcopyServerInC(t *testing.T) { eachDevice(t, rcopyServerInC) }

func rcopyServerInC(t *testing.T, w *world) {
	server := w.c(t, nil, "rcopy")
	server.Says("waiting for connection")
	for _, n := range w.rcopySizes() {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path, sum := w.file(t, n)
			out := w.goAt(t, w.jumbo, "rcopy", path, w.jumbo.c.V4.String()+":/tmp/interop/copy").Succeeds()
			assert.Contains(t, out, "sha256 "+sum)
			assert.Equal(t, []string{sum}, w.sums(t, "/tmp/interop/copy"))
			t.Log(out)
		})
	}
}

func TestRcopyServerInGo(t *testing.T) { eachDevice(t, rcopyServerInGo) }

func rcopyServerInGo(t *testing.T, w *world) {
	server := w.goAt(t, w.jumbo, "rcopy", "-dir", "/tmp/interop")
	server.Says("listening on")
	for _, n := range w.rcopySizes() {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			path, sum := w.file(t, n)
			out := w.c(t, nil, "rcopy", path, w.jumbo.ours.V4.String()+":/anywhere/copy").Succeeds()
			assert.Contains(t, out, fmt.Sprintf("%d bytes in", n))
			assert.Equal(t, []string{sum}, w.sums(t, "/tmp/interop/copy"))
			server.Says("sha256 " + sum)
			t.Log(out)
		})
	}
}

// The C program takes IPv6 addresses by name only, and as a server listens on 0.0.0.0.
func TestRcopyServerInGoIPv6(t *testing.T) { eachDevice(t, rcopyServerInGoIPv6) }

func rcopyServerInGoIPv6(t *testing.T, w *world) {
	server := w.goAt(t, w.std, "rcopy", "-dir", "/tmp/interop", "-b", w.std.ours.V6.String(), "-once")
	server.Says("listening on")
	path, sum := w.file(t, 2_000_000)
	w.c(t, nil, "rcopy", path, w.std.name6+":copy").Succeeds()
	assert.Contains(t, server.Succeeds(), "sha256 "+sum)
	assert.Equal(t, []string{sum}, w.sums(t, "/tmp/interop/copy"))
}
