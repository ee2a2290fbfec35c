package softroce

import (
	"fmt"
	"net"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

var _ verbs.Adviser = (*mr)(nil)

// Advise implements [verbs.Adviser]. The device is this process's goroutines, whose first access to a page is what takes time: a page
// of a file is read then.
func (m *mr) Advise(off, n int, a verbs.Advice) error {
	if !m.hold() {
		return fmt.Errorf("softroce: advice on a region: %w", net.ErrClosed)
	}
	defer m.release()
	switch {
	case off < 0 || n < 0 || off > len(m.mem) || n > len(m.mem)-off:
		return fmt.Errorf("softroce: advice on [%d, +%d) of a region of %d bytes: %w", off, n, len(m.mem), syscall.EINVAL)
	case a > verbs.AdvicePrefetchNoFault:
		return fmt.Errorf("softroce: advice %d: %w", a, syscall.EINVAL)
	case populate == nil:
		return unsupported("prefetching memory on this system")
	case n == 0 || a == verbs.AdvicePrefetchNoFault: // what is in memory is ready
		return nil
	}
	return populate(verbs.WholePages(m.mem[off:off+n]), a == verbs.AdvicePrefetchWrite)
}
