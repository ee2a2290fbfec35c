//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package softroce

// syncMemory is missing here.
var syncMemory func(mem []byte) error
