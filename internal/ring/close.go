package ring

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	defaultLinger = 2 * time.Second

	// backgroundTime is how long undelivered data is kept after Close has returned.
	backgroundTime = 15 * time.Second

	// holdTime is how long the queue pair lives on after DISCONNECT was acknowledged: a C peer
	// may be sending its own, and waits for the acknowledgement without limit.
	holdTime = time.Second

	// abortTime is how long an abort may take to reach the peer.
	abortTime = time.Second
)

// closing is the state of a connection after Close, guarded by tx.mu.
type closing struct {
	began    bool
	detached bool // Close has returned; what follows is the timer's and the handler's
	holding  bool // DISCONNECT was acknowledged
	aborted  bool
	posted   bool          // the write that aborts
	changed  chan struct{} // capacity 1; told when flushed
	timer    *time.Timer
	ended    bool // teardown is under way
}

// flushed tells whether Close has nothing to wait for any more.
func (t *transmitter) flushed() bool {
	return t.over() || t.endAcked == endDisconnect
}

// over tells whether nothing will be said any more.
func (t *transmitter) over() bool { return t.err != nil || t.agreed() }

// agreed tells whether neither side has anything to say any more.
func (t *transmitter) agreed() bool { return t.peerGone || t.crossed() && t.endAcked == endShutdown }

// open returns net.ErrClosed after Close.
func (c *Conn) open() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return nil
}

// CloseWrite ends the stream to the peer, which reads what was written and then io.EOF.
func (c *Conn) CloseWrite() error {
	if err := c.open(); err != nil {
		return err
	}
	t := &c.tx
	t.mu.Lock()
	t.wclosed = true
	t.end = max(t.end, endShutdown)
	if t.rclosed {
		t.end = endDisconnect
	}
	c.pump()
	c.unlockTx()
	c.wr.Signal()
	return nil
}

// SetLinger says how long Close waits for what was written to be acknowledged:
// negative the default of 2 s, 0 not at all, and the peer sees a reset. What is
// not delivered by then is delivered in the background, for a bounded time.
func (c *Conn) SetLinger(sec int) error {
	if err := c.open(); err != nil {
		return err
	}
	d := time.Duration(sec) * time.Second
	if sec < 0 {
		d = defaultLinger
	}
	c.linger.Store(int64(d))
	return nil
}

// Close delivers what was written and closes the connection.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	background.add()
	c.rd.Close(net.ErrClosed)
	c.wr.Close(net.ErrClosed)

	// What the peer sends is dropped from now on, so that it gets its own data off and closes.
	c.rx.mu.Lock()
	c.rx.sink = true
	c.rx.drop()
	c.rx.mu.Unlock()

	t := &c.tx
	changed := make(chan struct{}, 1)
	linger := time.Duration(c.linger.Load())
	t.mu.Lock()
	t.closing.began = true
	t.closing.changed = changed
	t.end = endDisconnect
	if linger == 0 {
		c.abort()
	} else {
		c.pump()
	}
	wait := linger > 0 && !t.flushed()
	c.unlockTx()
	if wait {
		timer := time.NewTimer(linger)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}

	t.mu.Lock()
	over := t.over()
	t.closing.detached = true
	switch {
	case over:
		t.closing.ended = true
	case t.closing.aborted:
		t.closing.timer = time.AfterFunc(abortTime, c.timeUp)
	case t.flushed():
		t.closing.holding = true
		t.closing.timer = time.AfterFunc(holdTime, c.timeUp)
	default:
		t.closing.timer = time.AfterFunc(backgroundTime, c.timeUp)
	}
	t.mu.Unlock()
	if over {
		c.end()
	}
	return nil
}

// closeChanged goes on with closing after something happened. tx.mu is held.
func (c *Conn) closeChanged() {
	t := &c.tx
	k := &t.closing
	switch {
	case !k.began || k.ended || !t.flushed():
	case !k.detached:
		select {
		case k.changed <- struct{}{}:
		default:
		}
	case t.over():
		k.ended = true
		k.timer.Stop()
		go c.end() // a handler may not close what called it
	case !k.holding && !k.aborted:
		k.holding = true
		k.timer.Reset(holdTime)
	}
}

// timeUp ends a phase of closing that has taken its time.
func (c *Conn) timeUp() {
	t := &c.tx
	t.mu.Lock()
	k := &t.closing
	if k.ended {
		t.mu.Unlock()
		return
	}
	if !k.holding && !k.aborted && !t.over() {
		// The peer must not take what it has got for everything.
		c.abort()
		k.timer.Reset(abortTime)
		t.mu.Unlock()
		return
	}
	k.ended = true
	t.mu.Unlock()
	c.end()
}

// abort makes the peer see a reset: by a write to memory that is not the peer's
// to be written, which breaks the connection at both ends (IBTA 9.7.5.2.4).
// rsockets has no message for it, and a DREQ alone looks like an orderly end.
func (c *Conn) abort() {
	t := &c.tx
	if t.closing.aborted {
		return
	}
	t.closing.aborted = true
	if !t.open || t.err != nil || t.peerGone || t.q.Free() == 0 {
		return
	}
	b := c.ctl.block
	t.q.Push(rc.Send{
		Op: verbs.OpWrite, Flags: verbs.Signaled, Addr: b.Addr() + ctlPayload, LKey: b.LKey(), Length: 1,
		RemoteAddr: t.peerSGL.addr ^ 1<<63, RKey: t.peerSGL.key,
	}, sent{kind: sentAbort})
	err := t.q.Flush()
	t.closing.posted = err == nil
	if err != nil {
		c.failLocked(err)
	}
}

// end tears down and tells Drain.
func (c *Conn) end() {
	defer background.done()
	c.teardown()
}

// teardown releases everything. Not to be called from a handler.
func (c *Conn) teardown() {
	c.once.Do(func() {
		c.keep.Stop()
		c.rd.Close(net.ErrClosed)
		c.wr.Close(net.ErrClosed)
		c.tx.mu.Lock()
		broken := c.tx.open && !c.tx.agreed() && c.tx.endAcked != endDisconnect
		c.tx.open = false
		c.tx.stride.stop()
		c.tx.mu.Unlock()
		if broken {
			c.rc.Abort() // the peer must not take what it has got for everything
		}
		freed(c.rc.Close())
		// Wait for a Read or Write on its way out.
		c.rmu.Lock()
		c.wmu.Lock()
		c.freeMemory()
		c.wmu.Unlock()
		c.rmu.Unlock()
		c.made.Gone()
		c.unref()
	})
}

func (c *Conn) freeMemory() {
	c.rx.mu.Lock()
	segs := c.rx.takeAll()
	c.rx.mu.Unlock()
	c.putSegments(segs)

	t := &c.tx
	dev := c.rc.Device()
	t.mu.Lock()
	defer t.mu.Unlock()
	for ch := t.all; ch != nil; ch = ch.after {
		dev.Put(ch.block)
	}
	t.all, t.head, t.tail, t.cur = nil, nil, nil, nil
	switch {
	case c.ctl.mr != nil:
		freed(dev.PutRegistered(c.ctl.mr, c.ctl.block))
	case c.ctl.block.Valid():
		dev.Put(c.ctl.block)
	}
}

// background counts connections that are closing.
var background closers

type closers struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0; nil when nobody waits
}

func (b *closers) add() {
	b.mu.Lock()
	b.n++
	b.mu.Unlock()
}

func (b *closers) done() {
	b.mu.Lock()
	b.n--
	if b.n == 0 && b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
	b.mu.Unlock()
}

// Drain waits until every closed connection of this process has delivered its
// data or given up, or ctx ends. A program does so before it exits: its
// transport dies with it.
func Drain(ctx context.Context) error {
	b := &background
	b.mu.Lock()
	if b.n == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.idle == nil {
		b.idle = make(chan struct{})
	}
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
