//go:build linux && cgo

package rdmacore

import "github.com/go-rdma/rdma/internal/verbs"

// datagrams moves the queue pair of an identifier for datagrams to RTS.
func (q *qp) datagrams(id *coreID, port int) error {
	d := q.dev
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	p, err := coreQueryPort(d.ctx, port)
	if err != nil {
		return err
	}
	q.lock()
	defer q.unlock()
	if q.h == nil {
		return d.closedError()
	}
	if err := coreQPDatagrams(id, q.h); err != nil {
		return err
	}
	q.mtu.Store(uint32(verbs.MTUFromCode(uint8(p.activeMTU))))
	q.state, q.ethernet = stateRTS, p.ethernet
	return nil
}

// lookAtGRH adds to the completion of a receive which IP header stands in front of the datagram.
func (q *qp) lookAtGRH(w *verbs.WC, at buffer) {
	if w.Status != verbs.Success || w.Flags&verbs.WCGRH == 0 || !q.ethernet {
		return
	}
	var b [verbs.GRHLen]byte
	if !q.pd.read(b[:], at) {
		w.Flags &^= verbs.WCGRH // the memory is given up already
	} else if grhIsIPv4(b[:]) {
		w.Flags |= verbs.WCGRHv4
	}
}

// list lets a region be found by its key.
func (p *pd) list(m *mr) {
	p.mu.Lock()
	p.mrs[m.lkey] = m
	p.mu.Unlock()
}

func (p *pd) unlist(m *mr) {
	p.mu.Lock()
	delete(p.mrs, m.lkey)
	p.mu.Unlock()
}

// read copies what a buffer begins with, unless its memory may be gone.
func (p *pd) read(b []byte, at buffer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mrs[at.lkey]
	if m == nil || at.addr < m.addr || at.addr-m.addr > uint64(len(m.mem)) || uint64(len(m.mem))-(at.addr-m.addr) < uint64(len(b)) {
		return false
	}
	copy(b, m.mem[at.addr-m.addr:])
	return true
}
