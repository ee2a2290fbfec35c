//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
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

// watcher has an identifier bound to each device that librdmacm has open, which is every one that was used, until this
// process ends: it hears of their removal also while nothing else is there to hear of it.
type watcher struct {
	c     *core
	mu    sync.Mutex
	ec    *coreEC // nil at first
	buf   eventBuffer
	ev    cmEvent
	seen  map[*coreCtx]bool // librdmacm's contexts
	bound map[uint64]watched
}

// watched is a device.
type watched struct {
	h       *coreID
	context *coreCtx
	name    string
}

// device sees to it that the device is watched which an identifier is bound to. Without it the identifier's
// own events are all there is.
func (w *watcher) device(id *coreID) {
	context := coreContext(id)
	if context == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[context] || w.ec == nil && w.start() != nil {
		return
	}
	name, _, local, _ := coreInfo(id)
	token := newToken()
	h, err := coreCreateID(w.ec, verbs.PSUDP, token)
	if err != nil {
		return
	}
	err = coreBind(h, netip.AddrPortFrom(local.Addr(), 0))
	if err != nil || coreContext(h) != context {
		_ = coreDestroyID(h) // it was of no use
		return
	}
	w.seen[context] = true
	w.bound[token] = watched{h, context, name}
}

// start makes the channel. w.mu is held.
func (w *watcher) start() error {
	ec, fd, err := coreCreateEC()
	if err != nil {
		return err
	}
	d, err := newDrainer(fd, "rdma_cm watcher")
	if err != nil {
		coreDestroyEC(ec)
		return err
	}
	w.ec, w.seen, w.bound = ec, make(map[*coreCtx]bool), make(map[uint64]watched)
	go w.run(d)
	return nil
}

// run reads the events of the identifiers, as long as there is this process.
func (w *watcher) run(d *drainer) {
	d.run(func() (err error) { w.ev, err = w.buf.next(w.ec); return err }, w.event, nil)
}

func (w *watcher) event() {
	if w.ev.kind != cmRemoval {
		return
	}
	w.mu.Lock()
	b, ok := w.bound[w.ev.token]
	delete(w.bound, w.ev.token)
	delete(w.seen, b.context)
	w.mu.Unlock()
	if !ok {
		return
	}
	w.c.mu.Lock()
	dev := w.c.open[b.name]
	w.c.mu.Unlock()
	if dev != nil {
		dev.lost()
	}
	w.c.reaper.do(func() {
		removeID(b.h)
		coreForget()
	})
}

// removeID destroys an identifier whose device is gone.
func removeID(h *coreID) {
	_, _ = coreVacate(coreContext(h)), coreDestroyID(h) // nobody is left to tell
}
