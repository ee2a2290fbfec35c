//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

var _ verbs.Adviser = (*mr)(nil)

// Advise implements [verbs.Adviser]. It comes back when what can be prefetched has been. Devices without on-demand paging take no advice.
func (m *mr) Advise(off, n int, a verbs.Advice) error {
	switch {
	case off < 0 || n < 0 || off > m.size || n > m.size-off:
		return fmt.Errorf("rdmacore: advice on [%d, +%d) of a region of %d bytes: %w", off, n, m.size, syscall.EINVAL)
	case a > verbs.AdvicePrefetchNoFault:
		return fmt.Errorf("rdmacore: advice %d: %w", a, syscall.EINVAL)
	}
	p := m.pd
	if err := p.dev.enter(); err != nil {
		return err
	}
	defer p.dev.leave()
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return fmt.Errorf("rdmacore: advice on a region: %w", net.ErrClosed)
	}
	h, err := p.use()
	if err != nil {
		return err
	}
	defer p.Unuse()
	// Should the region be closed meanwhile, no other has its key before the kernel looks, or there is nothing wrong with prefetching that one.
	if err := coreAdviseMR(h, a, m.addr+uint64(off), n, m.lkey); err != nil {
		return p.dev.failure("advice on memory", err)
	}
	return nil
}
