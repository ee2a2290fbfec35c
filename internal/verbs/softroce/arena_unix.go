//go:build unix

package softroce

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapMemory maps zeroed pages outside the Go heap.
func mapMemory(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return mem, os.NewSyscallError("mmap", err)
}

func unmapMemory(mem []byte) error {
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}
