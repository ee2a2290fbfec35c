package softroce

import (
	"fmt"
	"net"
	"os"

	"github.com/go-rdma/rdma/internal/verbs"
)

var pageSize = os.Getpagesize()

// pd is a protection domain.
type pd struct {
	dev *device
	verbs.Domain
}

func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: protection domain: %w", net.ErrClosed)
	}
	return &pd{dev: d, Domain: verbs.Domain{Provider: "softroce"}}, nil
}

func (p *pd) NewArena(size int) (verbs.Arena, error) {
	a, err := p.Domain.NewArena(size, mapMemory, unmapMemory)
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (p *pd) Close() error {
	return p.Domain.Close(func() error {
		p.dev.release()
		return nil
	})
}
