//go:build race

package race

import (
	"runtime"
	"unsafe"
)

// Enabled tells whether the race detector is part of this build.
const Enabled = true

// Sync is a point that messages pass. What happened before a Release happened
// before what follows a later Acquire. It must not be copied.
type Sync struct{ _ [8]byte }

// Release is called before a message goes out.
func (s *Sync) Release() { runtime.RaceReleaseMerge(unsafe.Pointer(s)) }

// Acquire is called after a message came in.
func (s *Sync) Acquire() { runtime.RaceAcquire(unsafe.Pointer(s)) }
