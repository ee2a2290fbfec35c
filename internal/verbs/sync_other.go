//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package verbs

// SyncMemory is missing here.
var SyncMemory func(mem []byte) error
