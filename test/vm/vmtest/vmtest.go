// Package vmtest gives tests their guests.
//
// A guest takes seconds to boot, so the tests of a package share one:
//
//	func TestMain(m *testing.M) { vmtest.Main(m) }
//
//	func TestUname(t *testing.T) {
//		g := vmtest.Shared(t)
//		out, err := g.Command(t.Context(), "uname", "-s").Output()
//		...
//	}
//
// A machine that cannot run guests skips such tests, and says why; with CI=true in the environment it fails them.
package vmtest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/go-rdma/rdma/test/vm"
)

var shared struct {
	sync.Mutex
	guest *vm.Guest
	peer  *vm.Peer
	err   error // of vm.Start, for all tests that come
	pair  []*vm.Guest
}

// Main runs the tests of a package and ends the guests that they have shared. It does not return.
func Main(m *testing.M) { os.Exit(Status(m)) }

// Status is Main for those who have more to do: it returns the exit status.
func Status(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	if shared.guest != nil {
		_ = shared.guest.Close()
	}
	for _, g := range shared.pair {
		_ = g.Close()
	}
	shared.Unlock()
	return code
}

// Shared returns the guest of this package's tests. What a test changes in it, it must change back. A guest
// that a test has killed is replaced.
func Shared(tb testing.TB) *vm.Guest {
	tb.Helper()
	g, _ := get(tb)
	return g
}

// SharedPeer returns the shared guest and the namespace "peer" of it, with Soft-RoCE at the near end and
// nothing at the far one. The MTU is 1500.
func SharedPeer(tb testing.TB) (*vm.Guest, *vm.Peer) {
	tb.Helper()
	return get(tb)
}

func get(tb testing.TB) (*vm.Guest, *vm.Peer) {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.err == nil && (shared.guest == nil || shared.guest.Err() != nil) {
		if shared.guest != nil {
			_ = shared.guest.Close()
		}
		shared.guest, shared.err = vm.Start(context.Background(), vm.Config{})
		if shared.err == nil {
			shared.peer, shared.err = shared.guest.AddPeer(context.Background(), "peer", 1500)
		}
	}
	Check(tb, shared.err)
	return shared.guest, shared.peer
}

// Start boots a guest for one test, which gets its console if it fails.
func Start(tb testing.TB, cfg vm.Config) *vm.Guest {
	tb.Helper()
	g, err := vm.Start(tb.Context(), cfg)
	Check(tb, err)
	cleanup(tb, g)
	return g
}

// Pair boots two guests on one wire for one test.
func Pair(tb testing.TB, cfg vm.PairConfig) (a, b *vm.Guest) {
	tb.Helper()
	a, b, err := vm.Pair(tb.Context(), cfg)
	Check(tb, err)
	cleanup(tb, a)
	cleanup(tb, b)
	return a, b
}

// SharedPair returns two guests on one wire that the tests of this package share, made as the first of them asks.
func SharedPair(tb testing.TB, cfg vm.PairConfig) (a, b *vm.Guest) {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.err == nil && (len(shared.pair) != 2 || shared.pair[0].Err() != nil || shared.pair[1].Err() != nil) {
		for _, g := range shared.pair {
			_ = g.Close()
		}
		shared.pair = nil
		if a, b, shared.err = vm.Pair(context.Background(), cfg); shared.err == nil {
			shared.pair = []*vm.Guest{a, b}
		}
	}
	Check(tb, shared.err)
	return shared.pair[0], shared.pair[1]
}

func cleanup(tb testing.TB, g *vm.Guest) {
	tb.Cleanup(func() {
		_ = g.Close()
		if tb.Failed() {
			tb.Logf("console of %s:\n%s", g.Name, g.Console())
		}
	})
}

// Require installs packages of Debian, or skips the test.
func Require(tb testing.TB, packages ...vm.Package) {
	tb.Helper()
	Check(tb, vm.Require(tb.Context(), packages...))
}

// Check ends the test if err is not nil: with a skip if it says that this machine cannot run it.
func Check(tb testing.TB, err error) {
	tb.Helper()
	if err == nil {
		return
	}
	if u := new(vm.UnavailableError); errors.As(err, &u) && os.Getenv("CI") != "true" {
		tb.Skip(err)
	}
	tb.Fatal(err)
}
