package softroce

import (
	"sync/atomic"
	"unsafe"
)

// Atomics are atomic among themselves and with the consumer's own of package sync/atomic. word is 8 bytes, aligned:
// a region has the alignment of its memory.

func fetchAdd(word []byte, add uint64) (original uint64) {
	return atomic.AddUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), add) - add
}

func compareSwap(word []byte, compare, swap uint64) (original uint64) {
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(word)))
	for {
		original = atomic.LoadUint64(p)
		if original != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
			return original
		}
	}
}
