//go:build !linux && !darwin

package trace

import "os"

const openFlags = 0

func lock(*os.File) error { return nil }
