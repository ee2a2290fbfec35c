package rpma

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Conn is a connection. Its methods are safe for concurrent use.
type Conn struct {
	peer    *Peer
	id      verbs.CMID
	qp      verbs.QP
	poller  rc.Poller
	bell    bell
	cq      CQ
	rcq     *CQ  // nil: none of its own
	srq     *SRQ // nil: receives of its own
	recvs   recvQueue
	private []byte
	remote  netip.AddrPort

	native bool // FLUSH and ATOMIC WRITE are the devices'; set before anything is posted
	choose bool // they are, if the peer has them
	direct atomic.Bool
	maxMsg uint64

	scratch scratch

	sender
	keep rc.KeepAlive

	evMu     sync.Mutex // guards stood, and sending on events
	stood    bool
	standing chan error // whether it stands; capacity 1
	events   chan Event // capacity 2, more never come
	done     chan struct{}
	finished sync.Once
	err      error // why done is closed
	ended    atomic.Bool
	leaving  atomic.Bool // Disconnect was called
	left     atomic.Bool // the peer has disconnected
	waning   atomic.Bool // requests were flushed, and a timer runs
	shut     atomic.Bool // Close is done with what completes
	turn     atomic.Uint32
	ready    func() bool // anything

	closing  sync.Once
	closeErr error
	made     leak.Mark
}

// minRNRTimer is the code for 0.64 ms (IBTA 9.7.5.2.8). rdma_cm's default of 655 ms is a long time for a peer whose message
// met no receive.
const minRNRTimer = 12

// inlineBytes is what an atomic write needs.
const inlineBytes = 8

// newConn makes all that a connection needs before its peer is asked. On failure id stays the caller's.
func newConn(p *Peer, id verbs.CMID, cfg *ConnConfig) (*Conn, error) {
	const op = "connection"
	if cfg == nil {
		cfg = &ConnConfig{}
	}
	sq, rq := size(cfg.SQSize, defaultQueue), size(cfg.RQSize, defaultQueue)
	srq := cfg.SRQ
	switch {
	case cfg.CQSize < 0:
		return nil, invalid(op, "no completion queue: what completes needs one")
	case srq != nil && srq.peer != p:
		return nil, invalid(op, "the shared receive queue belongs to another Peer")
	case srq != nil && srq.own && cfg.SharedChannel:
		return nil, invalid(op, "a shared channel, and a shared receive queue with a completion queue of its own")
	case cfg.Native == NativeAlways && !p.native:
		return nil, &Error{Op: op, Code: ErrNotSupported, Err: errNotNative(p.name)}
	}
	c := &Conn{
		peer: p, id: id, srq: srq, maxMsg: p.maxMsg, native: cfg.Native == NativeAlways,
		choose:   cfg.Native == NativeAuto && p.native,
		standing: make(chan error, 1), events: make(chan Event, 2), done: make(chan struct{}),
		remote: id.RemoteAddr(),
	}
	if err := p.begin(op, op); err != nil {
		return nil, err
	}
	if srq != nil {
		if err := srq.hold(); err != nil {
			p.end(op)
			return nil, opError(op, err)
		}
	}
	if err := c.make(cfg, sq, rq); err != nil {
		if srq != nil {
			srq.release(nil)
		}
		p.end(op)
		return nil, opError(op, err)
	}
	if srq != nil {
		srq.add(c)
	}
	c.made.Made("rpma.Conn")
	return c, nil
}

// make makes the queues.
func (c *Conn) make(cfg *ConnConfig, sq, rq int) (err error) {
	depth := sq + probes
	rcq := cfg.RCQSize > 0
	switch {
	case c.srq == nil:
		depth += rq
	case c.srq.own:
		rcq = false
	default:
		depth += len(c.srq.q.ids)
	}
	c.bell.poller = &c.poller
	c.ready = c.anything
	c.initCQ(&c.cq, cfg.SharedChannel)
	if rcq {
		c.rcq = new(CQ)
		c.initCQ(c.rcq, cfg.SharedChannel)
	}
	dev := c.peer.dev
	if err := c.poller.Open(dev.Dev(), max(depth, size(cfg.CQSize, defaultQueue)), (*handler)(c), 0); err != nil {
		return err
	}
	attr := &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: c.poller.CQ(), RecvCQ: c.poller.CQ(),
		MaxSendWR: sq + probes, MaxRecvWR: max(rq, 1), MaxSendSGE: 1, MaxRecvSGE: 1,
		MaxInline: inlineBytes, MinRNRTimer: minRNRTimer,
	}
	if c.srq != nil {
		attr.SRQ = c.srq.srq
		if c.srq.own {
			attr.RecvCQ = c.srq.poller.CQ()
		}
	}
	if c.qp, err = c.id.CreateQP(dev.PD(), attr); err != nil {
		_ = c.poller.CQ().Close() // nothing uses it
		return err
	}
	c.sender.init(sq)
	if err := c.scratch.init(c.peer, c.qp.Cap().MaxInline, len(c.slots)); err != nil {
		_, _ = c.qp.Close(), c.poller.CQ().Close()
		return err
	}
	if c.srq == nil {
		c.recvs.init(c.peer, rq)
		c.recvs.open(c.qp)
	}
	idle := cfg.KeepAlive
	if idle == 0 {
		idle = defaultKeep
	}
	c.keep.Init((*kept)(c), net.KeepAliveConfig{Enable: idle > 0, Idle: idle, Interval: idle, Count: keepCount})
	c.id.SetHandler(c.poller.Event)
	return nil
}

func (c *Conn) initCQ(q *CQ, shared bool) {
	q.shared = shared
	q.over, q.closed, q.ended = c.idle, c.shut.Load, c.Err
	q.polled = c.polled
	q.init(&c.bell)
}

// recvCQ is where receives complete that the connection's queue tells of.
func (c *Conn) recvCQ() *CQ {
	if c.rcq != nil {
		return c.rcq
	}
	return &c.cq
}

// receives is where the receives come from whose completions the connection's queue has.
func (c *Conn) receives() *recvQueue {
	if c.srq != nil {
		return &c.srq.q
	}
	return &c.recvs
}

// idle tells whether nothing will complete any more.
func (c *Conn) idle() bool {
	if !c.ended.Load() {
		return false
	}
	if c.shut.Load() {
		return true
	}
	c.mu.Lock()
	out := c.tail != c.head
	c.mu.Unlock()
	return !out && (c.srq != nil || c.recvs.posted() == 0)
}

// polled is told that completions have reached their user.
func (c *Conn) polled(sends, recvs int) {
	if sends > 0 {
		c.sendsPolled(sends)
	}
	if recvs > 0 {
		c.receives().polled(recvs)
	}
}

// handler is a connection as what its poller tells.
type handler Conn

// HandleCompletions implements [rc.Handler].
func (h *handler) HandleCompletions(wcs []verbs.WC) {
	c := (*Conn)(h)
	var failed error
	alive, flushed := false, false
	for i := 0; i < len(wcs); {
		wc := &wcs[i]
		if wc.Status == verbs.Success {
			alive = true
		} else if wc.Status == verbs.WRFlushErr {
			flushed = true // the consequence of something else
		} else if failed == nil {
			failed = c.failure(wc.Status, wc.VendorErr)
		}
		if wc.ID&recvBit == 0 {
			n := 1
			for i+n < len(wcs) && wcs[i+n].ID&recvBit == 0 && wcs[i+n].Status == verbs.Success {
				n++
			}
			c.sent(wcs[i : i+n])
			i += n
			continue
		}
		var done Completion
		if c.receives().complete(wc, &done) {
			c.recvCQ().push(&done)
		}
		i++
	}
	if alive {
		c.keep.TouchAt(c.poller.Now())
	}
	c.failed(failed, flushed)
	c.bell.ring()
}

// failed is told, with each batch of completions, whether a request has failed or some were flushed.
func (c *Conn) failed(err error, flushed bool) {
	switch {
	case c.left.Load():
		if err != nil || c.quietSends() {
			c.finish(EventClosed, io.EOF)
		}
	case err != nil:
		c.finish(EventLost, err)
	case flushed:
		c.flushed()
	}
}

// failure is the error of a connection of which a request failed.
func (c *Conn) failure(s verbs.Status, vendor uint32) error {
	return &Error{Op: "connection", Code: ErrProvider, Err: &CompletionError{Status: Status(s), QPNum: c.qp.Num(), VendorErr: vendor}}
}

// flushTime is how long a queue pair may be in the error state before word comes of why. The responder's half
// of it fails with no other sign than that, and the peer need not say anything.
const flushTime = 100 * time.Millisecond

// flushed is told that requests were flushed.
func (c *Conn) flushed() {
	if c.ended.Load() || c.leaving.Load() || c.waning.Swap(true) {
		return
	}
	time.AfterFunc(flushTime, func() { c.finish(EventLost, c.failure(verbs.WRFlushErr, 0)) })
}

// HandleFailure implements [rc.Handler].
func (h *handler) HandleFailure(err error) {
	c := (*Conn)(h)
	c.stand(err)
	c.finish(EventLost, opError("connection", err))
	c.flush()
	c.bell.ring()
}

// Pending implements [rc.Handler].
func (h *handler) Pending() bool { return h.probing.Load() }

// flush ends everything that the device will not complete any more.
func (c *Conn) flush() {
	c.flushSends()
	if c.srq == nil {
		c.recvs.flush(c.qp.Num(), c.recvCQ().push)
	}
}

// CQ is where operations complete, and receives that do so nowhere else.
func (c *Conn) CQ() *CQ { return &c.cq }

// RecvCQ is where receives complete; nil if it is the queue of [Conn.CQ] or the shared receive queue's.
func (c *Conn) RecvCQ() *CQ { return c.rcq }

// Wait waits for completions in either queue of a connection with a shared channel, and tells where there are some,
// and whether that is RecvCQ. Its errors are those of [CQ.Wait].
func (c *Conn) Wait(ctx context.Context) (cq *CQ, recv bool, err error) {
	const op = "wait"
	if !c.cq.shared {
		return nil, false, &Error{Op: op, Code: ErrNotSharedChannel}
	}
	queues := [2]*CQ{&c.cq, c.rcq}
	for {
		// Neither keeps the other waiting.
		first := c.turn.Add(1)
		for i := range uint32(2) {
			if q := queues[(first+i)%2]; q != nil && q.n.Load() > 0 {
				return q, q == c.rcq, nil
			}
		}
		if c.idle() {
			if c.either() {
				continue
			}
			return nil, false, &Error{Op: op, Code: ErrNoCompletion, Err: c.Err()}
		}
		if err := c.bell.wait(ctx, op, c.ready); err != nil {
			return nil, false, err
		}
	}
}

func (c *Conn) either() bool { return c.cq.n.Load() > 0 || c.rcq != nil && c.rcq.n.Load() > 0 }

func (c *Conn) anything() bool { return c.either() || c.idle() }

// PostRecv posts a receive. dst, or a zero Local for messages without data, is not to be read before the receive has
// completed, and id comes back with its completion.
func (c *Conn) PostRecv(dst Local, id uint64) error {
	_, err := c.PostRecvs(Recv{dst, id})
	return err
}

// PostRecvs posts receives in order, as many as there is room for, in one batch. n of them were taken; with n < len(recvs) the
// error is [ErrQueueFull], or is about what was not taken. A receive that makes no sense is found before any is posted.
func (c *Conn) PostRecvs(recvs ...Recv) (n int, err error) {
	if c.srq != nil {
		return 0, &Error{Op: "recv", Code: ErrProvider, Err: errShared}
	}
	return c.recvs.post(recvs...)
}

// PrivateData is what the peer said when it connected or accepted, nil if nothing can be said that way. On InfiniBand and RoCE it is padded with zeros, to 56 bytes of one
// that connected, to 196 of one that accepted. Whoever is on the way can read and change it.
func (c *Conn) PrivateData() []byte { return slices.Clone(c.private) }

// ApplyPeerConfig takes what the peer's program has said of its host. Until then, and unless it says DirectWriteToPMem, a
// [Persistent] flush is refused with [ErrNotSupported].
func (c *Conn) ApplyPeerConfig(pc PeerConfig) { c.direct.Store(pc.DirectWriteToPMem) }

// QPNum is the number of this side's queue pair, which completions carry.
func (c *Conn) QPNum() uint32 { return c.qp.Num() }

// Native tells whether flushes and atomic writes are done by the devices, and not emulated.
func (c *Conn) Native() bool { return c.native }

// LocalAddr is the address of this end, a [*net.TCPAddr]: ports are those of rdma_cm's TCP port space, which has nothing else to
// do with TCP.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.id.LocalAddr()) }

// RemoteAddr is the address of the peer, likewise.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// Disconnect ends the connection and tells the peer, whose answer closes Done. What is outstanding is
// flushed. Doing it twice, or after the peer, is no error.
func (c *Conn) Disconnect() error {
	if c.ended.Load() {
		return nil
	}
	c.leaving.Store(true)
	return opError("disconnect", c.id.Disconnect())
}

// Close disconnects, if need be, and gives everything up, which takes no time: it does not wait for the peer. What is outstanding is
// flushed; what has completed can be polled. Closing twice is no error.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closeErr = opError("close", c.close()) })
	return c.closeErr
}

func (c *Conn) close() error {
	c.keep.Stop()
	c.leaving.Store(true)
	c.stand(net.ErrClosed)
	c.recvs.close()
	c.closeSends()
	// An error of these means that there is nothing to disconnect or to flush.
	_, _ = c.id.Disconnect(), c.qp.ToError()
	c.poller.Progress()
	c.poller.Stop()
	c.sweep()
	c.finish(EventClosed, net.ErrClosed)
	err := c.qp.Close()
	c.sweep()
	c.flush()
	c.shut.Store(true)
	c.bell.ring()
	c.bell.close()
	if e := c.poller.CQ().Close(); err == nil {
		err = e
	}
	if e := c.id.Close(); err == nil {
		err = e
	}
	if e := c.scratch.free(c.peer); err == nil {
		err = e
	}
	if c.srq != nil {
		c.srq.release(c)
	}
	c.made.Gone()
	c.peer.end("connection")
	return err
}

// sweep takes what has completed after the last poll. Nobody polls any more.
func (c *Conn) sweep() {
	var wcs [16]verbs.WC
	for {
		n, err := c.poller.CQ().Poll(wcs[:])
		if n > 0 {
			(*handler)(c).HandleCompletions(wcs[:n])
		}
		if n == 0 || err != nil {
			return
		}
	}
}
