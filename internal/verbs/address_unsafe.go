package verbs

import (
	"os"
	"unsafe"
)

var pageSize = os.Getpagesize()

// AddressOf returns where mem lies.
func AddressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }
