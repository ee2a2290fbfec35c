//go:build !linux

package pmem

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

func mapFile(*os.File, int64, int) (*Mapping, error) {
	return nil, fmt.Errorf("persistent memory is mapped on Linux only, not on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func unmap([]byte) error { return errors.ErrUnsupported }

func msync([]byte) error { return errors.ErrUnsupported }
