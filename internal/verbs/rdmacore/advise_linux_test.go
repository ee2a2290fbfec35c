//go:build cgo

package rdmacore

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestAdvice: a driver gets all of a range, in parts of at most 2 GiB, and what it says is what is told; one that takes no advice is told of.
func TestAdvice(t *testing.T) {
	needHeaders(t)
	prog := filepath.Join(t.TempDir(), "advise")
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-Wall", "-fsanitize=address,undefined", "-o", prog, "testdata/advise.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, c := range []struct{ length, succeed, want string }{
		{"0", "9", "ok\n"},
		{"1", "9", "1/1: 1 of [0x7000, +1) key abc\nok\n"},
		{"0x80000000", "9", "1/1: 1 of [0x7000, +2147483648) key abc\nok\n"},
		{"0x100000001", "9", "1/1: 1 of [0x7000, +2147483648) key abc\n1/1: 1 of [0x80007000, +2147483648) key abc\n1/1: 1 of [0x100007000, +1) key abc\nok\n"},
		{"0x100000001", "1", "1/1: 1 of [0x7000, +2147483648) key abc\n1/1: 1 of [0x80007000, +2147483648) key abc\nBad address\n"},
		{"1", "-1", "Operation not supported\n"},
	} {
		out, err := exec.Command(prog, c.length, c.succeed).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.want, string(out), "%s %s", c.length, c.succeed)
	}
}

// TestAdviceRefused: what makes no sense does not reach the library.
func TestAdviceRefused(t *testing.T) {
	m := &mr{pd: &pd{dev: &device{name: "fake0"}}, size: 10}
	for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 11}, {11, 0}, {10, 1}} {
		require.ErrorIs(t, m.Advise(c[0], c[1], verbs.AdvicePrefetch), syscall.EINVAL)
	}
	require.ErrorIs(t, m.Advise(0, 1, 3), syscall.EINVAL)
	m.closed = true
	require.ErrorIs(t, m.Advise(0, 1, verbs.AdvicePrefetch), net.ErrClosed)
	m.pd.dev.gone.Store(true)
	require.ErrorIs(t, m.Advise(0, 1, verbs.AdvicePrefetch), syscall.ENODEV)
}
