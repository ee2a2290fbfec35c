package rping

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// link is a connection with what both ends have: room for messages, one of which is under way at a time, and memory to ping with.
type link struct {
	conn    *rc.Conn
	control region // one message out, then the receives
	regions []region
	side    *rc.Side

	mu          sync.Mutex
	has         func() bool // what the one who waits waits for
	sent        bool        // the request that was posted has completed
	messages    []uint64    // receives that have completed, oldest first
	sizes       []uint32
	established bool
	err         error // why nothing comes any more
}

// region is memory to ping with.
type region struct {
	verbs.MR
	block rc.Block
}

const (
	receives = 4 // posted; the protocol has one outstanding at a time

	// minRNRTimer is the code for 0.64 ms (IBTA 9.7.5.2.8).
	minRNRTimer = 12
)

// connParam is rping's: a READ at a time each way.
var connParam = verbs.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}

// errDisconnected is the orderly end of a connection.
var errDisconnected = fmt.Errorf("the peer has disconnected: %w", syscall.ECONNRESET)

// newLink makes the queues of a connection on id, which it owns, and room for size bytes of each of the accesses.
func newLink(id verbs.CMID, size int, accesses ...verbs.Access) (l *link, err error) {
	l = &link{}
	l.side = rc.NewSide(l.ready)
	l.conn, err = rc.New(id, &rc.Config{Handler: l, SendWR: 4, RecvWR: receives, MinRNRTimer: minRNRTimer})
	if err != nil {
		_ = id.Close() // the first error says more
		return nil, err
	}
	if err := l.prepare(size, accesses); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) prepare(size int, accesses []verbs.Access) (err error) {
	dev := l.conn.Device()
	if l.control, err = newRegion(dev, messageSize*(1+receives), verbs.LocalWrite); err != nil {
		return err
	}
	for _, access := range accesses {
		r, err := newRegion(dev, size, access)
		if err != nil {
			return err
		}
		l.regions = append(l.regions, r)
	}
	for i := range uint64(receives) {
		if err := l.postReceive(i); err != nil {
			return err
		}
	}
	return nil
}

func newRegion(dev *rc.Device, size int, access verbs.Access) (r region, err error) {
	if r.block, err = dev.Get(size, true); err != nil {
		return r, err
	}
	if r.MR, err = dev.PD().RegMR(r.block.Bytes()[:size], access); err != nil {
		dev.Put(r.block)
	}
	return r, err
}

// slot is where receive i puts its message.
func (l *link) slot(i uint64) int { return messageSize * int(1+i) }

func (l *link) postReceive(i uint64) error {
	sge := verbs.SGE{Addr: l.control.Addr() + uint64(l.slot(i)), Length: messageSize, LKey: l.control.LKey()}
	n, err := l.conn.QP().PostRecv([]verbs.RecvWR{{ID: rc.RecvBit | i, SGL: []verbs.SGE{sge}}})
	if err == nil && n != 1 {
		err = fmt.Errorf("no room for a receive: %w", syscall.ENOMEM)
	}
	return err
}

// HandleCompletions implements [rc.Handler].
func (l *link) HandleCompletions(wcs []verbs.WC) {
	l.mu.Lock()
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.Success:
			if l.err == nil {
				l.err = failure(wc)
			}
		case wc.ID&rc.RecvBit != 0:
			l.messages = append(l.messages, wc.ID&^rc.RecvBit)
			l.sizes = append(l.sizes, wc.ByteLen)
		default:
			l.sent = true
		}
	}
	l.mu.Unlock()
	l.side.Signal()
}

// failure tells what the status of a request means.
func failure(wc *verbs.WC) error {
	switch wc.Status {
	case verbs.WRFlushErr:
		return errDisconnected
	case verbs.RetryExcErr:
		return fmt.Errorf("the peer does not answer any more (%w): %w", wc.Status, syscall.ETIMEDOUT)
	}
	return wc.Status
}

// HandleEvent implements [rc.Handler].
func (l *link) HandleEvent(ev verbs.Event) {
	l.mu.Lock()
	switch ev.Type {
	case verbs.EventEstablished:
		l.established = true
	case verbs.EventDisconnected:
		l.fail(errDisconnected)
	case verbs.EventConnectError:
		l.fail(fmt.Errorf("the connection did not come to stand: %w", ev.Err))
	case verbs.EventDeviceRemoval:
		l.fail(fmt.Errorf("the device was removed: %w", syscall.ENODEV))
	case verbs.EventAddrChange, verbs.EventMulticastError: // nothing to do with this connection's data
	}
	l.mu.Unlock()
	l.side.Signal()
}

// fail keeps the first reason, but for an orderly end that shows as requests that were flushed.
func (l *link) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// HandleFailure implements [rc.Handler].
func (l *link) HandleFailure(err error) {
	l.mu.Lock()
	l.fail(err)
	l.mu.Unlock()
	l.side.Signal()
}

// Pending implements [rc.Handler].
func (l *link) Pending() bool { return true }

func (l *link) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || l.has != nil && l.has()
}

// wait waits until has is true, or nothing comes any more, or ctx ends. Then it calls take; both are called with the lock held.
func (l *link) wait(ctx context.Context, has func() bool, take func()) error {
	l.side.SetDone(ctx.Done())
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.has = has; ; {
		switch {
		case has():
			take()
			return nil
		case l.err != nil:
			return l.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		l.mu.Unlock()
		err := l.conn.Wait(l.side)
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// stands waits until the passive side's connection does. A message may come before it is said to.
func (l *link) stands(ctx context.Context) error {
	return l.wait(ctx, func() bool { return l.established || len(l.messages) > 0 }, func() {})
}

// do posts a request and waits until it is done.
func (l *link) do(ctx context.Context, wr verbs.SendWR) error {
	wr.Flags = verbs.Signaled
	n, err := l.conn.QP().PostSend([]verbs.SendWR{wr})
	if err == nil && n != 1 {
		err = fmt.Errorf("no room for a request: %w", syscall.ENOMEM)
	}
	if err == nil {
		err = l.wait(ctx, func() bool { return l.sent }, func() { l.sent = false })
	}
	if err != nil {
		return fmt.Errorf("%v: %w", wr.Op, err)
	}
	return nil
}

// send sends one message.
func (l *link) send(ctx context.Context, b buffer) error {
	b.put(l.control.Bytes()[:messageSize])
	return l.do(ctx, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: l.control.Addr(), Length: messageSize, LKey: l.control.LKey()}}})
}

// receive waits for a message and copies it into msg.
func (l *link) receive(ctx context.Context, msg *[messageSize]byte) (size int, err error) {
	var i uint64
	err = l.wait(ctx, func() bool { return len(l.messages) > 0 }, func() {
		i, size = l.messages[0], int(l.sizes[0])
		l.messages, l.sizes = l.messages[1:], l.sizes[1:]
	})
	if err != nil {
		return 0, err
	}
	copy(msg[:], l.control.Bytes()[l.slot(i):])
	return size, l.postReceive(i)
}

// device names what the connection runs on.
func (l *link) device() string { return l.conn.Device().Name() }

// close disconnects.
func (l *link) close() {
	_ = l.conn.Close() // there is nobody to tell
	l.side.Close(syscall.ECANCELED)
	dev := l.conn.Device()
	for _, r := range append(l.regions, l.control) {
		if r.MR != nil {
			_ = dev.PutRegistered(r.MR, r.block) // the device is gone
		}
	}
	_ = l.conn.Release()
}
