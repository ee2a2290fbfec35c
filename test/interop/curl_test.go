package interop

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/interop/internal/pattern"
)

// curl is unmodified; librspreload alone makes it a peer. It would fall back to TCP without a word, but there is no
// TCP server in the other namespace.
func (w *world) curl(t *testing.T, args ...string) []string {
	t.Helper()
	all := append([]string{
		"curl", "-sS", "-g", "--max-time", "120", "--cacert", "/tmp/interop/ca.pem",
		"-w", "%{http_code} %{http_version} %{size_download} %{num_connects}\n",
	}, args...)
	return strings.Split(strings.TrimSpace(w.c(t, w.preloaded(false), all...).Succeeds()), "\n")
}

func TestCurl(t *testing.T) {
	eachDevice(t, func(t *testing.T, w *world) {
		w.goAt(t, w.std, "httpd", "-addr", netip.AddrPortFrom(w.std.ours.V4, 8080).String()).Says("listening on")
		w.goAt(t, w.std, "httpd", "-addr", netip.AddrPortFrom(w.std.ours.V6, 8443).String(), "-tls", "/tmp/interop/ca.pem").Says("listening on")
		for _, base := range []string{
			fmt.Sprintf("http://%v", netip.AddrPortFrom(w.std.ours.V4, 8080)),
			fmt.Sprintf("https://%v", netip.AddrPortFrom(w.std.ours.V6, 8443)),
		} {
			t.Run(base, func(t *testing.T) { w.curlAll(t, base, strings.HasPrefix(base, "https")) })
		}
	})
}

func (w *world) curlAll(t *testing.T, base string, tls bool) {
	version := "1.1"
	if tls {
		version = "2"
	}
	t.Run("bodies", func(t *testing.T) {
		var args, outputs, want []string
		paths := []string{"/size/0", "/size/1", "/size/100000", "/chunked/100000", "/slow/5000", "/file/300000", "/size/5000000"}
		for i, path := range paths {
			outputs = append(outputs, fmt.Sprintf("/tmp/interop/curl-%d", i))
			args = append(args, base+path, "-o", outputs[i])
			n := path[strings.LastIndex(path, "/")+1:]
			connects := 0
			if i == 0 {
				connects = 1 // the others use its connection
			}
			want = append(want, fmt.Sprintf("200 %s %s %d", version, n, connects))
		}
		assert.Equal(t, want, w.curl(t, args...))
		sums := w.sums(t, outputs...)
		for i, path := range paths {
			var n int64
			_, err := fmt.Sscan(path[strings.LastIndex(path, "/")+1:], &n)
			require.NoError(t, err)
			assert.Equal(t, pattern.Sum(uint64(n), n), sums[i], path) //nolint:gosec // a seed
		}
	})
	t.Run("upload", func(t *testing.T) {
		// One process for all: programs take long to start here.
		var args, want []string
		for _, n := range []int64{1, 70000, 1_000_000} {
			path, sum := w.file(t, n)
			for method, how := range map[string][]string{
				"PUT":  {"-T", path, base + "/sum"},
				"POST": {"-X", "POST", "-H", "Transfer-Encoding: chunked", "-T", path, base + "/sum"},
			} {
				if len(args) != 0 {
					args = append(args, "--next", "-sS", "-g", "--max-time", "120", "--cacert", "/tmp/interop/ca.pem")
				}
				args = append(args, how...)
				want = append(want, fmt.Sprintf("%s %d %s", method, n, sum))
			}
		}
		got := slices.DeleteFunc(w.curl(t, args...), func(line string) bool { return strings.HasPrefix(line, "200 ") })
		assert.Equal(t, want, got)
	})
	t.Run("range", func(t *testing.T) {
		path, _ := w.file(t, 300000)
		got := w.curl(t, "-r", "100000-199999", "-o", "/tmp/interop/range", base+"/file/300000")
		assert.Equal(t, []string{fmt.Sprintf("206 %s 100000 1", version)}, got)
		w.script(t, "tail -c +100001 "+path+" | head -c 100000 | cmp - /tmp/interop/range")
	})
	t.Run("abort", func(t *testing.T) {
		p := w.c(t, w.preloaded(false), "curl", "-sS", "-g", "--max-time", "120", "--cacert", "/tmp/interop/ca.pem",
			"-o", "/dev/null", base+"/abort/200000")
		out := p.Fails()
		if tls {
			assert.Contains(t, out, "(92)") // the stream was not closed cleanly
		} else {
			assert.Contains(t, out, "(18)") // a partial body
		}
	})
}
