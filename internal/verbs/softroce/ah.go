package softroce

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// ah is an address handle: the way to a host or a group, as the host's routes were when it was made or last proved wrong.
type ah struct {
	pd     *pd
	closed atomic.Bool
	way    atomic.Pointer[way]
	made   leak.Mark
}

// way is what a route makes of an address.
type way struct {
	attr  verbs.AHAttr // Local and Remote as the route has them
	index int          // of the interface to a group
	mtu   verbs.MTU

	// Packets to one process of a host share a flow, as connections to it do.
	last  atomic.Pointer[slotPath]
	mu    sync.Mutex
	paths map[uint8]*slotPath
}

type slotPath struct {
	slot uint8
	path *netio.Path
}

// CreateAH implements [verbs.PD].
func (p *pd) CreateAH(attr *verbs.AHAttr) (verbs.AH, error) {
	w, err := p.dev.findWay(attr)
	if err != nil {
		return nil, fmt.Errorf("softroce: address handle to %v: %w", attr.Remote, err)
	}
	if err := p.Use(); err != nil {
		return nil, err
	}
	a := &ah{pd: p}
	a.way.Store(w)
	a.made.Made("address handle")
	return a, nil
}

func (d *device) findWay(attr *verbs.AHAttr) (*way, error) {
	w := &way{attr: *attr, paths: make(map[uint8]*slotPath)}
	local, remote := attr.Local.Unmap(), attr.Remote.Unmap()
	switch {
	case !remote.IsValid() || remote.IsUnspecified():
		return nil, fmt.Errorf("no address: %w", syscall.EINVAL)
	case attr.Port != 0 && attr.Port != 1:
		return nil, fmt.Errorf("device %s has no port %d: %w", d.Name(), attr.Port, syscall.EINVAL)
	case attr.FlowLabel > 0xfffff:
		return nil, fmt.Errorf("a flow label has 20 bits: %w", syscall.EINVAL)
	}
	find := d.conn.Route
	if remote.IsMulticast() {
		find = d.conn.GroupRoute
	}
	r, err := find(local, remote)
	if err != nil {
		return nil, noGroupRoute(remote, err)
	}
	w.attr.Local, w.attr.Remote, w.index, w.mtu = r.Local, r.Remote, r.Index, pathMTU(r.MTU)
	if w.mtu == 0 {
		return nil, fmt.Errorf("interface %s has an MTU of %d bytes: %w", r.Interface, r.MTU, syscall.EMSGSIZE)
	}
	return w, nil
}

// Close implements [verbs.AH].
func (a *ah) Close() error {
	if !a.closed.Swap(true) {
		a.made.Gone()
		a.pd.Unuse()
	}
	return nil
}

func (w *way) group() bool { return w.attr.Remote.IsMulticast() }

// path is the way to a queue pair.
func (w *way) path(cfg *Config, qpn uint32) *netio.Path {
	slot := uint8(qpn >> 16)
	if s := w.last.Load(); s != nil && s.slot == slot {
		return s.path
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.paths[slot]
	if s == nil {
		s = &slotPath{slot, &netio.Path{
			Local: w.attr.Local, Remote: w.attr.Remote, TrafficClass: w.attr.TrafficClass, HopLimit: w.attr.HopLimit, Interface: w.index,
		}}
		s.path.SetFlow(partFlow(qpn, uint32(cfg.random64())))
		w.paths[slot] = s
	}
	w.last.Store(s)
	return s.path
}

// tooLong is told that a packet was longer than the way carries: routes have changed, or path MTU
// discovery has found less. Later datagrams are held to the new limit.
func (a *ah) tooLong(d *device, old *way) {
	attr := old.attr
	if w, err := d.findWay(&attr); err == nil {
		if w.mtu == old.mtu && w.mtu > minMTU { // nobody tells how much less
			w.mtu /= 2
		}
		a.way.CompareAndSwap(old, w)
	}
}
