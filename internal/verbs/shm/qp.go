//go:build linux

package shm

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

type qpState uint8

const (
	stateInit qpState = iota
	stateRTS
	stateErr
	stateClosed
)

const (
	pathMTU = verbs.MTU(4096)

	// defaultInline is given to all who ask for less: it costs nothing until it is used.
	defaultInline = maxInline
)

var (
	defaultCaps = verbs.QPCap{MaxSendWR: defaultWR, MaxRecvWR: defaultWR, MaxSendSGE: defaultSGE, MaxRecvSGE: defaultSGE, MaxInline: defaultInline}
	mostCaps    = verbs.QPCap{MaxSendWR: maxWR, MaxRecvWR: maxWR, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: maxInline}
)

// stall is why the oldest send request waits.
type stall uint8

const (
	notStalled   stall = iota
	stallRecv          // the peer has no receive
	stallPeer          // the peer's queue pair takes nothing: it failed, or is gone
	stallSegment       // memory of the peer's that was not told of yet
	stallOwner         // the peer is doing it
	stallShare         // of the peer's shared receive queue it is not known yet whether it has a receive
)

// qp is a queue pair. Who posts a request carries it out, in the peer's memory, unless one before it waits.
type qp struct {
	dev            *device
	pd             *pd
	num            uint32
	sendCQ, recvCQ *cq
	sendNum        uint32 // their numbers on the link
	recvNum        uint32
	srq            *srq // nil: receives are its own
	lane           *lane
	caps           verbs.QPCap
	rnrTimer       uint8
	gone           chan struct{} // closed when Close is done
	made           leak.Mark
	polled         atomic.Uint64 // requests whose places are free, by completions that were polled

	// mu guards the send queue; both locks are held to change the state. Order: mu, rmu, a completion queue's.
	mu        sync.Mutex
	state     qpState
	conn      uint32 // of the connection whose peer knows this queue pair
	described bool
	remote    *remote // nil: not connected, or the peer's is no more
	depth     uint8   // READs and the like outstanding; 0: none may be posted
	rnrRetry  uint8
	sq        []sendWR // a power of two
	head      uint64   // oldest request not carried out
	tail      uint64
	now       sendWR // the request that is carried out as it is posted
	ring      struct{ recv, send bool }
	stalled   stall
	since     uint64 // the request that is stalled, of which the timer is
	waitsFor  uint64 // behind the request that last found no shared receive
	asks      uint16 // how often the owner had been asked then
	timer     *time.Timer
	until     time.Time // when it fires; zero: it is stopped
	src, dst  [][]byte
	accesses  []access
	stats     verbs.QPStats

	job   job    // what the peer has to do of the oldest request
	next  uint64 // behind a FLUSH: the first request that was not carried out before its turn
	early bool   // such a one is being

	rmu  sync.Mutex
	rq   recvQueue
	peer uint32      // number of the peer's queue pair; 0: not known yet
	over atomic.Bool // nothing of the peer's is taken any more

	service service
}

// sendWR is a send request.
type sendWR struct {
	id      uint64
	op      verbs.Opcode
	flags   verbs.SendFlags
	status  verbs.Status // what is wrong with it on this side
	imm     uint32       // or the key to invalidate
	length  uint32
	inlined bool
	inline  []byte
	sgl     []piece
	raddr   uint64
	rkey    uint32
	compare uint64
	swapAdd uint64
	early   bool // it was carried out before its turn, and status is the outcome

	flushLength uint32
	flushLevel  verbs.FlushLevel
	flushType   verbs.Access
}

// newQP makes a queue pair in the state INIT.
func (d *device) newQP(p *pd, attr *verbs.QPInitAttr) (*qp, error) {
	if attr.Type != verbs.RC {
		return nil, unsupported(attr.Type.String() + " queue pairs")
	}
	if attr.BlockMulticastLoopback {
		return nil, unsupported("multicast")
	}
	var shared *srq
	ok3 := true
	if attr.SRQ != nil {
		shared, ok3 = attr.SRQ.(*srq)
		ok3 = ok3 && shared.pd == p
	}
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	if !ok1 || !ok2 || !ok3 || !d.serves(scq.dev) || !d.serves(rcq.dev) || !d.serves(p.dev) {
		return nil, fmt.Errorf("shm: queue pair: queues and domain are not of one device: %w", syscall.EINVAL)
	}
	q := &qp{dev: d, pd: p, sendCQ: scq, recvCQ: rcq, srq: shared, rnrTimer: attr.MinRNRTimer & 31, gone: make(chan struct{})}
	if q.rnrTimer == 0 {
		q.rnrTimer = verbs.DefaultRNRTimer
	}
	var err error
	if q.caps, err = attr.Caps("shm", &defaultCaps, &mostCaps); err != nil {
		return nil, err
	}
	q.caps.MaxInline = max(q.caps.MaxInline, defaultInline)
	if err := q.acquire(); err != nil {
		return nil, err
	}
	q.made.Made("queue pair")
	return q, nil
}

// acquire counts the queue pair with all that it uses, and makes its ring.
func (q *qp) acquire() error {
	if !q.dev.tryRetain() {
		return fmt.Errorf("shm: queue pair: %w", net.ErrClosed)
	}
	undo := []func(){q.dev.release}
	fail := func(err error) error {
		for _, f := range slices.Backward(undo) {
			f()
		}
		return err
	}
	if err := q.pd.Use(); err != nil {
		return fail(err)
	}
	undo = append(undo, q.pd.Unuse)
	if err := q.pd.attach(q.dev); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { q.pd.detach(q.dev) })
	if q.srq != nil {
		var err error
		if q.lane, err = q.srq.use(q.dev); err != nil {
			return fail(err)
		}
		undo = append(undo, func() { q.srq.unuse(q.lane) })
	}
	if err := q.rq.init(q.dev, q.caps.MaxRecvWR, q.caps.MaxRecvSGE); err != nil {
		return fail(fmt.Errorf("shm: queue pair: %w", err))
	}
	undo = append(undo, func() { q.dev.rings.put(q.rq.block) })
	var err error
	if q.sendNum, err = q.sendCQ.seat(q.dev); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { q.sendCQ.unseat(q.dev) })
	if q.recvNum, err = q.recvCQ.seat(q.dev); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { q.recvCQ.unseat(q.dev) })
	if err := q.sendCQ.use(q.sources()...); err != nil {
		return fail(err)
	}
	undo = append(undo, func() { q.sendCQ.unuse(q.sources()...) })
	if err := q.recvCQ.use(q.sources()...); err != nil {
		return fail(err)
	}
	q.dev.addQP(q)
	return nil
}

// sources are what completions of the queue pair come from.
func (q *qp) sources() []source {
	if q.srq != nil {
		return []source{q, q.lane}
	}
	return []source{q}
}

// describe tells the peer of the queue pair. From then on the peer may use its ring.
func (q *qp) describe(conn uint32) queuePair {
	d := queuePair{
		Num: q.num, Domain: q.pd.num, SendCQ: q.sendNum, RecvCQ: q.recvNum, Ring: q.rq.describe(), RNRTimer: uint32(q.rnrTimer),
	}
	d.RecvMarks[0], d.SendMarks[0] = q.recvCQ.slotOf(q), q.sendCQ.slotOf(q)
	if q.srq != nil {
		d.Shared, d.SharedID = q.lane.rq.describe(), q.lane.id
		d.RecvMarks[1], d.SendMarks[1] = q.recvCQ.slotOf(q.lane), q.sendCQ.slotOf(q.lane)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateInit {
		q.rq.state.Store(ringOpen)
		q.conn, q.described = conn, true
	}
	return d
}

// connect takes the queue pair to RTS. On failure the remote one stays the caller's.
func (q *qp) connect(r *remote, depth, rnrRetry uint8) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rmu.Lock()
	defer q.rmu.Unlock()
	switch q.state {
	case stateInit:
	case stateClosed:
		return errClosedQP
	default:
		return fmt.Errorf("shm: queue pair is connected already or failed: %w", syscall.EISCONN)
	}
	q.state, q.remote, q.depth, q.rnrRetry = stateRTS, r, depth, rnrRetry
	q.caps.PathMTU = pathMTU
	q.peer = r.num
	q.wakePeer()
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

var (
	errClosedQP     = fmt.Errorf("shm: queue pair: %w", net.ErrClosed)
	errNotConnected = fmt.Errorf("shm: queue pair is not connected: %w", syscall.ENOTCONN)
)

// PostRecv implements [verbs.QP].
func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	if q.srq != nil {
		return 0, fmt.Errorf("shm: the queue pair receives from a shared queue: %w", syscall.EINVAL)
	}
	q.rmu.Lock()
	defer q.rmu.Unlock()
	for ; n < len(wrs); n++ {
		switch q.state {
		case stateClosed:
			return n, errClosedQP
		case stateErr:
			if len(wrs[n].SGL) > q.rq.maxSGE {
				return n, fmt.Errorf("shm: %d scatter entries, the limit is %d: %w", len(wrs[n].SGL), q.rq.maxSGE, syscall.EINVAL)
			}
			q.recvCQ.push(&verbs.WC{ID: wrs[n].ID, Status: verbs.WRFlushErr, Op: verbs.WCRecv, QPN: q.num}, nil, 0)
			continue
		}
		full, e := q.rq.post(q.pd, &wrs[n])
		if full || e != nil {
			err = e
			break
		}
	}
	if n > 0 && q.state < stateErr {
		q.rq.publish()
		q.wakePeer()
	}
	return n, err
}

// wakePeer tells the peer's queue pair that there are receives, if it waits for them. q.rmu is held.
func (q *qp) wakePeer() {
	if q.peer != 0 && q.rq.waiting() && q.dev.linked() {
		q.dev.link.tell(header{Kind: msgReceives, ID: q.peer})
	}
}

// pending implements source.
func (q *qp) pending() bool {
	return (q.rq.ready() || q.rq.fail.Load() != 0) && !q.over.Load()
}

// drain implements source.
func (q *qp) drain() {
	failed := q.rq.fail.Load() != 0 // first: what came before it is taken before it
	q.rmu.Lock()
	if q.state < stateErr {
		failed = q.takeResults() || failed
	}
	q.rmu.Unlock()
	if failed {
		q.fail()
	}
}

// takeResults turns what the peer has done with receives into completions. It tells whether
// the queue pair has to fail. q.rmu is held.
func (q *qp) takeResults() (failed bool) {
	for !failed {
		res, ok := q.rq.next()
		if !ok {
			break
		}
		if res.flags&resultInv != 0 && res.status == verbs.Success {
			q.pd.invalidated(res.imm)
		}
		wc := res.wc(q.num)
		q.recvCQ.push(&wc, nil, 0)
		failed = res.status != verbs.Success
	}
	return failed || q.rq.broken
}

// took is told of a receive of the shared queue that a message of the queue pair's peer has taken. It is false if nobody learns of it.
func (q *qp) took(res *result) bool {
	q.rmu.Lock()
	defer q.rmu.Unlock()
	if q.state == stateClosed {
		return false
	}
	if res.flags&resultInv != 0 && res.status == verbs.Success {
		q.pd.invalidated(res.imm)
	}
	wc := res.wc(q.num)
	if q.state == stateErr {
		wc = verbs.WC{ID: res.id, Status: verbs.WRFlushErr, Op: verbs.WCRecv, QPN: q.num}
	}
	q.recvCQ.push(&wc, nil, 0)
	return true
}

// fail moves the queue pair to the error state.
func (q *qp) fail() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failLocked(true)
}

// failLocked flushes everything. With results set, messages that have arrived complete first.
func (q *qp) failLocked(results bool) {
	if q.state >= stateErr {
		return
	}
	q.rmu.Lock()
	defer q.rmu.Unlock()
	if results && q.srq == nil && !q.over.Load() {
		_ = q.takeResults() // it fails already
	}
	q.stop(stateErr)
	for ; q.head != q.tail; q.head++ {
		e := q.at(q.head)
		q.sendCQ.push(&verbs.WC{ID: e.id, Status: verbs.WRFlushErr, Op: e.op.Completion(), QPN: q.num}, nil, 0)
	}
	q.sq = nil
	for at := q.rq.drained.Load(); at != q.rq.posted; at++ {
		id := q.rq.own[at&(q.rq.slots-1)].id
		q.recvCQ.push(&verbs.WC{ID: id, Status: verbs.WRFlushErr, Op: verbs.WCRecv, QPN: q.num}, nil, 0)
	}
}

// stop ends all activity. Both locks are held.
func (q *qp) stop(s qpState) {
	q.state = s
	q.over.Store(true)
	q.rq.state.Store(ringDead)
	q.calm()
}

// ToError implements [verbs.QP].
func (q *qp) ToError() error {
	if q.lane != nil {
		q.lane.drain()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == stateClosed {
		return errClosedQP
	}
	q.failLocked(true)
	return nil
}

// Close implements [verbs.QP].
func (q *qp) Close() error {
	q.mu.Lock()
	if q.state == stateClosed {
		q.mu.Unlock()
		<-q.gone // what Close promises holds for every caller
		return nil
	}
	q.rmu.Lock()
	q.stop(stateClosed)
	r := q.remote
	q.remote, q.sq, q.head, q.tail = nil, nil, 0, 0
	described, conn := q.described, q.conn
	q.rmu.Unlock()
	q.mu.Unlock()

	q.dev.removeQP(q)
	q.sendCQ.unuse(q.sources()...)
	q.recvCQ.unuse(q.sources()...)
	q.sendCQ.unseat(q.dev)
	q.recvCQ.unseat(q.dev)
	if r != nil {
		q.dev.link.dropRemote(r, q)
	}
	if described {
		q.dev.link.bye(dyingRing{id: conn}, dying{block: q.rq.block})
	} else {
		q.dev.rings.put(q.rq.block)
	}
	if q.srq != nil {
		q.srq.unuse(q.lane)
	}
	q.pd.detach(q.dev)
	q.pd.Unuse()
	q.made.Gone()
	close(q.gone)
	q.dev.release()
	return nil
}

// forget is told that the peer's queue pair is no more.
func (q *qp) forget() {
	q.mu.Lock()
	r := q.remote
	q.remote = nil
	q.mu.Unlock()
	if r != nil {
		q.dev.link.dropRemote(r, q)
	}
}
