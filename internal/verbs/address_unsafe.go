package verbs

import (
	"os"
	"unsafe"
)

var pageSize = os.Getpagesize()

// AddressOf returns where mem lies.
func AddressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// WholePages extends mem down to where its first page begins, as msync(2) wants it. A mapping consists of whole pages.
func WholePages(mem []byte) []byte {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	before := int(uintptr(p) & uintptr(pageSize-1))
	return unsafe.Slice((*byte)(unsafe.Add(p, -before)), before+len(mem))
}
