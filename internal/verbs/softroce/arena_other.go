//go:build !unix

package softroce

import "github.com/go-rdma/rdma/internal/verbs"

// mapMemory takes whole pages from the Go heap: this device has no DMA, and the
// slice itself keeps them alive.
func mapMemory(size int) ([]byte, error) {
	mem := make([]byte, size+pageSize)
	off := -int(verbs.AddressOf(mem)) & (pageSize - 1)
	return mem[off : off+size : off+size], nil
}

func unmapMemory([]byte) error { return nil }
