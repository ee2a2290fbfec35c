//go:build !linux

package rdmacore

func memlockLimit() (uint64, bool) { return 0, false }
