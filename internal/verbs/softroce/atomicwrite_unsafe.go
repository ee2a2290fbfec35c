package softroce

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// storeWord stores 8 bytes, in the order in which they came, so that nobody sees a part of them. What was written before is
// seen by whoever loads them atomically. word is aligned.
func storeWord(word, value []byte) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(word))), binary.NativeEndian.Uint64(value))
}
