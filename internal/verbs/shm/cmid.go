//go:build linux

package shm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// cmState is what an identifier has come to.
type cmState uint8

const (
	cmFresh      cmState = iota // resolved, or a request not yet answered
	cmConnecting                // active: until the answer
	cmConnected
	cmFailed // refused, withdrawn, or the peer is no more
)

// outcome is what came of a request to connect.
type outcome struct {
	param *verbs.ConnParam
	err   error
	busy  bool // to be tried again
	late  bool // it has not come by the time that it was waited for
}

// cmid is a [verbs.CMID].
type cmid struct {
	dev           *device
	link          *link // nil: nobody listens
	conn          uint32
	active        bool
	space         verbs.PortSpace
	local, remote netip.AddrPort
	freePort      func()           // active
	l             *listener        // passive
	request       *verbs.ConnParam // passive
	asked         *request         // passive: as it came
	events        verbs.EventQueue
	answer        chan outcome  // active; capacity 1
	gone          chan struct{} // closed by Close
	made          leak.Mark

	mu      sync.Mutex
	state   cmState
	closed  bool
	q       *qp
	far     *remote // passive: the peer's queue pair, until Accept
	failure error
	told    bool // the peer was told of the end
	ended   bool // the consumer was
}

var (
	_ verbs.CMID         = (*cmid)(nil)
	_ verbs.Aborter      = (*cmid)(nil)
	_ verbs.Credentialed = (*cmid)(nil)
)

func (c *cmid) Provider() verbs.Provider       { return c.dev.p }
func (c *cmid) Device() verbs.Device           { return c.dev }
func (c *cmid) LocalAddr() netip.AddrPort      { return c.local }
func (c *cmid) RemoteAddr() netip.AddrPort     { return c.remote }
func (c *cmid) SetHandler(h func(verbs.Event)) { c.events.SetHandler(h) }
func (c *cmid) Request() *verbs.ConnParam      { return c.request }
func (c *cmid) failed(what string, e error) error {
	return fmt.Errorf("shm: %s %v: %w", what, c.remote, e)
}

// Cred implements [verbs.Credentialed].
func (c *cmid) Cred() verbs.Cred {
	if c.link == nil {
		return verbs.Cred{}
	}
	return c.link.cred
}

func wrongState(why string) error { return fmt.Errorf("%s: %w", why, syscall.EINVAL) }

// CreateQP implements [verbs.CMID].
func (c *cmid) CreateQP(domain verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	own, ok := domain.(*pd)
	if !ok || !c.dev.serves(own.dev) {
		return nil, fmt.Errorf("shm: protection domain is not of the identifier's device: %w", syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case c.q != nil:
		return nil, fmt.Errorf("shm: the identifier has a queue pair: %w", syscall.EINVAL)
	}
	q, err := c.dev.newQP(own, attr)
	if err != nil {
		return nil, err
	}
	c.q = q
	return q, nil
}

// depth checks how many READs and atomics a consumer wants outstanding. 255 is as many as the device can.
func depth(what string, n uint8) (uint8, error) {
	switch {
	case n == 255:
		return maxRDAtomic, nil
	case n > maxRDAtomic:
		return 0, fmt.Errorf("%s of %d, at most %d (255 takes that): %w", what, n, maxRDAtomic, syscall.EINVAL)
	}
	return n, nil
}

// toWire checks what a consumer asks for, with private data of at most limit bytes.
func toWire(p *verbs.ConnParam, limit int) (*request, error) {
	if len(p.PrivateData) > limit {
		return nil, fmt.Errorf("%d bytes of private data, at most %d: %w", len(p.PrivateData), limit, syscall.EINVAL)
	}
	if p.RetryCount > 7 || p.RNRRetryCount > 7 {
		return nil, fmt.Errorf("retry counts of %d and %d, at most 7: %w", p.RetryCount, p.RNRRetryCount, syscall.EINVAL)
	}
	r := &request{
		Private: uint16(len(p.PrivateData)), Retry: p.RetryCount, RNRRetry: p.RNRRetryCount, FlowControl: p.FlowControl,
	}
	var err error
	if r.ResponderResources, err = depth("responder resources", p.ResponderResources); err != nil {
		return nil, err
	}
	r.InitiatorDepth, err = depth("initiator depth", p.InitiatorDepth)
	return r, err
}

// fromWire is what the peer asked for, as limits of this side.
func (r *request) fromWire(private []byte) *verbs.ConnParam {
	return &verbs.ConnParam{
		PrivateData: private, ResponderResources: r.InitiatorDepth, InitiatorDepth: r.ResponderResources,
		FlowControl: r.FlowControl, RetryCount: r.Retry & 7, RNRRetryCount: r.RNRRetry & 7, Placement: true,
	}
}

// Requests that meet a full backlog are sent again, as TCP's are, but soon: nothing is lost on the way.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
	retryFor   = 98 * time.Second // as long as rdma_cm asks
)

// Connect implements [verbs.CMID].
func (c *cmid) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	got, err := c.connect(ctx, p)
	if err != nil {
		return nil, c.failed("connecting to", err)
	}
	return got, nil
}

func (c *cmid) connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := toWire(p, verbs.MaxPrivateREQ)
	if err != nil {
		return nil, err
	}
	msg, err := c.begin(r, p.PrivateData)
	if err != nil {
		return nil, err
	}
	giveUp := time.Now().Add(retryFor)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		c.link.send(msg, -1)
		o := c.await(ctx)
		if o.busy && time.Now().After(giveUp) {
			o = c.withdraw(syscall.ETIMEDOUT)
		}
		if !o.busy {
			return o.param, o.err
		}
		timer := time.NewTimer(pause)
		o = c.wait(ctx, timer.C)
		timer.Stop()
		if !o.busy && !o.late {
			return o.param, o.err
		}
	}
}

// await waits for the answer, which may take its time as long as the peer's process runs.
func (c *cmid) await(ctx context.Context) outcome {
	silence := c.dev.p.patience.answer
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		heard := c.link.ask()
		if o := c.wait(ctx, timer.C); !o.late {
			return o
		}
		if c.link.heard() == heard {
			return c.withdraw(silentError(c.link.cred, c.remote.Port()))
		}
		timer.Reset(silence)
	}
}

// wait waits for the answer until it is late.
func (c *cmid) wait(ctx context.Context, late <-chan time.Time) outcome {
	select {
	case o := <-c.answer:
		return o
	case <-late:
		return outcome{late: true}
	case <-ctx.Done():
		return c.withdraw(ctx.Err())
	case <-c.gone:
		return c.withdraw(net.ErrClosed)
	}
}

// begin makes the request.
func (c *cmid) begin(r *request, private []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case !c.active:
		return nil, wrongState("the identifier is a peer's request")
	case c.q == nil:
		return nil, wrongState("no queue pair")
	case c.state != cmFresh:
		return nil, wrongState("the identifier was connected before")
	case c.link == nil:
		c.state = cmFailed
		return nil, &verbs.RejectError{Reason: verbs.RejInvalidServiceID}
	}
	var ok1, ok2 bool
	r.Local, ok1 = toAddress(c.local)
	r.Remote, ok2 = toAddress(c.remote)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("address that is too long: %w", syscall.EINVAL)
	}
	r.PortSpace = uint16(c.space)
	if err := c.link.register(c); err != nil {
		c.state = cmFailed
		return nil, err
	}
	r.QP = c.q.describe(c.conn)
	c.state = cmConnecting
	return message3(msgConnect, c.conn, r, private), nil
}

// message3 is a message of a header, a request and private data.
func message3(k kind, conn uint32, r *request, private []byte) []byte {
	var b [headerLen]byte
	return append(appendBody(putHeader(&b, header{Kind: k, ID: conn}), r), private...)
}

// withdraw ends an attempt to connect, unless its outcome is there.
func (c *cmid) withdraw(err error) outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != cmConnecting {
		select {
		case o := <-c.answer:
			if !o.busy {
				return o
			}
		default:
		}
		return outcome{err: err}
	}
	c.state = cmFailed
	c.link.tell(header{Kind: msgCancel, ID: c.conn})
	return outcome{err: err}
}

// retainAgain counts a user of a device that is in use anyway: by the link's goroutine.
func (d *device) retainAgain() {
	d.mu.Lock()
	d.users++
	d.mu.Unlock()
}

// answerable returns why a request cannot be answered, or nil. c.mu is held.
func (c *cmid) answerable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.active:
		return wrongState("the identifier is no request")
	case c.failure != nil:
		return c.failure
	case c.state != cmFresh:
		return wrongState("the request was answered before")
	}
	return nil
}

// Accept implements [verbs.CMID].
func (c *cmid) Accept(p *verbs.ConnParam) error {
	if err := c.accept(p); err != nil {
		return c.failed("accepting", err)
	}
	return nil
}

func (c *cmid) accept(p *verbs.ConnParam) error {
	r, err := toWire(p, verbs.MaxPrivateREP)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.answerable(); err != nil {
		return err
	}
	switch {
	case c.q == nil:
		return wrongState("no queue pair")
	case c.far == nil:
		return fmt.Errorf("peer gave up: %w", syscall.ECONNABORTED)
	}
	r.ResponderResources = min(r.ResponderResources, c.asked.InitiatorDepth)
	r.InitiatorDepth = min(r.InitiatorDepth, c.asked.ResponderResources)
	r.QP = c.q.describe(c.conn)
	if err := c.q.connect(c.far, r.InitiatorDepth, c.asked.RNRRetry&7); err != nil {
		return err
	}
	c.far = nil
	c.state = cmConnected
	c.link.send(message3(msgAccept, c.conn, r, p.PrivateData), -1)
	return nil
}

// Reject implements [verbs.CMID].
func (c *cmid) Reject(private []byte) error {
	if len(private) > verbs.MaxPrivateREJ {
		return c.failed("rejecting", fmt.Errorf("%d bytes of private data, at most %d: %w", len(private), verbs.MaxPrivateREJ, syscall.EINVAL))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.answerable(); err != nil {
		return c.failed("rejecting", err)
	}
	c.reject(private)
	return nil
}

// reject refuses a request. c.mu is held.
func (c *cmid) reject(private []byte) {
	c.state = cmFailed
	var b [headerLen]byte
	c.link.send(append(putHeader(&b, header{Kind: msgReject, Extra: verbs.RejConsumer, ID: c.conn}), private...), -1)
}

// Disconnect implements [verbs.CMID].
func (c *cmid) Disconnect() error { return c.disconnect(0) }

// Abort implements [verbs.Aborter].
func (c *cmid) Abort() error { return c.disconnect(1) }

func (c *cmid) disconnect(flag uint8) error {
	c.mu.Lock()
	q := c.q
	connected := c.state == cmConnected
	c.mu.Unlock()
	if !connected {
		return nil
	}
	_ = q.ToError() // it may be closed
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tellEnd(flag)
	return nil
}

// tellEnd tells the peer that the connection has ended, once. c.mu is held.
func (c *cmid) tellEnd(flag uint8) {
	if !c.told && c.state == cmConnected {
		c.told = true
		c.link.tell(header{Kind: msgDisconnect, Flag: flag, ID: c.conn})
	}
}

// Close implements [verbs.CMID].
func (c *cmid) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.events.Close() // as promised to whoever closes
		return nil
	}
	if c.q != nil && !c.q.isClosed() {
		c.mu.Unlock()
		return c.failed("closing the identifier of", fmt.Errorf("its queue pair is there: %w", verbs.ErrBusy))
	}
	c.closed = true
	close(c.gone)
	switch {
	case c.active && c.state == cmConnecting:
		c.state = cmFailed
		c.link.tell(header{Kind: msgCancel, ID: c.conn})
	case !c.active && c.state == cmFresh:
		c.reject(nil)
	case !c.ended:
		c.tellEnd(0)
	}
	far := c.far
	c.far = nil
	c.mu.Unlock()
	if c.link != nil {
		c.link.unregister(c)
		if far != nil {
			c.link.dropRemote(far, nil)
		}
	}
	c.events.Close()
	if c.freePort != nil {
		c.freePort()
	}
	c.made.Gone()
	c.dev.release()
	return nil
}

// isClosed tells whether Close of the queue pair has begun.
func (q *qp) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state == stateClosed
}
