package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// protocolErrors counts peers that did not speak rsockets version 1 or broke its rules.
var protocolErrors atomic.Uint64

// ProtocolErrors returns the number of peers, in this process, that spoke
// something else in their private data or on their ring.
func ProtocolErrors() uint64 { return protocolErrors.Load() }

// handler is a Conn as rc sees it.
type handler Conn

// HandleCompletions takes arrivals first, then what concerns sending.
func (h *handler) HandleCompletions(wcs []verbs.WC) {
	c := (*Conn)(h)
	var in arrivals
	in.take(c, wcs)
	if in.receives > 0 {
		if n, err := c.rc.PostReceives(in.receives); err == nil && n < in.receives {
			in.fail(syscall.ENOMEM)
		} else if err != nil {
			in.fail(err)
		}
	}
	if in.alive {
		c.keep.TouchAt(in.now)
	}
	if in.sends || in.updates || in.shut > 0 || in.gone > 0 || in.due || in.flushed || in.err != nil {
		c.takeSends(wcs, &in)
	}
	if in.wake {
		c.rd.Signal()
	}
	if in.err != nil {
		c.giveUp(in.err)
	}
}

// arrivals is what a batch of completions says about the receiving half.
type arrivals struct {
	now      int64
	receives int // to be posted now
	alive    bool
	wake     bool // the reader
	due      bool // space or credits may be given back
	sends    bool // there are completions of sends, and
	updates  bool // flow control
	shut     int  // the first SHUTDOWN: the how manieth of the batch, from 1; 0: none
	gone     int  // the first DISCONNECT, likewise
	flushed  bool // there are completions of requests that were flushed
	breach   bool // the peer broke the rules: what comes behind it counts for nothing
	err      error
}

// fail keeps the first cause. That a request was flushed is the consequence of another.
func (in *arrivals) fail(err error) {
	if in.err == nil {
		in.err = err
	}
}

func (in *arrivals) take(c *Conn, wcs []verbs.WC) {
	in.now = rc.Now()
	c.rx.mu.Lock()
	defer c.rx.mu.Unlock()
	for i := range wcs {
		wc := &wcs[i]
		in.alive = in.alive || wc.Status == verbs.Success
		switch {
		case wc.Status == verbs.WRFlushErr:
			in.flushed = true
		case in.breach && wc.ID&rc.RecvBit != 0:
		case wc.Status != verbs.Success && wc.ID&rc.RecvBit != 0:
			// Receives have no buffers: only a SEND's bytes can be too many for one.
			in.broke(fmt.Errorf("%w: a SEND (%w)", ErrProtocol, wc.Status))
		case wc.Status != verbs.Success:
			in.fail(c.statusError(wc.Status))
		case wc.ID&rc.RecvBit == 0:
			in.sends = true
		case c.rx.err == nil:
			c.rx.owed++
			in.broke(in.arrived(c, wc, i))
		}
	}
	// The others are posted with the next credit, before it is given.
	if c.rx.owed >= repostBatch {
		in.receives, c.rx.owed = c.rx.owed, 0
	}
	in.wake = in.wake || in.shut > 0 || in.gone > 0
	in.due = in.err == nil && !in.flushed && c.rx.err == nil && c.rx.due()
}

// broke takes a breach of the rules by the peer, if err is one.
func (in *arrivals) broke(err error) {
	if err != nil {
		in.fail(err)
		in.breach = true
	}
}

// arrived takes one message of the peer, completion i of the batch.
func (in *arrivals) arrived(c *Conn, wc *verbs.WC, i int) error {
	if wc.Op != verbs.WCRecvWithImm {
		return fmt.Errorf("%w: a SEND", ErrProtocol)
	}
	switch typ, v := parseImm(wc.Imm); typ {
	case immInternal:
	case immSGL:
		in.updates = true
	case immIOMap:
		// The peer counts it as a message.
		return c.rx.credit()
	case immCtrl:
		switch {
		case v == ctrlDisconnect && in.gone == 0:
			in.gone = i + 1
		case v == ctrlShutdown && in.shut == 0:
			in.shut = i + 1
		}
	default:
		before := c.rx.avail
		written := wc.ByteLen
		if c.rc.Messages() {
			written = v // nobody tells; memory that was never written is zero
		}
		err := c.rx.data(v, written, in.now)
		in.wake = in.wake || c.rx.avail > before
		return err
	}
	return nil
}

// endsBefore forgets the ends that came behind completion i.
func (in *arrivals) endsBefore(i int) {
	if in.shut > i {
		in.shut = 0
	}
	if in.gone > i {
		in.gone = 0
	}
}

// takeSends takes what concerns the sending half.
func (c *Conn) takeSends(wcs []verbs.WC, in *arrivals) {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.sends {
		t.completedAt = in.now
	}
	if in.sends || in.updates {
		updates := t.err == nil
		for i := range wcs {
			wc := &wcs[i]
			switch {
			case wc.Status != verbs.Success:
			case wc.ID&rc.RecvBit == 0:
				c.completed(wc.ID)
			case updates && wc.Op == verbs.WCRecvWithImm && wc.Imm>>immShift == immSGL:
				if err := c.updated(wc); err != nil {
					in.broke(err)
					in.endsBefore(i)
					updates = false
				}
			}
		}
	}
	if in.flushed {
		// The queue pair went to the error state. If no request of ours and no
		// message was the reason, the peer broke the connection.
		in.fail(syscall.ECONNRESET)
	}
	t.peerShut = t.peerShut || in.shut > 0
	t.peerGone = t.peerGone || in.gone > 0 && t.err == nil
	if in.shut > 0 || in.gone > 0 {
		c.endOfFile() // not seen before what the other half must know
	}
	if in.err != nil {
		if t.err == nil && errors.Is(in.err, ErrProtocol) {
			protocolErrors.Add(1)
			c.abort()
		}
		c.failLocked(in.err)
	}
	c.pump()
	if in.sends || in.updates {
		t.stride.news++
		t.stride.dry(t)
	}
	if t.ready() {
		c.wr.Signal()
	}
	c.closeChanged()
}

// updated takes an update of flow control.
func (c *Conn) updated(wc *verbs.WC) error {
	t := &c.tx
	_, v := parseImm(wc.Imm)
	entry, written := c.ctl.sgl(t.win.entry), wc.ByteLen
	d := parseDescriptor(entry, t.ownOrder)
	if c.rc.Messages() && d.length > 0 {
		clear(entry) // so that the next update shows whether there is a new one
		written = descriptorLen
	}
	switch written {
	case 0:
	case descriptorLen:
		if err := t.win.publish(d); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: update of %d bytes", ErrProtocol, wc.ByteLen)
	}
	t.win.setLimit(v)
	return nil
}

// HandleEvent takes an event of the connection manager.
func (h *handler) HandleEvent(ev verbs.Event) {
	c := (*Conn)(h)
	switch ev.Type {
	case verbs.EventEstablished:
		c.standing()
	case verbs.EventConnectError:
		c.giveUp(connectError(ev.Err))
	case verbs.EventDeviceRemoval:
		c.fail(syscall.ENODEV)
	case verbs.EventDisconnected:
		if ev.Err != nil {
			c.fail(syscall.ECONNRESET)
		}
		c.disconnected()
	}
}

// HandleFailure says that the completion queue is broken.
func (h *handler) HandleFailure(err error) { (*Conn)(h).fail(err) }

// Pending tells whether the sending half waits for something, and no writer for it.
func (h *handler) Pending() bool {
	t := &(*Conn)(h).tx
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending()
}

// disconnected takes a DREQ. Without DISCONNECT before it the peer's program has
// ended, or is C and exits: what librdmacm shows as end of file.
func (c *Conn) disconnected() {
	c.giveUp(syscall.ECONNRESET)
	c.tx.mu.Lock()
	c.tx.peerGone = c.tx.peerGone || c.tx.err == nil
	c.endOfFile()
	c.closeChanged()
	c.tx.mu.Unlock()
	c.rd.Signal()
	c.wr.Signal()
}

// endOfFile says that the peer sends no more, unless the connection failed before.
func (c *Conn) endOfFile() {
	c.rx.mu.Lock()
	if c.rx.err == nil {
		c.rx.eof = true
	}
	c.rx.mu.Unlock()
}

// fail ends the connection with an error.
func (c *Conn) fail(err error) {
	c.giveUp(err)
	c.tx.mu.Lock()
	c.failLocked(err)
	c.closeChanged()
	c.tx.mu.Unlock()
}

// failLocked is fail with tx.mu held. Only the first error counts.
func (c *Conn) failLocked(err error) {
	t := &c.tx
	c.rx.mu.Lock()
	if c.rx.err == nil && !c.rx.eof {
		c.rx.err = err
	}
	c.rx.mu.Unlock()
	if t.err == nil {
		t.err = err
		if !t.closing.posted {
			_ = c.rc.ToError() // it may be there already
		}
	}
	c.rd.Signal()
	c.wr.Signal()
}

// statusError is the errno of a completion that failed.
func (c *Conn) statusError(s verbs.Status) error {
	switch s {
	case verbs.LocLenErr: // of a message that was within what the connection had agreed on
		return fmt.Errorf("packets with %d bytes of data are too long for the way to the peer: %w",
			c.rc.QP().Cap().PathMTU, syscall.EMSGSIZE)
	case verbs.RetryExcErr, verbs.RNRRetryExcErr, verbs.RespTimeoutErr:
		return syscall.ETIMEDOUT
	case verbs.RemAccessErr, verbs.RemInvReqErr, verbs.RemOpErr, verbs.RemAbortErr, verbs.BadRespErr:
		return syscall.ECONNRESET
	}
	return fmt.Errorf("%w (%w)", syscall.EIO, s)
}
