package cm

import (
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

// Default is the manager of the providers of this build. Another provider joins
// by one line here, at the place of its preference.
var Default = sync.OnceValue(func() *Manager {
	return &Manager{Providers: []verbs.Provider{
		softroce.Default(),
	}}
})
