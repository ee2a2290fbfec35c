package simnet

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// SeedEnv names the environment variable that sets the seed of every simulated network
// of a test run, so that one that failed can be seen again.
const SeedEnv = "SIMNET_SEED"

// T is what is needed of a test, a [testing.TB].
type T interface {
	Helper()
	Cleanup(f func())
	Failed() bool
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Seed returns the seed for a test's network: that of the environment, or def. A test
// that fails tells it.
func Seed(t T, def uint64) uint64 {
	t.Helper()
	seed, set := fromEnv(t)
	if !set {
		seed = def
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the network's seed: %s=%d", SeedEnv, seed)
		}
	})
	return seed
}

// Seeds returns seeds for n runs of a test: 1 to n, or the one of the environment alone, or,
// if fresh, others each time.
func Seeds(t T, n int, fresh bool) []uint64 {
	t.Helper()
	if seed, set := fromEnv(t); set {
		return []uint64{seed}
	}
	seeds := make([]uint64, n)
	first := uint64(1)
	if fresh {
		first = uint64(time.Now().UnixNano())
	}
	for i := range seeds {
		seeds[i] = first + uint64(i)
	}
	return seeds
}

func fromEnv(t T) (seed uint64, set bool) {
	t.Helper()
	s := os.Getenv(SeedEnv)
	if s == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s is no number: %v", SeedEnv, s, err)
	}
	return seed, true
}

// Random returns an endless source of bytes that depend on the seed alone, for several
// goroutines: what devices of a repeatable run take for randomness.
func Random(seed uint64) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &random{r: rand.NewChaCha8(key)}
}

type random struct {
	mu sync.Mutex
	r  *rand.ChaCha8
}

func (r *random) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.r.Read(b)
}
