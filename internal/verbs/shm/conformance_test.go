//go:build linux

package shm_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/shm"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

// mapFile maps a file.
func mapFile(t testing.TB, size int) []byte {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.Truncate(int64(size)))
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return mem
}

// TestConformance runs the suite between a provider and itself, and between two, as two processes are.
func TestConformance(t *testing.T) {
	one, other := shm.New(), shm.New()
	others := []verbs.Provider{shm.New(), shm.New()}
	for _, c := range []struct {
		name            string
		active, passive *shm.Provider
		listen, dial    string
		open            bool
	}{
		{"Self", one, one, "0.0.0.0", "127.0.0.1", false},
		{"Two", one, other, "::1", "::1", false},
		{"Open", one, other, "::1", "::1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := verbstest.Config{
				Active: c.active, Passive: c.passive,
				Listen: netip.MustParseAddr(c.listen), Dial: netip.MustParseAddr(c.dial),
				NoDatagrams: true, OpenDevices: c.open, EarlyRefusal: true,
				PersistentMemory: func(t testing.TB, size int) []byte { return mapFile(t, size) },
			}
			if c.open { // else a domain is for one process
				cfg.Others = others
			}
			verbstest.TestProvider(t, cfg)
		})
	}
}
