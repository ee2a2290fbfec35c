package cm

import (
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
	"github.com/go-rdma/rdma/internal/verbs/shm"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

// builtIn is the manager of the providers of this build. Another provider joins
// by one line here, at the place of its preference.
var builtIn = sync.OnceValue(func() *Manager {
	return &Manager{Providers: []verbs.Provider{
		shm.Default(),
		rdmacore.Default(),
		softroce.Default(),
	}}
})

var replaced atomic.Pointer[Manager]

// Default returns the process's manager.
func Default() *Manager {
	if m := replaced.Load(); m != nil {
		return m
	}
	return builtIn()
}

// Replace puts m in the place of Default's manager until undo is called: tests of the floors
// above bring a network of their own. What was made on one manager is not used on another.
func Replace(m *Manager) (undo func()) {
	old := replaced.Swap(m)
	return func() { replaced.Store(old) }
}
