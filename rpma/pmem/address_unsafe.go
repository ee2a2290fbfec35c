package pmem

import "unsafe"

// offset returns how far behind the beginning of mem that of b is, if it is.
func offset(mem, b []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
}
