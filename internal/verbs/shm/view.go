//go:build linux

package shm

import (
	"slices"

	"github.com/go-rdma/rdma/internal/verbs"
)

// view is what a peer sees of a protection domain: regions on the board of the link, and arenas that it has mapped. A
// domain of a link's device has one. That of a device that was opened has one for each peer that it has connections with, and those peers
// see all of it.
type view struct {
	dev      *device           // of the link; of an open device's domain it is held
	qps      int               // of the domain; guarded by its lock, as is what follows
	segments map[*arena]uint32 // of an open device's domain
}

func (v *view) segment(a *arena) uint32 {
	if v.segments == nil {
		return a.segment
	}
	return v.segments[a]
}

// attach counts a queue pair of the domain on a link's device.
func (p *pd) attach(d *device) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dev.open {
		p.sweep()
	}
	views := *p.views.Load()
	for _, v := range views {
		if v.dev == d {
			if v.qps++; v.qps == 1 && p.dev.open {
				p.publishAll(v)
			}
			return nil
		}
	}
	if !d.tryRetain() {
		return errClosedPD
	}
	v := &view{dev: d, qps: 1, segments: make(map[*arena]uint32)}
	for _, a := range p.arenas {
		num, err := d.give(a.fd, a.size)
		if err != nil {
			p.take(v)
			return err
		}
		v.segments[a] = num
	}
	p.publishAll(v)
	views = append(slices.Clip(views), v)
	p.views.Store(&views)
	return nil
}

func (p *pd) publishAll(v *view) {
	for m := range p.regions {
		if !m.dead() {
			m.publish(v)
		}
	}
}

// detach is the end of a queue pair.
func (p *pd) detach(d *device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range *p.views.Load() {
		if v.dev == d {
			v.qps--
		}
	}
	if p.dev.open {
		p.sweep()
	}
}

// sweep takes from peers without a connection what they see of the domain. One that is in the middle of an access keeps it.
func (p *pd) sweep() {
	views := *p.views.Load()
	var kept []*view
	for _, v := range views {
		if v.qps > 0 {
			kept = append(kept, v)
			continue
		}
		busy := false
		for m := range p.regions {
			m.word(v, regKey).Store(0)
			busy = busy || m.word(v, regUsers).Load() != 0
		}
		if busy && v.dev.linked() {
			kept = append(kept, v)
		} else {
			p.take(v)
		}
	}
	if len(kept) != len(views) {
		p.views.Store(&kept)
	}
}

// take takes all arenas from a peer.
func (p *pd) take(v *view) {
	for _, num := range v.segments {
		v.dev.tellGone(num)
	}
	v.dev.release()
}

// show gives a new arena to all peers, or to none.
func (p *pd) show(a *arena) error {
	for i, v := range *p.views.Load() {
		num, err := v.dev.give(a.fd, a.size)
		if err != nil {
			for _, v := range (*p.views.Load())[:i] {
				v.dev.tellGone(v.segments[a])
				delete(v.segments, a)
			}
			return err
		}
		v.segments[a] = num
	}
	return nil
}

// hide takes an arena without regions from them.
func (p *pd) hide(a *arena) {
	for _, v := range *p.views.Load() {
		v.dev.tellGone(v.segments[a])
		delete(v.segments, a)
	}
}

// invalidated is told that a peer has invalidated a region. The others see it from now on.
func (p *pd) invalidated(key uint32) {
	num := key & (maxMRs - 1)
	c := p.dev.table.chunks[num/mrChunk].Load()
	if !p.dev.open || c == nil {
		return
	}
	m := c[num%mrChunk].Load()
	if m == nil || m.key != key || m.pd != p || m.access&verbs.RemoteInvalidate == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.invalid.Store(true)
	for _, v := range *p.views.Load() {
		m.word(v, regKey).CompareAndSwap(uint64(key), 0)
	}
}
