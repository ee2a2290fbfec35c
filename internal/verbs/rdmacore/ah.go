//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// ah is an address handle.
type ah struct {
	pd    *pd
	group bool // of a group, not of a peer

	mu     sync.Mutex             // of closing
	h      atomic.Pointer[coreAH] // nil once closed, or its device was given up
	closed bool
	made   leak.Mark
}

var _ verbs.AH = (*ah)(nil)

// CreateAH implements [verbs.PD].
func (p *pd) CreateAH(attr *verbs.AHAttr) (verbs.AH, error) {
	d := p.dev
	a := *attr
	if a.HopLimit == 0 {
		a.HopLimit = 64
	}
	sgid := 0
	global := a.Remote.IsValid()
	if global {
		e, err := d.ownGID(&a)
		if err != nil {
			return nil, err
		}
		sgid, a.Port = e.index, e.port
	} else if a.Port == 0 {
		a.Port = 1
	}
	if a.Port < 1 || a.Port > d.attr.ports {
		return nil, fmt.Errorf("rdmacore: address handle for port %d, device %s has %d: %w", a.Port, d.name, d.attr.ports, syscall.EINVAL)
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	h, err := p.use()
	if err != nil {
		return nil, err
	}
	made, err := coreCreateAH(h, &a, a.Port, sgid, global)
	if err != nil {
		p.Unuse()
		return nil, d.failure(fmt.Sprintf("address handle for %v", a.Remote), err)
	}
	handle := &ah{pd: p, group: a.Remote.IsMulticast()}
	handle.h.Store(made)
	p.add(handle)
	handle.made.Made("address handle")
	return handle, nil
}

// Close implements [verbs.AH].
func (a *ah) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if h := a.h.Load(); h != nil {
		err := coreDestroyAH(h)
		if err != nil && !a.pd.dev.gone.Load() {
			if errors.Is(err, syscall.EBUSY) {
				return fmt.Errorf("rdmacore: address handle: %w", verbs.ErrBusy)
			}
			return a.pd.dev.failure("destroying an address handle", err)
		}
	}
	a.h.Store(nil)
	a.closed = true
	a.pd.remove(a)
	a.made.Gone()
	return nil
}
