package rpma

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// errClosed is the error of what this side has closed.
var errClosed = net.ErrClosed

// Event tells what happened to a connection. The values are librpma's.
type Event int

// Events.
const (
	EventUndefined   Event = iota - 1
	EventEstablished       // the connection stands
	EventClosed            // one of the two sides has ended it
	EventLost              // it failed, or the device is gone
	EventRejected          // the peer has refused it: an error of Connect, a *RejectError, says so here
	EventUnreachable       // the peer does not answer: an error of Connect, ETIMEDOUT, says so here
)

func (e Event) String() string {
	switch e {
	case EventUndefined:
		return "undefined"
	case EventEstablished:
		return "established"
	case EventClosed:
		return "closed"
	case EventLost:
		return "lost"
	case EventRejected:
		return "rejected"
	case EventUnreachable:
		return "unreachable"
	}
	return "Event(" + strconv.Itoa(int(e)) + ")"
}

// EventOf tells which event an error of [ConnReq.Connect] or [Peer.Dial] is in librpma; EventUndefined if it is none.
func EventOf(err error) Event {
	var rej *RejectError
	switch {
	case err == nil:
		return EventEstablished
	case errors.As(err, &rej):
		return EventRejected
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return EventUndefined
	case errors.Is(err, syscall.ETIMEDOUT):
		return EventUnreachable
	case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ENODEV):
		return EventLost
	}
	return EventUndefined
}

// NextEvent waits for what happens to the connection next: EventEstablished, then EventClosed or EventLost. It is a view only: the library has
// answered the peer already. After the last event, or when ctx ends, it fails with [ErrNoEvent].
func (c *Conn) NextEvent(ctx context.Context) (Event, error) {
	const op = "event"
	select {
	case ev, ok := <-c.events:
		if !ok {
			return EventUndefined, &Error{Op: op, Code: ErrNoEvent, Err: c.Err()}
		}
		return ev, nil
	default:
	}
	select {
	case ev, ok := <-c.events:
		if !ok {
			return EventUndefined, &Error{Op: op, Code: ErrNoEvent, Err: c.Err()}
		}
		return ev, nil
	case <-ctx.Done():
		return EventUndefined, waitError(op, ErrNoEvent, ctx)
	}
}

// Done is closed when the connection is over.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err tells why the connection is over: io.EOF if the peer has ended it, net.ErrClosed if this side has, else an [*Error]. It is nil
// until Done is closed.
func (c *Conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// HandleEvent implements [rc.Handler].
func (h *handler) HandleEvent(ev verbs.Event) {
	c := (*Conn)(h)
	switch ev.Type {
	case verbs.EventEstablished:
		c.stand(nil)
	case verbs.EventConnectError:
		c.stand(connectError(ev.Err))
	case verbs.EventDisconnected:
		if c.stand(syscall.ECONNABORTED) {
			return // it never stood; Connect tells
		}
		switch {
		case c.leaving.Load():
			c.finish(EventClosed, net.ErrClosed)
		case ev.Err != nil:
			c.finish(EventClosed, opError("connection", ev.Err))
		default:
			c.peerLeft()
		}
	case verbs.EventDeviceRemoval:
		if !c.stand(syscall.ENODEV) {
			c.finish(EventLost, opError("connection", syscall.ENODEV))
		}
	}
}

// lastWord is how long the acknowledgements of a peer that has disconnected are waited for. What it has received it has
// acknowledged, but not all networks keep that before its DREQ.
const lastWord = 100 * time.Millisecond

// peerLeft ends the connection from the peer's side, once what is outstanding has completed.
func (c *Conn) peerLeft() {
	c.left.Store(true)
	if c.quietSends() {
		c.finish(EventClosed, io.EOF)
		return
	}
	time.AfterFunc(lastWord, func() { c.finish(EventClosed, io.EOF) })
}

// quietSends tells whether no operation is on its way.
func (c *Conn) quietSends() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outstanding() == 0
}

// connectError is the error of a passive side that did not come to stand.
func connectError(err error) error {
	if err == nil {
		return syscall.ECONNABORTED
	}
	return err
}

// stand tells who waits in Connect whether the connection stands, once. It returns whether this was the first word.
func (c *Conn) stand(err error) (first bool) {
	c.evMu.Lock()
	defer c.evMu.Unlock()
	if c.stood {
		return false
	}
	c.stood = true
	c.standing <- err
	if err == nil {
		c.events <- EventEstablished
	}
	return true
}

// finish ends the connection, once. Everything outstanding is flushed, and the peer is told unless it knows.
func (c *Conn) finish(ev Event, err error) {
	c.finished.Do(func() {
		c.stand(err)
		c.err = err
		close(c.done)
		c.ended.Store(true)
		// Who is told of the event finds Err.
		c.evMu.Lock()
		c.events <- ev
		close(c.events)
		c.evMu.Unlock()
		if ev == EventLost {
			logWarn("connection lost", c, err)
		}
		_ = c.id.Disconnect() // an error means that there is nothing to disconnect
		_ = c.qp.ToError()    // it may be there already
		c.bell.ring()
	})
}
