package softroce

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

type qpState uint8

const (
	stateInit qpState = iota
	stateRTS          // RTR too: connect does both steps
	stateErr
	stateClosed
)

// transport is what a queue pair's transport service does. All is called with
// the queue pair locked.
type transport interface {
	// check refuses a send request that the service cannot take.
	check(wr *verbs.SendWR) error
	// queued is told of a request that was put in the send queue.
	queued(e *sendWQE, wr *verbs.SendWR)
	// transmit sends what may be sent.
	transmit(w *work)
	// receive takes a packet, receiveDead one in the error state; received follows the last one of a run.
	receive(w *work, p *netio.Packet)
	receiveDead(w *work, p *netio.Packet)
	received(w *work)
	// from tells what is known of packets from a UDP source port that others hand over. The queue pair is not locked.
	from(port netip.AddrPort) *handed
	// stop ends all activity for good.
	stop(w *work)
	// close follows stop of a queue pair that is closed, once. The queue pair is not locked.
	close()
}

// Defaults for limits that QPInitAttr leaves open.
const (
	defaultWR  = 128
	defaultSGE = 2
)

var (
	defaultCaps = verbs.QPCap{MaxSendWR: defaultWR, MaxRecvWR: defaultWR, MaxSendSGE: defaultSGE, MaxRecvSGE: defaultSGE, MaxInline: maxInline}
	mostCaps    = verbs.QPCap{MaxSendWR: maxWR, MaxRecvWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: maxInline}
)

// qp is a queue pair.
type qp struct {
	dev            *device
	num            uint32
	sendCQ, recvCQ *cq
	srq            *srq // nil: a receive queue of its own
	caps           verbs.QPCap
	minRNRTimer    uint8
	rc             *rc // nil: no connection's
	service        transport

	// onCommEst is called once, with no lock held, when the first valid packet of
	// the peer arrives after connect. It is set before connect.
	onCommEst func()

	gone chan struct{} // closed when Close is done
	made leak.Mark

	mu      sync.Mutex
	state   qpState
	metPeer bool
	keys
	sq    queue[sendWQE]
	rq    queue[recvWQE] // with an SRQ: the receive that was taken from it for the message at hand
	stats verbs.QPStats
}

// newQP makes a queue pair of a connection in the state INIT.
func (d *device) newQP(p *pd, attr *verbs.QPInitAttr) (*qp, error) {
	if attr.Type != verbs.RC {
		return nil, unsupported(attr.Type.String() + " queue pairs for connections")
	}
	return d.makeQP(p, attr, func(q *qp) {
		q.rc = newRC(q)
		q.service = q.rc
	})
}

// makeQP makes a queue pair. serve gives it its transport service.
func (d *device) makeQP(p *pd, attr *verbs.QPInitAttr, serve func(q *qp)) (*qp, error) {
	var shared *srq
	ok3 := true
	if attr.SRQ != nil {
		shared, ok3 = attr.SRQ.(*srq)
		ok3 = ok3 && shared.dev == d
	}
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	if !ok1 || !ok2 || !ok3 || scq.dev != d || rcq.dev != d || p.dev != d {
		return nil, fmt.Errorf("softroce: queue pair: queues and domain are not of one device: %w", syscall.EINVAL)
	}
	q := &qp{dev: d, keys: keys{pd: p}, sendCQ: scq, recvCQ: rcq, srq: shared, minRNRTimer: attr.MinRNRTimer & 31, gone: make(chan struct{})}
	if q.minRNRTimer == 0 {
		q.minRNRTimer = verbs.DefaultRNRTimer
	}
	var err error
	if q.caps, err = attr.Caps("softroce", &defaultCaps, &mostCaps); err != nil {
		return nil, err
	}
	q.caps.MaxInline = maxInline // it costs nothing until it is used
	q.sq.limit, q.rq.limit = uint32(q.caps.MaxSendWR), uint32(q.caps.MaxRecvWR)
	if shared != nil {
		q.rq.limit = 1
	}
	serve(q)

	if !d.tryRetain() {
		return nil, fmt.Errorf("softroce: queue pair: %w", net.ErrClosed)
	}
	undo := []func(){d.release}
	fail := func(err error) (*qp, error) {
		for _, f := range undo {
			f()
		}
		return nil, err
	}
	if err := p.Use(); err != nil {
		return fail(err)
	}
	undo = append(undo, p.Unuse)
	for _, c := range []*cq{scq, rcq} {
		if err := c.use(); err != nil {
			return fail(err)
		}
		undo = append(undo, c.unuse)
	}
	if shared != nil {
		if err := shared.use(); err != nil {
			return fail(err)
		}
		undo = append(undo, shared.unuse)
	}
	if !d.qps.add(d.cfg, d.slot, q) {
		return fail(fmt.Errorf("softroce: more than %d queue pairs: %w", maxQPs, syscall.ENOMEM))
	}
	q.made.Made("queue pair")
	return q, nil
}

// rcAttr is what connects a queue pair to its peer.
type rcAttr struct {
	path         *netio.Path // the queue pair's own from now on
	destQPN      uint32
	sqPSN, rqPSN uint32 // of this side's first request, of the peer's
	mtu          verbs.MTU
	ackTimeout   uint8 // code: 4.096 us * 2^t; 0: for ever
	retryCount   uint8
	rnrRetry     uint8 // 7: endless
	minRNRTimer  uint8 // code; 0: that of QPInitAttr

	maxRDAtomic, maxDestRDAtomic uint8
}

// connect takes the queue pair from INIT through RTR to RTS.
func (q *qp) connect(a *rcAttr) error {
	if a.path == nil || !a.path.Local.IsValid() || !a.path.Remote.IsValid() || a.mtu.Code() == 0 ||
		a.destQPN > psnMask || a.sqPSN > psnMask || a.rqPSN > psnMask || a.ackTimeout > 31 || a.retryCount > 7 || a.rnrRetry > 7 {
		return fmt.Errorf("softroce: connecting a queue pair: %w", syscall.EINVAL)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch q.state {
	case stateInit:
	case stateClosed:
		return net.ErrClosed
	default:
		return fmt.Errorf("softroce: queue pair is connected already or failed: %w", syscall.EISCONN)
	}
	if a.minRNRTimer != 0 {
		q.minRNRTimer = a.minRNRTimer & 31
	}
	q.caps.PathMTU = a.mtu
	q.rc.connect(a)
	q.state = stateRTS
	return nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Cap() verbs.QPCap {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.caps
}

func (q *qp) Stats() verbs.QPStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

var errClosedQP = fmt.Errorf("queue pair: %w", net.ErrClosed)

var errNotConnected = fmt.Errorf("softroce: queue pair is not connected: %w", syscall.ENOTCONN)

func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	w := q.dev.begin()
	q.mu.Lock()
	for n < len(wrs) {
		full, e := q.postSend(w, &wrs[n])
		if full || e != nil {
			err = e
			break
		}
		n++
	}
	if n > 0 && q.state == stateRTS {
		q.service.transmit(w)
	}
	q.mu.Unlock()
	w.end(false)
	return n, err
}

func (q *qp) postSend(w *work, wr *verbs.SendWR) (full bool, err error) {
	switch q.state {
	case stateInit:
		return false, errNotConnected
	case stateClosed:
		return false, net.ErrClosed
	}
	if err := q.service.check(wr); err != nil {
		return false, err
	}
	if len(wr.SGL) > q.caps.MaxSendSGE {
		return false, fmt.Errorf("softroce: %d gather entries, the limit is %d: %w", len(wr.SGL), q.caps.MaxSendSGE, syscall.EINVAL)
	}
	if len(wr.Inline) > q.caps.MaxInline {
		return false, fmt.Errorf("softroce: %d inline bytes, the limit is %d: %w", len(wr.Inline), q.caps.MaxInline, syscall.EINVAL)
	}
	var access verbs.Access
	if fetches(wr.Op) {
		access = verbs.LocalWrite // what comes back is written there
	}
	length := uint64(len(wr.Inline))
	if wr.Inline == nil {
		for i := range wr.SGL {
			length += uint64(wr.SGL[i].Length)
		}
		if length > q.maxMessage() {
			return false, fmt.Errorf("softroce: message of %d bytes, the limit is %d: %w", length, q.maxMessage(), syscall.EMSGSIZE)
		}
	}
	if isAtomic(wr.Op) {
		if length < atomicSize {
			return false, fmt.Errorf("softroce: %d bytes for what %v returns, not %d: %w", length, wr.Op, atomicSize, syscall.EINVAL)
		}
		length = atomicSize
	}
	if q.state == stateErr {
		q.complete(w, q.sendCQ, wr.ID, verbs.WRFlushErr, wr.Op.Completion())
		return false, nil
	}
	e := q.sq.next()
	if e == nil {
		return true, nil
	}
	e.id, e.op, e.flags, e.imm = wr.ID, wr.Op, wr.Flags, wr.Imm
	e.raddr, e.rkey, e.length = wr.RemoteAddr, wr.RKey, uint32(length)
	if wr.Op == verbs.OpSendWithInv {
		e.imm = wr.InvalidateKey
	}
	e.compare, e.swapAdd = wr.Compare, wr.SwapAdd
	e.status = verbs.Success
	e.sgl = e.sgl[:0]
	if e.inlined = wr.Inline != nil; e.inlined {
		e.inline = append(e.inline[:0], wr.Inline...)
	} else if e.sgl, err = q.checkSGL(e.sgl, wr.SGL, access); err != nil {
		e.status = verbs.LocProtErr // told by the completion
	}
	q.sq.tail++
	q.service.queued(e, wr)
	return false, nil
}

// maxMessage is the longest message. Its PSNs are less than half of all, so that before and behind can be told apart.
func (q *qp) maxMessage() uint64 {
	if q.caps.PathMTU == 0 {
		return maxMsgSize
	}
	return min(maxMsgSize, uint64(psnMask/2)*uint64(q.caps.PathMTU))
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	if q.srq != nil {
		return 0, fmt.Errorf("softroce: the queue pair receives from a shared queue: %w", syscall.EINVAL)
	}
	w := q.dev.begin()
	q.mu.Lock()
	for n < len(wrs) {
		full, e := q.postRecv(w, &wrs[n])
		if full || e != nil {
			err = e
			break
		}
		n++
	}
	q.mu.Unlock()
	w.end(false)
	return n, err
}

func (q *qp) postRecv(w *work, wr *verbs.RecvWR) (full bool, err error) {
	if q.state == stateClosed {
		return false, net.ErrClosed
	}
	if len(wr.SGL) > q.caps.MaxRecvSGE {
		return false, fmt.Errorf("softroce: %d scatter entries, the limit is %d: %w", len(wr.SGL), q.caps.MaxRecvSGE, syscall.EINVAL)
	}
	if q.state == stateErr {
		q.complete(w, q.recvCQ, wr.ID, verbs.WRFlushErr, verbs.WCRecv)
		return false, nil
	}
	e := q.rq.next()
	if e == nil {
		return true, nil
	}
	e.fill(&q.keys, wr)
	q.rq.tail++
	return false, nil
}

// ready tells whether there is a receive for a message that begins.
func (q *qp) ready() bool {
	return q.rq.len() > 0 || q.srq != nil && q.srq.take(q, 0) == tookOne
}

// complete adds a completion that tells no more than an outcome.
func (q *qp) complete(w *work, c *cq, id uint64, status verbs.Status, op verbs.WCOpcode) {
	c.push(w, &verbs.WC{ID: id, Status: status, Op: op, QPN: q.num})
}

// receive takes a run of packets.
func (q *qp) receive(w *work, ps []netio.Packet) {
	q.mu.Lock()
	for i := range ps {
		switch q.state {
		case stateRTS:
			q.service.receive(w, &ps[i])
		case stateErr:
			q.service.receiveDead(w, &ps[i])
		default:
			q.dev.stats.wrongState.Add(1)
		}
	}
	q.service.received(w)
	q.mu.Unlock()
}

// met tells the owner that the peer's packets arrive.
func (q *qp) met() {
	q.mu.Lock()
	f := q.onCommEst
	if q.state == stateClosed {
		f = nil
	}
	q.mu.Unlock()
	if f != nil {
		f()
	}
}

// fail moves the queue pair to the error state. status is the outcome of the oldest
// send request, unless it is Success; all others are flushed, in order.
func (q *qp) fail(w *work, status verbs.Status) { q.failAt(w, q.sq.head, status) }

// failAt is fail where another request than the oldest is at fault.
func (q *qp) failAt(w *work, pos uint32, status verbs.Status) {
	if q.state >= stateErr {
		return
	}
	q.state = stateErr
	q.service.stop(w)
	for ; q.sq.head != q.sq.tail; q.sq.head++ {
		e := q.sq.at(q.sq.head)
		outcome := verbs.WRFlushErr
		if q.sq.head == pos && status != verbs.Success {
			outcome = status
		}
		q.complete(w, q.sendCQ, e.id, outcome, e.op.Completion())
	}
	for ; q.rq.head != q.rq.tail; q.rq.head++ {
		q.complete(w, q.recvCQ, q.rq.at(q.rq.head).id, verbs.WRFlushErr, verbs.WCRecv)
	}
	q.sq.ring, q.rq.ring = nil, nil
}

func (q *qp) ToError() error {
	w := q.dev.begin()
	q.mu.Lock()
	closed := q.state == stateClosed
	q.fail(w, verbs.Success)
	q.mu.Unlock()
	w.end(false)
	if closed {
		return net.ErrClosed
	}
	return nil
}

func (q *qp) Close() error {
	w := q.dev.begin()
	q.mu.Lock()
	if q.state == stateClosed {
		q.mu.Unlock()
		w.end(false)
		<-q.gone // what Close promises holds for every caller
		return nil
	}
	// Whoever found the queue pair before it left the table sees the state.
	q.state = stateClosed
	q.service.stop(w)
	if q.srq != nil && q.rq.len() > 0 {
		q.srq.giveBack(q)
	}
	q.sq, q.rq = queue[sendWQE]{}, queue[recvWQE]{}
	q.mu.Unlock()
	w.end(false)

	q.dev.qps.remove(q)
	q.service.close()
	q.sendCQ.unuse()
	q.recvCQ.unuse()
	if q.srq != nil {
		q.srq.unuse()
	}
	q.pd.Unuse()
	q.made.Gone()
	close(q.gone)
	q.dev.release()
	return nil
}
