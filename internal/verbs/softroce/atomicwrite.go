package softroce

import (
	"fmt"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// checkAtomicWrite refuses an ATOMIC_WRITE of anything but 8 bytes.
func checkAtomicWrite(wr *verbs.SendWR) error {
	n := uint64(len(wr.Inline))
	if wr.Inline == nil {
		for i := range wr.SGL {
			n += uint64(wr.SGL[i].Length)
		}
	}
	if n != atomicSize {
		return fmt.Errorf("softroce: ATOMIC_WRITE of %d bytes, not %d: %w", n, atomicSize, syscall.EINVAL)
	}
	return nil
}

// setAtomicWrite takes the bytes when they are posted: so few are not worth a look at their region with each repetition.
func (e *sendWQE) setAtomicWrite() {
	if e.inlined || e.status != verbs.Success {
		return
	}
	e.inlined, e.inline = true, e.inline[:0]
	for i := range e.sgl {
		s := &e.sgl[i]
		if !s.m.hold() {
			e.status = verbs.LocProtErr
			return
		}
		e.inline = append(e.inline, s.m.mem[s.off:s.off+uint64(s.n)]...)
		s.m.release()
	}
}

// takeAtomicWrite takes and executes an ATOMIC WRITE. Its rights are those of a WRITE.
func (r *rc) takeAtomicWrite(w *work, h *wire.Packet) {
	if len(h.Payload) != atomicSize || h.RETH.Length != atomicSize || h.RETH.VA%atomicSize != 0 {
		r.refuse(w, wire.SyndromeInvalidReq)
		return
	}
	if !r.admit(w, h) {
		return
	}
	m := r.q.find(h.RETH.RKey)
	ok := m != nil && m.access&verbs.RemoteWrite != 0
	var off uint64
	if ok {
		off, ok = m.offset(h.RETH.VA, atomicSize)
	}
	if ok && r.unflushed > 0 {
		r.stall(h) // what it announces has to be persistent first
		return
	}
	if !ok || !m.hold() {
		r.refuse(w, wire.SyndromeRemoteAccess)
		return
	}
	storeWord(m.mem[off:off+atomicSize], h.Payload)
	m.release()
	r.take(h.Opcode, 1)
}
