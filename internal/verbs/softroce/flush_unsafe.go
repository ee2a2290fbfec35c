package softroce

import "unsafe"

// wholePages extends mem down to where its first page begins, as msync(2) wants it. A mapping consists of whole pages.
func wholePages(mem []byte) []byte {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	before := int(uintptr(p) & uintptr(pageSize-1))
	return unsafe.Slice((*byte)(unsafe.Add(p, -before)), before+len(mem))
}
