package rpma

import (
	"errors"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Advice says what will be done with memory soon. The values are those of enum ibv_advise_mr_advice.
type Advice int

// Kinds of advice.
const (
	AdvicePrefetch        Advice = iota // it will be read: have it in memory
	AdvicePrefetchWrite                 // it will be written
	AdvicePrefetchNoFault               // it will be read: what is in memory, get ready for the device, nothing else
)

// Advise tells the device what will be done with a range of the region, so that on-demand paging and page faults do not come in the
// way of the first access. A device that has no use for it gives [ErrNotSupported], and nothing is wrong then.
func (m *MR) Advise(off, n int, a Advice) error {
	const op = "advise"
	l := m.Slice(off, n)
	if err := l.check(op, m.peer, 0); err != nil {
		return err
	}
	if a < AdvicePrefetch || a > AdvicePrefetchNoFault {
		return invalid(op, "advice %d", int(a))
	}
	by, ok := m.mr.(verbs.Adviser)
	if !ok {
		return &Error{Op: op, Code: ErrNotSupported, Err: errNoAdvice}
	}
	err := by.Advise(off, n, verbs.Advice(a))
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EFAULT) {
		return &Error{Op: op, Code: ErrInvalid, Err: err} // as librpma has it
	}
	return opError(op, err)
}

var errNoAdvice = errors.New("the device takes no advice")
