package rpma

import (
	"fmt"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// scratch is memory of a connection's own: what emulated flushes read goes there, and nobody looks at it; and, on a device
// that takes no 8 bytes inline, what emulated atomic writes write comes from there, in a place for each slot.
type scratch struct {
	block  rc.Block
	mr     verbs.MR
	values bool
}

// scratchValues is where the values begin.
const scratchValues = 64

func (s *scratch) init(p *Peer, inline, slots int) (err error) {
	n := inlineBytes
	if s.values = inline < inlineBytes; s.values {
		n = scratchValues + slots*inlineBytes
	}
	if n > rc.MaxBlock {
		return fmt.Errorf("atomic writes of %d operations at a time: %w", slots, errTooLong)
	}
	b, err := p.dev.Get(n, true)
	if err != nil {
		return err
	}
	s.mr, err = p.dev.PD().RegMR(b.Bytes()[:n], ReadDst.access(false, p.iwarp))
	if err != nil {
		p.dev.Put(b)
		return err
	}
	s.block = b
	return nil
}

func (s *scratch) free(p *Peer) error { return p.dev.PutRegistered(s.mr, s.block) }

// sink is where n bytes may be read to.
func (s *scratch) sink(n uint32) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr(), Length: n, LKey: s.mr.LKey()}
}

// value keeps a value for a slot until its request has completed.
func (s *scratch) value(slot uint64, v *[8]byte) verbs.SGE {
	at := scratchValues + slot*inlineBytes
	copy(s.block.Bytes()[at:], v[:])
	return verbs.SGE{Addr: s.mr.Addr() + at, Length: inlineBytes, LKey: s.mr.LKey()}
}
