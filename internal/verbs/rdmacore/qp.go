//go:build linux && cgo

package rdmacore

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

func unsupported(what string) error {
	return fmt.Errorf("rdmacore: %s: %w", what, errors.ErrUnsupported)
}

// Defaults for limits that QPInitAttr leaves open.
const (
	defaultWR  = 128
	defaultSGE = 2

	// defaultRNRTimer is the code of 0.64 ms. rdma_cm's default, 655.36 ms, makes
	// a receiver that is late by a moment slow for the better part of a second.
	defaultRNRTimer = 12
)

// qp is a queue pair.
type qp struct {
	dev            *device
	pd             *pd
	srq            *srq
	typ            verbs.QPType
	token          uint64
	num            uint32
	made           leak.Mark
	sendCQ, recvCQ *cq
	rnrTimer       uint8
	class          uint8 // of its packets, if not what the peer asked for
	mtu            atomic.Uint32
	caps           verbs.QPCap // but for PathMTU

	// onCommEst is called when the peer's first packet arrives before the
	// connection manager knows of the connection.
	onCommEst func()

	// onClose is called when the queue pair is closed, with no lock held. It may be nil.
	onClose func()

	// Posting holds one of the two, all else both. h is nil once closed, or the device was given up.
	sendMu, recvMu sync.Mutex
	h              *coreQP
	closed         bool
	index          uint32 // in the device's table
	sq, rq         slots
	state          qpState
	readDepth      int         // of the connection, for READs and atomics
	failed         atomic.Bool // it is in the error state
	groups         map[mcast]int
	ethernet       bool // of datagrams: on RoCE
}

type qpState uint8

const (
	stateInit qpState = iota
	stateRTS
)

// lock excludes posting.
func (q *qp) lock() {
	q.sendMu.Lock()
	q.recvMu.Lock()
}

func (q *qp) unlock() {
	q.recvMu.Unlock()
	q.sendMu.Unlock()
}

// newQP makes a queue pair in the state RESET.
func (d *device) newQP(p *pd, attr *verbs.QPInitAttr, onCommEst func()) (*qp, error) {
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	var shared *srq
	ok3 := true
	if attr.SRQ != nil {
		shared, ok3 = attr.SRQ.(*srq)
		ok3 = ok3 && shared.pd.dev == d
	}
	if !ok1 || !ok2 || !ok3 || scq.dev != d || rcq.dev != d || p.dev != d {
		return nil, fmt.Errorf("rdmacore: queue pair: queues and domain are not of one device: %w", syscall.EINVAL)
	}
	q := &qp{
		dev: d, pd: p, srq: shared, typ: attr.Type, token: newToken(), sendCQ: scq, recvCQ: rcq,
		rnrTimer: attr.MinRNRTimer & 31, onCommEst: onCommEst,
	}
	if q.rnrTimer == 0 {
		q.rnrTimer = defaultRNRTimer
	}
	in := qpInit{token: q.token, ud: attr.Type == verbs.UD, blockLoopback: attr.BlockMulticastLoopback, native: attr.Type == verbs.RC && d.attr.native}
	if err := limits(&in, attr, &d.attr); err != nil {
		return nil, err
	}
	if !d.tryRetain() {
		return nil, fmt.Errorf("rdmacore: queue pair: %w", net.ErrClosed)
	}
	if err := d.enter(); err != nil {
		d.release()
		return nil, err
	}
	defer d.leave()
	undo := []func(){d.release}
	fail := func(err error) (*qp, error) {
		for _, f := range undo {
			f()
		}
		return nil, err
	}
	h, err := p.use()
	if err != nil {
		return fail(err)
	}
	undo = append(undo, p.Unuse)
	if in.sendCQ, err = scq.use(attr.Type); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { scq.unuse(attr.Type) })
	if in.recvCQ, err = rcq.use(attr.Type); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { rcq.unuse(attr.Type) })
	if shared != nil {
		if in.srq, err = shared.use(); err != nil {
			return fail(err)
		}
		undo = append(undo, shared.unuse)
	}
	// Inline bytes are a wish, and each driver has a limit of its own that it does not tell.
	wish := in
	for inline := wish.inlineBytes; ; inline /= 2 {
		in = wish
		in.inlineBytes = inline
		if q.h, err = coreCreateQP(h, &in); err == nil || inline == 0 || !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOMEM) {
			break
		}
	}
	if in.blockLoopback && (errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)) {
		return fail(unsupported("keeping a queue pair's own multicast datagrams from it, on device " + d.name))
	}
	if err != nil {
		return fail(d.failure("queue pair", d.c.p.host.memlock(wish.bytes(), err)))
	}
	q.num = in.num
	q.caps = verbs.QPCap{
		MaxSendWR: in.sendWR, MaxRecvWR: in.recvWR, MaxSendSGE: min(in.sendSGE, coreSGEs), MaxRecvSGE: min(in.recvSGE, coreSGEs),
		MaxInline: min(in.inlineBytes, coreInline),
	}
	q.sq.init(kindSend, q.caps.MaxSendWR)
	if shared == nil {
		q.rq.init(kindRecv, q.caps.MaxRecvWR)
		if q.typ == verbs.UD {
			q.rq.keepBuffers()
		}
	}
	if !d.table.add(q) {
		_ = coreDestroyQP(q.h) // nothing was posted
		return fail(fmt.Errorf("rdmacore: too many queue pairs: %w", syscall.ENOMEM))
	}
	d.mu.Lock()
	d.qps[q.token], d.nums[q.num] = q, q
	d.mu.Unlock()
	q.made.Made("queue pair")
	return q, nil
}

// bytes is about what the queues need at least: an entry of 16 bytes is the least that a device can do with, and a
// send request has a head and, often, an address.
func (in *qpInit) bytes() int {
	n := in.sendWR * (32 + max(16*in.sendSGE, in.inlineBytes))
	if in.srq == nil {
		n += in.recvWR * 16 * in.recvSGE
	}
	return n
}

// limits fills in the limits of a queue pair.
func limits(in *qpInit, attr *verbs.QPInitAttr, a *attrs) error {
	for _, l := range []struct {
		name          string
		got           *int
		want, def, hi int
	}{
		{"send requests", &in.sendWR, attr.MaxSendWR, min(defaultWR, a.maxQPWR), a.maxQPWR},
		{"receive requests", &in.recvWR, attr.MaxRecvWR, min(defaultWR, a.maxQPWR), a.maxQPWR},
		{"send SGEs", &in.sendSGE, attr.MaxSendSGE, min(defaultSGE, a.maxSGE), a.maxSGE},
		{"receive SGEs", &in.recvSGE, attr.MaxRecvSGE, min(defaultSGE, a.maxSGE), a.maxSGE},
		{"inline bytes", &in.inlineBytes, attr.MaxInline, 0, attr.MaxInline},
	} {
		if l.want < 0 || l.want > l.hi {
			return fmt.Errorf("rdmacore: queue pair with %d %s, not 0 to %d: %w", l.want, l.name, l.hi, syscall.EINVAL)
		}
		if *l.got = l.want; l.want == 0 {
			*l.got = l.def
		}
	}
	in.inlineBytes = min(in.inlineBytes, coreInline)
	return nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Cap() verbs.QPCap {
	c := q.caps
	c.PathMTU = verbs.MTU(q.mtu.Load())
	return c
}

// Stats implements [verbs.QP]. Devices do not count by queue pair.
func (q *qp) Stats() verbs.QPStats { return verbs.QPStats{} }

// init moves the queue pair to INIT, where receives may be posted. The kernel does not say how of a request
// whose peer has given up; that is for Accept to tell.
func (q *qp) init(id *coreID) error {
	q.lock()
	defer q.unlock()
	if q.h == nil {
		return q.dev.closedError()
	}
	err := coreQPInit(id, q.h, q.dev.attr.atomics)
	if errors.Is(err, syscall.EINVAL) {
		_, port, _, _ := coreInfo(id)
		err = coreQPInitAlone(q.h, port, q.dev.attr.atomics)
	}
	return err
}

// connect moves the queue pair to RTS, as the identifier's messages say.
func (q *qp) connect(id *coreID, rdAtomic, destRDAtomic int) error {
	q.lock()
	defer q.unlock()
	switch {
	case q.h == nil:
		return q.dev.closedError()
	case q.state != stateInit || q.failed.Load():
		return fmt.Errorf("the queue pair is connected already or failed: %w", syscall.EISCONN)
	}
	if err := coreQPInit(id, q.h, q.dev.attr.atomics); err != nil {
		return err
	}
	mtu, depth, err := coreQPConnect(id, q.h, q.rnrTimer, q.class, rdAtomic, destRDAtomic)
	if err != nil {
		return err
	}
	q.mtu.Store(uint32(mtu))
	q.state, q.readDepth = stateRTS, depth
	return nil
}

// connected says that the driver has moved the queue pair to RTS, as those for iWARP do.
func (q *qp) connected(readDepth int) {
	q.lock()
	defer q.unlock()
	if q.state == stateInit {
		q.state, q.readDepth = stateRTS, readDepth
	}
}

// ToError implements [verbs.QP].
func (q *qp) ToError() error {
	q.lock()
	defer q.unlock()
	if q.h == nil {
		return q.dev.closedError()
	}
	return q.toError()
}

// toError makes the driver flush what is in the queues. A lock is held.
func (q *qp) toError() error {
	q.failed.Store(true)
	if err := coreQPError(q.h); err != nil && !q.dev.gone.Load() {
		return q.dev.failure("moving a queue pair to the error state", err)
	}
	return nil
}

// broke is told that the queue pair has failed by itself.
func (q *qp) broke() {
	if q.failed.Load() {
		return
	}
	q.lock()
	defer q.unlock()
	if q.h != nil && !q.failed.Load() {
		_ = q.toError() // it is there already
	}
}

// Close implements [verbs.QP].
func (q *qp) Close() error {
	err := q.close()
	if err == nil && q.onClose != nil {
		q.onClose()
	}
	return err
}

func (q *qp) close() error {
	q.lock()
	defer q.unlock()
	if q.closed {
		return nil
	}
	d := q.dev
	if q.h != nil {
		q.detachAll() // the kernel does not destroy it before
		if err := coreDestroyQP(q.h); err != nil && !d.gone.Load() {
			return d.failure("destroying a queue pair", err)
		}
	}
	q.h, q.closed = nil, true
	d.table.remove(q)
	d.mu.Lock()
	delete(d.qps, q.token)
	if d.nums[q.num] == q {
		delete(d.nums, q.num)
	}
	d.mu.Unlock()
	if q.srq != nil {
		q.srq.unuse()
	}
	q.sendCQ.unuse(q.typ)
	q.recvCQ.unuse(q.typ)
	q.pd.Unuse()
	q.made.Gone()
	d.release()
	return nil
}

var _ verbs.QP = (*qp)(nil)
