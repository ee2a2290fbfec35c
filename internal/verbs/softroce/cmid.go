package softroce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
)

// cmState is what an identifier has come to.
type cmState uint8

const (
	cmFresh      cmState = iota // resolved, or a request not yet answered
	cmConnecting                // active: until Connect returns
	cmConnected                 // passive: accepted
	cmFailed                    // connecting failed; the request was refused or withdrawn
)

// connectResult is what came of a REQ.
type connectResult struct {
	rep *ibcm.REP
	err error
}

// cmid is a [verbs.CMID].
type cmid struct {
	p             *Provider
	in            *instance
	space         verbs.PortSpace
	active        bool
	far           bool      // active: the peer is another host
	tclass        uint8     // passive: the listener's, or 0
	mtu           verbs.MTU // active: of the attempt at hand
	local, remote netip.AddrPort
	freePort      func()    // active
	req           *ibcm.REQ // passive
	l             *listener // passive
	events        verbs.EventQueue
	outcome       chan connectResult // active; capacity 1
	gone          chan struct{}      // closed by Close
	made          leak.Mark

	mu      sync.Mutex
	state   cmState
	closed  bool
	q       *qp
	conn    *ibcm.Conn
	undone  int   // attempts to connect that are not done, each of which holds the device
	lost    bool  // active: the connection ended while Connect was still about it
	lostErr error // why, or why a request died
	unwatch func()
}

var (
	_ verbs.CMID    = (*cmid)(nil)
	_ verbs.Aborter = (*cmid)(nil)
)

func (c *cmid) Provider() verbs.Provider { return c.p }

func (c *cmid) Device() verbs.Device { return c.in.dev }

func (c *cmid) LocalAddr() netip.AddrPort { return c.local }

func (c *cmid) RemoteAddr() netip.AddrPort { return c.remote }

func (c *cmid) SetHandler(h func(verbs.Event)) { c.events.SetHandler(h) }

// failure is the error of a call, which names the connection.
func (c *cmid) failure(what string, err error) error {
	return fmt.Errorf("softroce: %s %v: %w", what, c.remote, err)
}

// wrongState is the error of a call that the state does not allow.
func wrongState(why string) error { return fmt.Errorf("%s: %w", why, syscall.EINVAL) }

// CreateQP implements [verbs.CMID].
func (c *cmid) CreateQP(domain verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	own, ok := domain.(*pd)
	if !ok || own.dev != c.in.dev {
		return nil, fmt.Errorf("softroce: protection domain is not of device %s: %w", c.p.cfg.name(), syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, net.ErrClosed
	case c.q != nil:
		return nil, fmt.Errorf("softroce: the identifier has a queue pair: %w", syscall.EINVAL)
	}
	q, err := c.in.dev.newQP(own, attr)
	if err != nil {
		return nil, err
	}
	c.q = q
	return q, nil
}

// firstPSN is a starting PSN.
func (c *cmid) firstPSN() uint32 {
	if f := c.p.cfg.FirstPSN; f != nil {
		return f() & psnMask
	}
	return uint32(c.p.cfg.random64()) & psnMask
}

// rdmaFlowLabel is the flow label that rdma_cm makes of its two ports.
func rdmaFlowLabel(src, dst uint16) uint32 { return (uint32(src)*31 + uint32(dst)) & 0xfffff }

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
	if len(p.PrivateData) > verbs.MaxPrivateREQ {
		return nil, fmt.Errorf("%d bytes of private data, at most %d: %w", len(p.PrivateData), verbs.MaxPrivateREQ, syscall.EINVAL)
	}
	p, err := depths(p)
	if err != nil {
		return nil, err
	}
	var param *ibcm.ConnectParam
	var r connectResult
	begun := c.in.dev.clock.Now()
	for again := true; again; {
		var err error
		if param, err = c.begin(p); err != nil {
			return nil, err
		}
		select {
		case r = <-c.outcome:
		case <-ctx.Done():
			r.err = ctx.Err()
		case <-c.gone:
			r.err = net.ErrClosed
		}
		again = c.smaller(r.err)
	}
	if r.err == nil {
		r.err = c.ready(param, r.rep)
	}
	if r.err != nil {
		c.mu.Lock()
		c.state = cmFailed
		c.mu.Unlock()
		c.conn.Close()
		return nil, c.in.blame(r.err, begun)
	}
	qa := ibcm.ActiveQP(param, r.rep)
	return &verbs.ConnParam{
		PrivateData:        r.rep.PrivateData[:],
		ResponderResources: qa.MaxDestRDAtomic, InitiatorDepth: qa.MaxRDAtomic,
		FlowControl: r.rep.EndToEndFlowControl, RetryCount: qa.RetryCount, RNRRetryCount: r.rep.RNRRetryCount,
		Placement: ibcm.Kin(r.rep.LocalCAGUID),
	}, nil
}

// smaller tells whether another attempt shall follow, with a smaller path MTU: the
// peer refused this one, and its interface or its way back allows less than ours.
func (c *cmid) smaller(err error) bool {
	var rej *verbs.RejectError
	if !errors.As(err, &rej) || rej.Reason != verbs.RejInvalidMTU {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.mtu == minMTU {
		return false
	}
	c.mtu /= 2
	c.state = cmFresh // the attempt's connection is over: nothing but its end follows
	return true
}

const minMTU = verbs.MTU(256)

// begin sends the request.
func (c *cmid) begin(p *verbs.ConnParam) (*ibcm.ConnectParam, error) {
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
	}
	param := &ibcm.ConnectParam{
		Path:      ibcm.Path{Local: c.local.Addr(), Remote: c.remote.Addr(), TrafficClass: c.tclass},
		FlowLabel: rdmaFlowLabel(c.local.Port(), c.remote.Port()),
		ServiceID: ibcm.ServiceID(uint16(c.space), c.remote.Port()), SourcePort: c.local.Port(),
		QPN: c.q.Num(), StartingPSN: c.firstPSN(), PathMTU: c.mtu.Code(),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, SRQ: c.q.srq != nil, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount,
		PrivateData: p.PrivateData, Far: c.far,
	}
	c.in.dev.retain() // for the connection
	conn, err := c.in.agent.Connect(param, c.onCM)
	if err != nil {
		c.in.dev.release()
		return nil, err
	}
	c.conn, c.state = conn, cmConnecting
	c.undone++
	return param, nil
}

// ready connects the queue pair as the REP says and tells the peer.
func (c *cmid) ready(p *ibcm.ConnectParam, rep *ibcm.REP) error {
	a := ibcm.ActiveQP(p, rep)
	if err := c.q.connect(c.rcAttr(&a)); err != nil {
		return err
	}
	stop := c.in.watch(c.remote.Addr(), a.DestQPN, c.peerDied)
	if err := c.conn.Ready(); err != nil {
		stop()
		return syscall.ECONNRESET // since the REP
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		stop()
		return net.ErrClosed
	}
	c.state, c.unwatch = cmConnected, stop
	if c.lost {
		c.events.Post(verbs.Event{Type: verbs.EventDisconnected, Err: c.lostErr})
	}
	return nil
}

// rcAttr turns what the messages say into the queue pair's attributes.
func (c *cmid) rcAttr(a *ibcm.QPAttr) *rcAttr {
	return &rcAttr{
		path:    qpPath(c.local.Addr(), c.remote.Addr(), cmp.Or(c.tclass, a.TrafficClass), a.FlowLabel, c.q.Num(), a.DestQPN),
		destQPN: a.DestQPN, sqPSN: a.SQPSN, rqPSN: a.RQPSN, mtu: verbs.MTUFromCode(a.PathMTU),
		ackTimeout: a.ACKTimeout, retryCount: a.RetryCount, rnrRetry: a.RNRRetryCount,
		maxRDAtomic: a.MaxRDAtomic, maxDestRDAtomic: a.MaxDestRDAtomic,
	}
}

// onCM takes the agent's events. It may run inside a consumer's call.
func (c *cmid) onCM(e ibcm.Event) {
	switch e.Type {
	case ibcm.EventReplied:
		c.outcome <- connectResult{rep: e.REP}
	case ibcm.EventRejected:
		c.refused(rejectError(e.REJ))
	case ibcm.EventUnreachable:
		c.refused(e.Err)
	case ibcm.EventEstablished:
		c.events.Post(verbs.Event{Type: verbs.EventEstablished})
	case ibcm.EventDisconnected:
		c.mu.Lock()
		if c.active && c.state == cmConnecting {
			c.lost, c.lostErr = true, e.Err
			c.mu.Unlock()
			return
		}
		told := c.active && c.state == cmFailed // by Connect
		c.mu.Unlock()
		if told {
			return
		}
		c.events.Post(verbs.Event{Type: verbs.EventDisconnected, Err: e.Err})
	case ibcm.EventDone:
		c.mu.Lock()
		c.undone--
		background := c.closed
		c.mu.Unlock()
		c.in.dev.release()
		if background {
			c.p.addBackground(-1)
		}
	}
}

func rejectError(m *ibcm.REJ) error {
	return &verbs.RejectError{Reason: int(m.Reason), PrivateData: m.PrivateData[:]}
}

// refused ends the attempt to connect.
func (c *cmid) refused(err error) {
	if c.active {
		c.outcome <- connectResult{err: err}
		return
	}
	if c.l.queue.Remove(c) {
		_ = c.Close() // nobody has seen it
		return
	}
	var rej *verbs.RejectError
	if errors.As(err, &rej) {
		err = fmt.Errorf("peer gave up (reason %d): %w", rej.Reason, syscall.ECONNABORTED)
	}
	err = c.failure("accepting", err)
	c.mu.Lock()
	c.state, c.lostErr = cmFailed, err
	c.mu.Unlock()
	c.events.Post(verbs.Event{Type: verbs.EventConnectError, Err: err})
}

// Request implements [verbs.CMID].
func (c *cmid) Request() *verbs.ConnParam {
	if c.req == nil {
		return nil
	}
	return &verbs.ConnParam{
		PrivateData:        c.req.PrivateData[ibcm.IPHeaderSize:],
		ResponderResources: c.req.InitiatorDepth, InitiatorDepth: c.req.ResponderResources,
		FlowControl: c.req.EndToEndFlowControl, RetryCount: c.req.RetryCount, RNRRetryCount: c.req.RNRRetryCount,
		Placement: ibcm.Kin(c.req.LocalCAGUID),
	}
}

// answerable returns why a request cannot be answered, or nil.
func (c *cmid) answerable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.active:
		return wrongState("the identifier is no request")
	case c.lostErr != nil:
		return c.lostErr
	case c.state != cmFresh:
		return wrongState("the request was answered before")
	}
	return nil
}

// Accept implements [verbs.CMID].
func (c *cmid) Accept(p *verbs.ConnParam) error {
	if len(p.PrivateData) > verbs.MaxPrivateREP {
		return c.failure("accepting", fmt.Errorf("%d bytes of private data, at most %d: %w",
			len(p.PrivateData), verbs.MaxPrivateREP, syscall.EINVAL))
	}
	p, err := depths(p)
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
	ap := &ibcm.AcceptParam{
		QPN: c.q.Num(), StartingPSN: c.firstPSN(),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, SRQ: c.q.srq != nil, RNRRetryCount: p.RNRRetryCount, PrivateData: p.PrivateData,
	}
	a := ibcm.PassiveQP(c.req, ap)
	// The peer's first packets may be here before its RTU, and stand for it.
	c.q.onCommEst = c.conn.CommEstablished
	if err := c.q.connect(c.rcAttr(&a)); err != nil {
		return c.failure("accepting", err)
	}
	c.state = cmConnected
	if err := c.conn.Accept(ap); err != nil {
		c.state = cmFailed
		return c.failure("accepting", fmt.Errorf("peer gave up: %w", syscall.ECONNABORTED))
	}
	c.unwatch = c.in.watch(c.remote.Addr(), a.DestQPN, c.peerDied)
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
	if err := c.conn.Reject(verbs.RejConsumer, nil, private); err != nil {
		return nil //nolint:nilerror // the peer gave up before: it is refused all the same
	}
	return nil
}

// peerDied ends the connection: the process at its other end is no more.
func (c *cmid) peerDied() {
	c.mu.Lock()
	conn, q := c.conn, c.q
	c.mu.Unlock()
	if conn.Alive() {
		_ = q.ToError() // it may be closed
		conn.PeerDied(syscall.ECONNRESET)
	}
}

// Disconnect implements [verbs.CMID].
func (c *cmid) Disconnect() error { return c.disconnect((*ibcm.Conn).Disconnect) }

// Abort implements [verbs.Aborter].
func (c *cmid) Abort() error { return c.disconnect((*ibcm.Conn).Abort) }

func (c *cmid) disconnect(tell func(*ibcm.Conn)) error {
	c.mu.Lock()
	conn, q := c.conn, c.q
	connected := c.state == cmConnected
	c.mu.Unlock()
	if !connected {
		return nil
	}
	_ = q.ToError() // it may be closed
	tell(conn)
	return nil
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
	conn, q, stop := c.conn, c.q, c.unwatch
	c.p.addBackground(c.undone)
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
	if q != nil {
		_ = q.ToError() // it should be closed by now
	}
	if conn != nil {
		conn.Close()
	}
	c.events.Close()
	if c.freePort != nil {
		c.freePort()
	}
	c.made.Gone()
	c.in.dev.release()
	return nil
}
