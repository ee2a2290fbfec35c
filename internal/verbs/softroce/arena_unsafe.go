package softroce

import "unsafe"

// addressOf returns where mem lies.
func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
