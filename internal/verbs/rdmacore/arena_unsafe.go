//go:build linux && cgo

package rdmacore

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a huge page where it matters: a page table's worth of small ones on amd64, and on arm64 with pages of 4 KiB.
const hugePage = 2 << 20

// mapArena maps pages for devices to read and write. A process forked by other means than package os does not get them, so
// that writing to its copies cannot move the originals away from a device. Huge pages are asked for where they fit, for a device then has
// one address to keep instead of 512; they come if the kernel has any to spare.
func mapArena(size int, advise func(mem []byte, advice int) error) ([]byte, error) {
	length := uintptr(size)
	if size%hugePage == 0 {
		length += hugePage
	}
	start, err := unix.MmapPtr(-1, 0, nil, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	huge := length > uintptr(size)
	if huge {
		before := -uintptr(start) % hugePage
		if before > 0 {
			_ = unix.MunmapPtr(start, before) // what stays is but address space
		}
		start = unsafe.Add(start, before)
		if after := hugePage - before; after > 0 {
			_ = unix.MunmapPtr(unsafe.Add(start, size), after)
		}
	}
	mem := unsafe.Slice((*byte)(start), size)
	if err := advise(mem, unix.MADV_DONTFORK); err != nil {
		_ = unmap(mem) // pages nobody has seen
		return nil, os.NewSyscallError("madvise", err)
	}
	if huge {
		_ = advise(mem, unix.MADV_HUGEPAGE) // small ones do
	}
	return mem, nil
}

func unmap(mem []byte) error {
	return os.NewSyscallError("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))))
}
