//go:build !linux

package share

import (
	"math/rand/v2"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// sys of a system where processes do not share: nobody else has anything.
type sys struct{}

func (p *Process) join() error {
	p.slot = uint8(1 + rand.IntN(MaxSlot))
	return nil
}

func (p *Process) claim(portKey) (giveUp func(), err error) { return func() {}, nil }

func (p *Process) handOver(Target, *netio.Packet) error { return ErrUnclaimed }

func (p *Process) watch(uint8, func()) (stop func(), err error) { return nil, ErrUnclaimed }

func (p *Process) leave() error { return nil }
