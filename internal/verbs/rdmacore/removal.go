//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// A device that is removed is given up at once, whatever its users do: queues fail with ENODEV, and the kernel gets back
// all it has of this process. Drivers that can take themselves away do not need that. The others (rdma_rxe,
// siw) wait until nobody has the device open, and with them who removes it.

// enter lets something be made of the device until leave. It fails once the device is gone.
func (d *device) enter() error {
	d.using.RLock()
	if d.gone.Load() {
		d.using.RUnlock()
		return d.goneError()
	}
	return nil
}

func (d *device) leave() { d.using.RUnlock() }

// goneError is what the queues of a device that is gone fail with.
func (d *device) goneError() error {
	return fmt.Errorf("rdmacore: device %s is gone: %w", d.name, syscall.ENODEV)
}

// closedError is why something that was made of the device is there no more.
func (d *device) closedError() error {
	if d.gone.Load() {
		return d.goneError()
	}
	return net.ErrClosed
}

// lost is told that the device is gone.
func (d *device) lost() {
	if d.gone.Swap(true) {
		return
	}
	d.mu.Lock()
	cqs := make([]*cq, 0, len(d.cqs))
	for _, c := range d.cqs {
		cqs = append(cqs, c)
	}
	d.mu.Unlock()
	for _, c := range cqs {
		c.fail(d.goneError())
	}
	if d.retainOpen() { // else it is being closed
		go d.giveUp()
	}
}

// giveUp closes what this process has of the device.
func (d *device) giveUp() {
	d.using.Lock() // from now on nobody makes anything
	d.mu.Lock()
	var qps []*qp
	for _, q := range d.qps {
		qps = append(qps, q)
	}
	var srqs []*srq
	for _, s := range d.srqs {
		srqs = append(srqs, s)
	}
	var cqs []*cq
	for _, c := range d.cqs {
		cqs = append(cqs, c)
	}
	var pds []*pd
	for p := range d.pds {
		pds = append(pds, p)
	}
	shards := d.shards
	d.shards = nil
	d.mu.Unlock()
	d.using.Unlock()
	// What has memory mapped holds the device as an open descriptor does. So all is destroyed in order; what cannot be goes
	// with the descriptors.
	for _, q := range qps {
		q.revoke()
	}
	for _, s := range srqs {
		s.revoke()
	}
	for _, c := range cqs {
		c.revoke()
	}
	for _, p := range pds {
		p.revoke()
	}
	for _, s := range shards {
		s.close()
	}
	d.async.close()
	d.async.wait()
	_ = coreVacate(d.ctx) // nobody is left to tell
	d.release()
}

// The errors of what revoke destroys are nobody's business any more. Memory stays mapped: its owner may look at it still.

func (q *qp) revoke() {
	q.lock()
	defer q.unlock()
	if q.h != nil {
		q.detachAll()
		_ = coreDestroyQP(q.h)
		q.h = nil
	}
}

func (s *srq) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h != nil {
		_ = coreDestroySRQ(s.h)
		s.h = nil
	}
}

func (c *cq) revoke() { _ = c.destroy() }

func (p *pd) revoke() {
	p.mu.Lock()
	var objects []revocable
	for o := range p.objects {
		objects = append(objects, o)
	}
	p.mu.Unlock()
	for _, o := range objects {
		o.revoke()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h != nil {
		_ = coreDeallocPD(p.h)
		p.h = nil
	}
}

func (m *mr) revoke() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.h != nil {
		_ = coreDeregMR(m.h)
		m.h = nil
	}
}

func (a *ah) revoke() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.h.Swap(nil); h != nil {
		_ = coreDestroyAH(h)
	}
}

// watched is a device that librdmacm has open, which is every one that was used, until this process ends. An identifier
// bound to it hears of its removal also while there is no other.
type watched struct {
	ch      *eventChannel
	h       *coreID
	token   uint64
	context *coreCtx
	name    string
}

// watch sees to it that the device is watched which an identifier is bound to. Where that fails the
// identifier's own events are all there is.
func (ch *eventChannel) watch(id *coreID) {
	w := &watched{ch: ch, token: newToken(), context: coreContext(id)}
	if w.context == nil {
		return
	}
	ch.mu.Lock()
	seen := ch.watched[w.context]
	ch.watched[w.context] = true
	ch.mu.Unlock()
	if seen {
		return
	}
	name, _, local, _ := coreInfo(id)
	h, err := coreCreateID(ch.ec, verbs.PSUDP, w.token)
	if err == nil {
		w.h, w.name = h, name
		ch.add(w.token, w)
		if err = coreBind(h, netip.AddrPortFrom(local.Addr(), 0)); err == nil && coreContext(h) == w.context {
			return
		}
		_ = coreDestroyID(h) // it is of no use
	}
	w.forget()
}

func (w *watched) forget() {
	w.ch.mu.Lock()
	defer w.ch.mu.Unlock()
	delete(w.ch.ids, w.token)
	delete(w.ch.watched, w.context)
}

func (w *watched) onCM(ev *cmEvent) {
	if ev.kind != cmRemoval {
		return
	}
	w.forget()
	c := w.ch.c
	c.mu.Lock()
	dev := c.open[w.name]
	c.mu.Unlock()
	if dev != nil {
		dev.lost()
	}
	c.reaper.do(func() {
		removeID(w.h)
		coreForget()
	})
}

// removeID destroys an identifier whose device is gone.
func removeID(h *coreID) {
	_, _ = coreVacate(coreContext(h)), coreDestroyID(h) // nobody is left to tell
}
