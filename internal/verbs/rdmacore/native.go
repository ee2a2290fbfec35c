//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// atomicLen is the length of an ATOMIC WRITE.
const atomicLen = 8

// checkNative is checkSend for FLUSH and ATOMIC WRITE.
func (q *qp) checkNative(wr *verbs.SendWR) error {
	switch {
	case q.typ != verbs.RC:
		return unsupported(wr.Op.String() + " requests on a UD queue pair")
	case !q.dev.attr.native:
		return unsupported(wr.Op.String() + " requests on device " + q.dev.name)
	case wr.Op == verbs.OpAtomicWrite:
		length := uint64(len(wr.Inline))
		if wr.Inline == nil {
			for i := range wr.SGL {
				length += uint64(wr.SGL[i].Length)
			}
		}
		if length != atomicLen {
			return fmt.Errorf("rdmacore: ATOMIC_WRITE of %d bytes, not %d: %w", length, atomicLen, syscall.EINVAL)
		}
	case wr.Inline != nil || len(wr.SGL) > 0:
		return fmt.Errorf("rdmacore: FLUSH with local memory: %w", syscall.EINVAL)
	case wr.FlushType == 0 || wr.FlushType&^(verbs.FlushGlobal|verbs.FlushPersistent) != 0 || wr.FlushLevel > verbs.FlushMR:
		return fmt.Errorf("rdmacore: FLUSH of placement type %#x at level %d: %w", uint16(wr.FlushType), wr.FlushLevel, syscall.EINVAL)
	}
	return q.checkDepth()
}

// atomicValue finds the 8 bytes of an ATOMIC WRITE, which the library takes when it is posted, without a look at keys.
func (q *qp) atomicValue(b []byte, wr *verbs.SendWR) error {
	if wr.Inline != nil {
		copy(b, wr.Inline)
		return nil
	}
	for i := range wr.SGL {
		s := &wr.SGL[i]
		if !q.pd.read(b[:s.Length], buffer{addr: s.Addr, lkey: s.LKey}) {
			return fmt.Errorf("rdmacore: ATOMIC_WRITE of memory that is not registered: %w", syscall.EINVAL)
		}
		b = b[s.Length:]
	}
	return nil
}
