package rc

import (
	"encoding/binary"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// messageLen is the length of a message that stands for an immediate.
const messageLen = 4

// messages is how a connection does without immediates, which iWARP has not (RFC 5040): a write with
// immediate is a write and a SEND of the immediate. Both take a place in the send queue. How many bytes were
// written is not told on the receiving side.
type messages struct {
	order binary.ByteOrder

	// Receive k has buffer k modulo depth; what is outstanding, or has completed and was not taken yet, is
	// never more than depth.
	block Block
	mr    verbs.MR // of it; arenas themselves are only read by the device
	depth uint64

	mu     sync.Mutex
	posted uint64
	wr     [16]verbs.RecvWR
	sge    [16]verbs.SGE
}

// newMessages takes memory for the receives of a connection.
func newMessages(d *Device, depth int) (*messages, error) {
	b, err := d.Get(depth*messageLen, true)
	if err != nil {
		return nil, err
	}
	mr, err := d.pd.RegMR(b.Bytes()[:depth*messageLen], verbs.LocalWrite)
	if err != nil {
		d.Put(b)
		return nil, err
	}
	return &messages{order: binary.LittleEndian, block: b, mr: mr, depth: uint64(depth)}, nil
}

// encode writes an immediate into b.
func (m *messages) encode(b *[messageLen]byte, imm uint32) []byte {
	m.order.PutUint32(b[:], imm)
	return b[:]
}

// post posts n receives.
func (m *messages) post(qp verbs.QP, n int) (done int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for done < n {
		k := min(n-done, len(m.wr))
		for i := range k {
			at := (m.posted + uint64(i)) % m.depth
			m.sge[i] = verbs.SGE{Addr: m.mr.Addr() + at*messageLen, Length: messageLen, LKey: m.mr.LKey()}
			m.wr[i] = verbs.RecvWR{ID: RecvBit | at, SGL: m.sge[i : i+1 : i+1]}
		}
		k, err = qp.PostRecv(m.wr[:k])
		m.posted += uint64(k)
		if done += k; err != nil || k == 0 {
			return done, err
		}
	}
	return done, nil
}

// translate makes messages that have arrived what they stand for. Others stay SENDs.
func (m *messages) translate(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		at := wc.ID &^ RecvBit
		if wc.ID&RecvBit == 0 || wc.Status != verbs.Success || wc.Op != verbs.WCRecv || wc.ByteLen != messageLen || at >= m.depth {
			continue
		}
		wc.Op, wc.Flags, wc.ByteLen = verbs.WCRecvWithImm, wc.Flags|verbs.WCWithImm, 0
		wc.Imm = m.order.Uint32(m.block.Bytes()[at*messageLen:])
	}
}
