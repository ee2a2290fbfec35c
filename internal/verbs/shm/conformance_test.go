//go:build linux

package shm_test

import (
	"net/netip"
	"testing"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/shm"
	"github.com/go-rdma/rdma/internal/verbs/verbstest"
)

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
				PersistentMemory: verbstest.MapFile,
			}
			if c.open { // else a domain is for one process
				cfg.Others = others
			}
			verbstest.TestProvider(t, cfg)
		})
	}
}
