package cm

import (
	"sync"
)

// Default is the manager of the providers of this build. Another provider joins
// by one line here, at the place of its preference.
var Default = sync.OnceValue(func() *Manager {
	return &Manager{}
})
