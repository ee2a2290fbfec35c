//go:build linux

package shm

import (
	"fmt"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// What the peer says of connections.

// conclude hands the outcome to Connect, if it still waits. c.mu is held.
func (c *cmid) conclude(o outcome) {
	if !o.busy {
		select {
		case <-c.answer: // that the listener was busy
		default:
		}
	}
	select {
	case c.answer <- o:
	default:
	}
}

// gotAccept takes the peer's answer.
func (l *link) gotAccept(h header, body []byte) error {
	r, private, err := getRequest(body)
	if err != nil {
		return err
	}
	c := l.connection(h.ID)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.active || c.state != cmConnecting {
		return nil // it was withdrawn
	}
	far, err := l.remoteQP(&r.QP)
	if err != nil {
		return err
	}
	p := r.fromWire(private)
	if err := c.q.connect(far, p.InitiatorDepth, r.RNRRetry&7); err != nil {
		l.dropRemote(far, c.q)
		c.state = cmFailed
		l.tell(header{Kind: msgCancel, ID: c.conn})
		c.conclude(outcome{err: err})
		return nil
	}
	c.state = cmConnected
	l.tell(header{Kind: msgReady, ID: c.conn})
	c.conclude(outcome{param: p})
	return nil
}

// gotReject takes the peer's refusal.
func (c *cmid) gotReject(reason int, private []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active && c.state == cmConnecting {
		c.state = cmFailed
		c.conclude(outcome{err: &verbs.RejectError{Reason: reason, PrivateData: append([]byte{}, private...)}})
	}
}

// gotConnect takes a request.
func (l *link) gotConnect(h header, body []byte) error {
	r, private, err := getRequest(body)
	if err != nil || l.active || len(private) > verbs.MaxPrivateREQ {
		return errMessage
	}
	local, remoteAddr := r.Remote.addrPort(), r.Local.addrPort()
	ls := l.dev.p.ports.listener(portKey{verbs.PortSpace(r.PortSpace), local.Port()}, local.Addr())
	if ls == nil || !ls.takes(l.cred) { // who has a link may know it from another port
		l.tell(header{Kind: msgReject, Extra: verbs.RejInvalidServiceID, ID: h.ID})
		return nil
	}
	if err := ls.queue.Room(); err != nil {
		l.refuse(h.ID, err)
		return nil
	}
	far, err := l.remoteQP(&r.QP)
	if err != nil {
		return err
	}
	c := &cmid{
		dev: l.dev, link: l, conn: h.ID, space: verbs.PortSpace(r.PortSpace), local: local, remote: remoteAddr,
		l: ls, asked: r, request: r.fromWire(private), far: far, gone: make(chan struct{}),
	}
	if err := l.accept(c); err != nil {
		l.dropRemote(far, nil)
		return err
	}
	l.dev.retainAgain()
	c.made.Made("identifier")
	if err := ls.queue.Put(c, nil); err != nil {
		c.made.Gone()
		l.unregister(c)
		l.dropRemote(far, nil)
		l.dev.release()
		l.refuse(h.ID, err)
	}
	return nil
}

// got takes a message of the connection that is nothing but a header.
func (c *cmid) got(h header) {
	switch h.Kind {
	case msgBusy:
		c.mu.Lock()
		if c.active && c.state == cmConnecting {
			c.conclude(outcome{busy: true})
		}
		c.mu.Unlock()
	case msgReady:
		c.mu.Lock()
		if !c.active && c.state == cmConnected && !c.ended {
			c.events.Post(verbs.Event{Type: verbs.EventEstablished})
		}
		c.mu.Unlock()
	case msgCancel:
		c.canceled(fmt.Errorf("peer gave up: %w", syscall.ECONNABORTED))
	case msgDisconnect:
		var err error
		if h.Flag != 0 {
			err = syscall.ECONNRESET
		}
		c.end(err)
		c.link.tell(header{Kind: msgDisconnected, ID: c.conn})
	case msgDisconnected:
		c.end(nil)
	}
}

// end tells that the connection has ended, once.
func (c *cmid) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == cmConnected && !c.ended {
		c.ended = true
		c.events.Post(verbs.Event{Type: verbs.EventDisconnected, Err: err})
	}
}

// canceled is told that the peer does not want to connect any more.
func (c *cmid) canceled(err error) {
	if c.active {
		return
	}
	if c.l.queue.Remove(c) {
		_ = c.Close() // nobody has seen it
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.state == cmFailed {
		return
	}
	c.state, c.ended = cmFailed, true
	c.failure = c.failed("accepting", err)
	c.events.Post(verbs.Event{Type: verbs.EventConnectError, Err: c.failure})
}

// gotBye is told that the peer's queue pair is no more.
func (c *cmid) gotBye() {
	c.mu.Lock()
	q, far := c.q, c.far
	c.far = nil
	c.mu.Unlock()
	if q != nil {
		q.forget()
	}
	if far != nil {
		c.link.dropRemote(far, nil)
	}
}

// lost ends the connection: the process at its other end is no more.
func (c *cmid) lost(err error) {
	c.mu.Lock()
	q, state := c.q, c.state
	if c.active && state == cmConnecting {
		c.state = cmFailed
		c.conclude(outcome{err: err})
	}
	c.mu.Unlock()
	if q != nil {
		if q.lane != nil {
			q.lane.finish()
		}
		q.fail()
	}
	switch {
	case state == cmConnected:
		c.end(err)
	case state == cmFresh && !c.active:
		c.canceled(err)
	}
	c.gotBye()
}
