package softroce

import (
	"fmt"
	"net"
	"os"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

var pageSize = os.Getpagesize()

// pd is a protection domain.
type pd struct {
	dev *device
	verbs.Domain
	made leak.Mark
}

func (d *device) AllocPD() (verbs.PD, error) {
	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: protection domain: %w", net.ErrClosed)
	}
	p := &pd{dev: d, Domain: verbs.Domain{Provider: "softroce"}}
	p.made.Made("protection domain")
	return p, nil
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
		p.made.Gone()
		p.dev.release()
		return nil
	})
}
