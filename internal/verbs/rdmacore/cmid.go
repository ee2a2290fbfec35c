//go:build linux && cgo

package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

// cmState is what an identifier has come to.
type cmState uint8

const (
	cmFresh      cmState = iota // resolved, or a request not yet answered
	cmConnecting                // active: until Connect returns
	cmConnected                 // active: established; passive: accepted
	cmOver                      // disconnected by either side
	cmAnswered                  // datagrams: the service was looked up, or the request answered
	cmFailed                    // connecting failed; the request was refused or withdrawn
)

// cmid is a [verbs.CMID].
type cmid struct {
	c             *core
	ch            *eventChannel
	dev           *device
	token         uint64
	active        bool
	local, remote netip.AddrPort
	req           *verbs.ConnParam // passive
	class         uint8            // passive: the listener's traffic class
	events        verbs.EventQueue
	step          chan cmEvent  // active: what the step under way has come to; capacity 1
	ends          atomic.Uint32 // active: kinds of events that end that step, a bit each
	gone          chan struct{} // closed by Close
	made          leak.Mark

	mu          sync.Mutex
	h           *coreID // nil once destroyed
	state       cmState
	established bool // passive: the connection manager knows that the peer is there
	leaving     bool // a disconnect was sent or is to be, the answer is to come
	awaiting    bool // a timer runs for the RTU
	resolving   bool // active: C is about to use h
	removed     bool // the device is gone
	closed      bool
	dying       bool // C's identifier is being destroyed
	finished    bool // closed, and nothing is held any more
	q           *qp

	ud *udcmid // nil of connections
}

var _ verbs.CMID = (*cmid)(nil)

func (c *cmid) Provider() verbs.Provider { return c.c.p }

func (c *cmid) Device() verbs.Device { return c.dev }

func (c *cmid) LocalAddr() netip.AddrPort { return c.local }

func (c *cmid) RemoteAddr() netip.AddrPort { return c.remote }

func (c *cmid) SetHandler(h func(verbs.Event)) { c.events.SetHandler(h) }

// failure is the error of a call, which names the connection.
func (c *cmid) failure(what string, err error) error {
	if c.dev != nil && c.dev.gone.Load() {
		err = syscall.ENODEV
	}
	return fmt.Errorf("rdmacore: %s %v: %w", what, c.remote, err)
}

// wrongState is the error of a call that the state does not allow.
func wrongState(why string) error { return fmt.Errorf("%s: %w", why, syscall.EINVAL) }

// CreateQP implements [verbs.CMID].
func (c *cmid) CreateQP(domain verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	own, ok := domain.(*pd)
	if !ok || own.dev != c.dev {
		return nil, fmt.Errorf("rdmacore: protection domain is not of device %s: %w", c.dev.name, syscall.EINVAL)
	}
	if attr.Type != verbs.RC {
		return nil, unsupported(attr.Type.String() + " queue pairs of this port space")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case c.h == nil:
		return nil, c.failure("queue pair to", syscall.ENODEV)
	case c.q != nil:
		return nil, fmt.Errorf("rdmacore: the identifier has a queue pair: %w", syscall.EINVAL)
	}
	q, err := c.dev.newQP(own, attr, c.commEst)
	if err != nil {
		return nil, err
	}
	if err := q.init(c.h); err != nil {
		_ = q.Close() // the first error says more
		return nil, c.failure("queue pair to", err)
	}
	q.class = c.class
	c.q = q
	return q, nil
}

// gaveUp is what an error of the kernel's about a request means: it says EINVAL of one that is no more.
func (c *cmid) gaveUp(err error) error {
	if !c.active && errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("peer gave up: %w", syscall.ECONNABORTED)
	}
	return err
}

// allDepth asks for as much as the device has, as rdma_connect(3) has it.
const allDepth = 255

// param is p with its depths made definite: the device's where p wants all, as far as the request goes. What
// the device cannot do is refused.
func (c *cmid) param(p *verbs.ConnParam, private int) (*verbs.ConnParam, error) {
	if len(p.PrivateData) > private {
		return nil, fmt.Errorf("%d bytes of private data, at most %d: %w", len(p.PrivateData), private, syscall.EINVAL)
	}
	q := *p
	for _, d := range []struct {
		what        string
		depth       *uint8
		most, asked int
	}{
		{"responder resources", &q.ResponderResources, c.dev.attr.maxRDAtomic, int(c.requested().ResponderResources)},
		{"initiator depth", &q.InitiatorDepth, c.dev.attr.maxInitRDAtomic, int(c.requested().InitiatorDepth)},
	} {
		switch {
		case *d.depth == allDepth:
			*d.depth = uint8(min(d.most, d.asked, allDepth))
		case int(*d.depth) > d.most:
			return nil, fmt.Errorf("%s of %d, device %s has %d: %w", d.what, *d.depth, c.dev.name, d.most, syscall.EINVAL)
		}
	}
	return &q, nil
}

// requested is what the peer asked for, or all.
func (c *cmid) requested() *verbs.ConnParam {
	if c.req == nil {
		return &verbs.ConnParam{ResponderResources: allDepth, InitiatorDepth: allDepth}
	}
	return c.req
}

// Connect implements [verbs.CMID].
func (c *cmid) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	got, err := c.connect(ctx, p)
	if err != nil {
		return nil, c.failure("connecting to", err)
	}
	return got, nil
}

func (c *cmid) connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := c.param(p, verbs.MaxPrivateREQ)
	if err != nil {
		return nil, err
	}
	if err := c.begin(p); err != nil {
		return nil, err
	}
	var ev cmEvent
	select {
	case ev = <-c.step:
		err = refusal(&ev)
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.gone:
		err = net.ErrClosed
	}
	if err == nil {
		err = c.ready()
	}
	if err != nil {
		c.mu.Lock()
		c.state = cmFailed
		c.destroy() // which tells the peer
		c.mu.Unlock()
		return nil, err
	}
	return &ev.param, nil
}

// begin sends the request.
func (c *cmid) begin(p *verbs.ConnParam) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case !c.active:
		return wrongState("the identifier is a peer's request")
	case c.q == nil:
		return wrongState("no queue pair")
	case c.state != cmFresh:
		return wrongState("the identifier was connected before")
	case c.h == nil:
		return syscall.ENODEV
	}
	c.begins(stepAnswer)
	if err := coreConnect(c.h, p, c.q); err != nil {
		return err
	}
	c.state = cmConnecting
	return nil
}

// refusal is why an attempt failed, or nil.
func refusal(ev *cmEvent) error {
	switch ev.kind {
	case cmResponse, cmEstablished:
		return nil
	case cmRejected:
		return &verbs.RejectError{Reason: ev.status, PrivateData: ev.param.PrivateData}
	case cmRemoval:
		return syscall.ENODEV
	}
	if ev.status < 0 {
		return syscall.Errno(-ev.status)
	}
	return syscall.ETIMEDOUT
}

// ready connects the queue pair as the peer's answer says and tells the peer.
func (c *cmid) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case c.h == nil:
		return syscall.ENODEV
	}
	if c.dev.iwarp {
		c.q.connected(0)
		c.state, c.established = cmConnected, true
		return nil
	}
	if err := c.q.connect(c.h, -1, -1); err != nil {
		return err
	}
	if err := coreEstablish(c.h); err != nil {
		if errors.Is(err, syscall.EINVAL) {
			return syscall.ECONNRESET // since its answer
		}
		return err
	}
	c.state, c.established = cmConnected, true
	return nil
}

// Request implements [verbs.CMID].
func (c *cmid) Request() *verbs.ConnParam {
	if c.req == nil {
		return nil
	}
	r := *c.req
	return &r
}

// answerable returns why a request cannot be answered, or nil.
func (c *cmid) answerable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.active:
		return wrongState("the identifier is no request")
	case c.state != cmFresh:
		return wrongState("the request was answered before")
	case c.h == nil:
		return syscall.ENODEV
	}
	return nil
}

// Accept implements [verbs.CMID].
func (c *cmid) Accept(p *verbs.ConnParam) error {
	p, err := c.param(p, verbs.MaxPrivateREP)
	if err != nil {
		return c.failure("accepting", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.answerable()
	if err == nil && c.q == nil {
		err = wrongState("no queue pair")
	}
	if err != nil {
		return c.failure("accepting", err)
	}
	if !c.dev.iwarp {
		err = c.q.connect(c.h, int(p.InitiatorDepth), int(p.ResponderResources))
	}
	if err == nil {
		err = coreAccept(c.h, p, c.q)
	}
	if err != nil {
		c.state = cmFailed
		return c.failure("accepting", c.gaveUp(err))
	}
	if c.dev.iwarp {
		c.q.connected(int(p.InitiatorDepth))
	}
	c.state = cmConnected
	return nil
}

// Reject implements [verbs.CMID].
func (c *cmid) Reject(private []byte) error {
	if len(private) > verbs.MaxPrivateREJ {
		return c.failure("rejecting", fmt.Errorf("%d bytes of private data, at most %d: %w",
			len(private), verbs.MaxPrivateREJ, syscall.EINVAL))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.answerable(); err != nil {
		return c.failure("rejecting", err)
	}
	c.state = cmFailed
	if err := coreReject(c.h, private); err != nil && !errors.Is(err, syscall.EINVAL) {
		return c.failure("rejecting", err)
	}
	return nil // also if the peer gave up before
}

// onCM takes an event of the connection manager, on its goroutine.
func (c *cmid) onCM(ev *cmEvent) {
	if c.ud != nil {
		c.ud.onCM(ev)
		return
	}
	switch ev.kind {
	case cmAddrResolved, cmAddrError, cmRouteResolved, cmRouteError, cmResponse:
		c.stepped(ev)
	case cmConnectError, cmUnreachable, cmRejected:
		c.refused(ev)
	case cmEstablished:
		if c.active { // of iWARP: it is the answer
			c.stepped(ev)
			return
		}
		c.mu.Lock()
		c.established = true
		if c.leaving && c.h != nil && coreDisconnect(c.h) != nil {
			c.state = cmOver // no answer will come
			if c.closed {
				c.destroy()
			}
		}
		c.mu.Unlock()
		c.events.Post(verbs.Event{Type: verbs.EventEstablished})
	case cmDisconnected:
		c.ended(nil)
	case cmRemoval:
		c.onRemoval(ev)
	case cmAddrChange:
		c.events.Post(verbs.Event{Type: verbs.EventAddrChange})
	}
}

// onRemoval is told that the device is gone.
func (c *cmid) onRemoval(ev *cmEvent) {
	// The device itself need not say so: rdma_rxe's removal waits, silently, until nobody has it open.
	c.mu.Lock()
	dev, err := c.dev, c.failure("connection to", syscall.ENODEV) // Resolve may be about to set what these read
	if c.ud != nil {
		err = fmt.Errorf("rdmacore: datagrams of %v: %w", c.local, syscall.ENODEV)
	}
	c.mu.Unlock()
	if dev != nil {
		dev.lost()
	}
	c.stepped(ev)
	c.events.Post(verbs.Event{Type: verbs.EventDeviceRemoval, Err: err})
	c.mu.Lock()
	c.removed = true
	if !c.resolving {
		c.destroy() // nobody answers any more, and the kernel waits for it
	}
	c.mu.Unlock()
}

// Steps of an active identifier: kinds of events that end one. The device's removal ends all.
const (
	stepAddr   = 1<<cmAddrResolved | 1<<cmAddrError | 1<<cmRemoval
	stepRoute  = 1<<cmRouteResolved | 1<<cmRouteError | 1<<cmRemoval
	stepAnswer = 1<<cmResponse | 1<<cmEstablished | 1<<cmConnectError | 1<<cmUnreachable | 1<<cmRejected | 1<<cmRemoval
)

// begins begins a step, before C is asked for it.
func (c *cmid) begins(step uint32) {
	c.ends.Store(step)
	select {
	case <-c.step: // of an earlier one
	default:
	}
}

// stepped ends a step, if it is the one that is waited for.
func (c *cmid) stepped(ev *cmEvent) {
	if !c.active || c.ends.Load()&(1<<ev.kind) == 0 {
		return
	}
	select {
	case c.step <- *ev:
	default: // of a step that was given up
	}
}

// ended answers the peer's disconnect, or takes its answer to ours.
func (c *cmid) ended(err error) {
	c.mu.Lock()
	if c.h != nil && err == nil {
		_ = coreDisconnect(c.h) // fails if it was ours that is answered
	}
	c.state = cmOver
	if c.closed {
		c.destroy()
	}
	c.mu.Unlock()
	c.events.Post(verbs.Event{Type: verbs.EventDisconnected, Err: err})
}

// refused ends the attempt to connect, or what had come of it.
func (c *cmid) refused(ev *cmEvent) {
	c.mu.Lock()
	connecting, connected := c.state == cmConnecting, c.state == cmConnected && c.established
	closed := c.closed
	c.mu.Unlock()
	switch {
	case connected: // the peer has refused what it had agreed to
		c.ended(c.failure("connection to", syscall.ECONNRESET))
	case c.active && connecting:
		c.stepped(ev)
	case c.active || closed:
		c.mu.Lock()
		if c.closed {
			c.destroy()
		}
		c.mu.Unlock()
	default:
		err := refusal(ev)
		var rej *verbs.RejectError
		if errors.As(err, &rej) {
			err = fmt.Errorf("peer gave up (reason %d): %w", rej.Reason, syscall.ECONNABORTED)
		}
		c.mu.Lock()
		c.state = cmFailed
		c.mu.Unlock()
		c.events.Post(verbs.Event{Type: verbs.EventConnectError, Err: c.failure("accepting", err)})
	}
}

// commEst takes word that the peer sends already: its last message is lost or late.
func (c *cmid) commEst() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h != nil && c.state == cmConnected && !c.established {
		c.awaitRTU()
	}
}

// willEstablish tells whether word that the connection stands is to come when rdma_notify(3) has returned err:
// EISCONN says that it is on its way already, because of the peer's last message or of an earlier call.
func willEstablish(err error) bool { return err == nil || errors.Is(err, syscall.EISCONN) }

// Disconnect implements [verbs.CMID].
func (c *cmid) Disconnect() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
	return nil
}

func (c *cmid) disconnect() {
	if c.state != cmConnected && c.state != cmOver {
		return
	}
	if c.dev.iwarp && c.state == cmConnected && c.h != nil && !c.leaving {
		// An iWARP queue pair in the error state is a connection cut off; this closes it behind what was sent.
		c.leaving = coreDisconnect(c.h) == nil
	}
	_ = c.q.ToError() // it may be closed
	if c.state == cmOver || c.leaving || c.h == nil {
		return
	}
	if !c.established { // only what is established can be ended
		c.leaving = true
		c.awaitRTU()
		return
	}
	c.leaving = coreDisconnect(c.h) == nil
	if !c.leaving {
		c.state = cmOver // no answer will come
	}
}

// rtuPatience is how long the peer's last message of a connection's making may be late.
const rtuPatience = time.Second

// awaitRTU sees to it that a connection becomes established whose RTU is missing, later. Most are on their way, and to say that the
// connection stands while the kernel already has the RTU and a DREQ behind it must not be: Linux 6.1 then drops the RTU, takes
// the DREQ, and forgets to stop its REP, which it repeats for 66 s (cm_establish_handler). The identifier cannot be destroyed meanwhile.
// c.mu is held.
func (c *cmid) awaitRTU() {
	if c.awaiting {
		return
	}
	c.awaiting = true
	time.AfterFunc(rtuPatience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.h == nil || c.state != cmConnected || c.established {
			return
		}
		if err := coreCommEst(c.h); !willEstablish(err) && c.leaving {
			c.state = cmOver // no answer will come
			if c.closed {
				c.destroy()
			}
		}
	})
}

// destroy gives up what C holds, and the rest once the identifier is closed. c.mu is held. The kernel
// may take its time, so that is done elsewhere.
func (c *cmid) destroy() {
	if h := c.h; h != nil {
		c.h, c.dying = nil, true
		c.ch.remove(c.token)
		removed, groups := c.removed, c.ud.takeGroups()
		c.c.reaper.do(func() {
			for _, m := range groups {
				_ = coreLeave(h, &m.asked) // nobody is left to tell
			}
			if removed {
				removeID(h)
			} else {
				_ = coreDestroyID(h) // nobody is left to tell
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.dying = false
			c.finish()
		})
	}
	c.finish()
}

// finish gives up what a closed identifier holds, when C has nothing of it any more. c.mu is held.
func (c *cmid) finish() {
	if !c.closed || c.dying || c.finished {
		return
	}
	c.finished = true
	c.made.Gone()
	if c.dev != nil {
		c.dev.release()
	}
	c.c.idle.add(-1)
}

// Close implements [verbs.CMID].
func (c *cmid) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.events.Close() // as promised to whoever closes
		return nil
	}
	c.closed = true
	close(c.gone)
	if c.q != nil {
		_ = c.q.ToError() // it should be closed by now
	}
	c.c.idle.add(1)
	c.disconnect()
	// Destroying an identifier sends one message at most, and does not see whether it arrives.
	if !c.leaving || c.state != cmConnected || c.h == nil || c.dev.gone.Load() {
		c.destroy()
	}
	c.mu.Unlock()
	c.events.Close()
	return nil
}
