package rpma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// MaxPrivateData is what the two sides can tell each other in bytes while they connect.
const (
	MaxPrivateDataConnect = verbs.MaxPrivateREQ
	MaxPrivateDataAccept  = verbs.MaxPrivateREP
	MaxPrivateDataReject  = verbs.MaxPrivateREJ
)

// ConnReq is a connection that is to be: one that this side asks for, or one that a peer has asked for. Receives can be
// posted before it is connected, so that no message of the peer's comes too early.
type ConnReq struct {
	c       *Conn
	passive bool

	mu         sync.Mutex
	used       bool
	closed     bool
	connecting context.CancelFunc // while Connect is under way
	connected  chan struct{}      // closed when it is not any more
}

// NewConnReq prepares a connection to an address, a host name or IP address with a port: it finds out the way there and makes the queues. c may be nil.
func (p *Peer) NewConnReq(ctx context.Context, address string, c *ConnConfig) (*ConnReq, error) {
	const op = "connect"
	if c == nil {
		c = &ConnConfig{}
	}
	id, err := p.resolve(ctx, address, c)
	if err != nil {
		return nil, opError(op, err)
	}
	conn, err := newConn(p, id, c)
	if err != nil {
		_ = id.Close() // the first error says more
		return nil, err
	}
	return &ConnReq{c: conn}, nil
}

// resolve tries what the address means, one after the other.
func (p *Peer) resolve(ctx context.Context, address string, c *ConnConfig) (verbs.CMID, error) {
	addrs, err := cm.LookupDial(ctx, nil, cm.AnyFamily, address)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range addrs {
		id, err := p.resolveAddr(ctx, a, c)
		if err == nil {
			return id, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func (p *Peer) resolveAddr(ctx context.Context, a netip.AddrPort, c *ConnConfig) (verbs.CMID, error) {
	limit := c.ResolveTimeout
	if limit == 0 {
		limit = defaultResolve
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*limit) // of the address, and of the route
		defer cancel()
	}
	return p.provider.Resolve(ctx, &verbs.CMIDAttr{
		PortSpace: verbs.PSTCP, Device: p.name, Remote: a, TrafficClass: c.TrafficClass,
		Handler: nil, // events wait for one
	})
}

// Dial is NewConnReq and Connect, without private data.
func (p *Peer) Dial(ctx context.Context, address string, c *ConnConfig) (*Conn, error) {
	r, err := p.NewConnReq(ctx, address, c)
	if err != nil {
		return nil, err
	}
	return r.Connect(ctx, nil)
}

// PostRecv posts a receive, as [Conn.PostRecv] does.
func (r *ConnReq) PostRecv(dst Local, id uint64) error { return r.c.PostRecv(dst, id) }

// PostRecvs posts receives, as [Conn.PostRecvs] does.
func (r *ConnReq) PostRecvs(recvs ...Recv) (n int, err error) { return r.c.PostRecvs(recvs...) }

// PrivateData is what the peer that asks for the connection said, padded with zeros to 56 bytes on InfiniBand and RoCE; nil if this side asks.
// Whoever is on the way can read and change it.
func (r *ConnReq) PrivateData() []byte {
	if !r.passive {
		return nil
	}
	return slices.Clone(r.c.private)
}

// QPNum is [Conn.QPNum] of the connection to be.
func (r *ConnReq) QPNum() uint32 { return r.c.QPNum() }

// RemoteAddr is the peer's address, as it says itself.
func (r *ConnReq) RemoteAddr() net.Addr { return r.c.RemoteAddr() }

// take lets one call alone use the request up.
func (r *ConnReq) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.used
	r.used = true
	return !was
}

var errUsed = errors.New("the request was answered or closed before")

// Connect asks the peer, or answers it, and waits until the connection stands. privateData is said along with it: at most
// 56 bytes by who asks, 196 by who answers. ctx bounds the wait; a peer that does not answer at all is
// given up after 98 seconds. Whatever the outcome, the request is used up, unless the private data is too long.
func (r *ConnReq) Connect(ctx context.Context, privateData []byte) (*Conn, error) {
	const op = "connect"
	most := MaxPrivateDataConnect
	if r.passive {
		most = MaxPrivateDataAccept
	}
	if len(privateData) > most {
		return nil, invalid(op, "%d bytes of private data, at most %d", len(privateData), most)
	}
	if !r.take() {
		return nil, &Error{Op: op, Code: ErrInvalid, Err: errUsed}
	}
	c := r.c
	connect := c.connect
	if r.passive {
		connect = c.accept
	}
	err := r.closeable(ctx, func(ctx context.Context) error {
		err := connect(ctx, privateData)
		if err != nil {
			_ = c.close() // the first error says more
		}
		return err
	})
	if err != nil {
		return nil, opError(op, err)
	}
	c.keep.Start()
	return c, nil
}

// closeable runs a connect that Close ends.
func (r *ConnReq) closeable(ctx context.Context, connect func(context.Context) error) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	r.mu.Lock()
	r.connecting, r.connected = cancel, done
	if r.closed {
		cancel()
	}
	r.mu.Unlock()
	err := connect(own)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connecting = nil
	if err != nil && r.closed && ctx.Err() == nil {
		return errClosed
	}
	return err
}

// connParam asks for as many READs outstanding as the device can, and endless RNR retries, as librpma does.
func connParam(private []byte) *verbs.ConnParam {
	return &verbs.ConnParam{
		PrivateData: private, ResponderResources: 255, InitiatorDepth: 255,
		FlowControl: true, RetryCount: 7, RNRRetryCount: 7,
	}
}

func (c *Conn) connect(ctx context.Context, private []byte) error {
	rep, err := c.id.Connect(ctx, connParam(private))
	if err != nil {
		return err
	}
	c.private = rep.PrivateData
	c.native = c.native || c.choose && rep.Placement
	c.stand(nil)
	c.poller.Start()
	return nil
}

func (c *Conn) accept(ctx context.Context, private []byte) error {
	p := connParam(private)
	req := c.id.Request()
	p.FlowControl = req.FlowControl
	c.native = c.native || c.choose && req.Placement
	c.poller.Start()
	if err := c.id.Accept(p); err != nil {
		select {
		case cause := <-c.standing: // of what failed before
			if cause != nil {
				err = cause
			}
		default:
		}
		return err
	}
	select {
	case err := <-c.standing:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reject refuses a peer's request; it is used up. The peer's program may see the private data, of at most 148 bytes; C's librpma does not.
func (r *ConnReq) Reject(privateData []byte) error {
	const op = "reject"
	switch {
	case !r.passive:
		return invalid(op, "a request of this side")
	case len(privateData) > MaxPrivateDataReject:
		return invalid(op, "%d bytes of private data, at most %d", len(privateData), MaxPrivateDataReject)
	case !r.take():
		return &Error{Op: op, Code: ErrInvalid, Err: errUsed}
	}
	err := r.c.id.Reject(privateData)
	if e := r.c.close(); err == nil {
		err = e
	}
	return opError(op, err)
}

// Close gives the request up. A peer that asked is refused, a Connect under way ends with net.ErrClosed. After Connect, Reject or Close it does nothing.
func (r *ConnReq) Close() error {
	if !r.take() {
		r.mu.Lock()
		r.closed = true
		end, done := r.connecting, r.connected
		r.mu.Unlock()
		if end != nil {
			end()
			<-done
		}
		return nil
	}
	if r.passive {
		_ = r.c.id.Reject(nil) // the peer may be gone already
	}
	return opError("close request", r.c.close())
}

// Endpoint takes requests for connections.
type Endpoint struct {
	peer *Peer
	l    verbs.Listener
	once sync.Once
	err  error
}

// backlog is how many requests wait for Accept. Beyond it they are dropped, so that peers try again.
const backlog = 1024

// Listen takes requests at an address: "host:port", where the host may be empty for all of the device's addresses, and port 0 picks one.
func (p *Peer) Listen(address string) (*Endpoint, error) {
	const op = "listen"
	local, dual, err := cm.LookupListen(context.Background(), nil, cm.AnyFamily, address)
	if err != nil {
		return nil, opError(op, err)
	}
	if err := p.begin(op, "endpoint"); err != nil {
		return nil, err
	}
	l, err := p.provider.Listen(context.Background(), &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Device: p.name, Local: local, DualStack: dual, Backlog: backlog,
	})
	if err != nil {
		p.end("endpoint")
		return nil, opError(op, err)
	}
	return &Endpoint{peer: p, l: l}, nil
}

// Accept waits for a request and makes the queues of its connection, as c says, which may be nil. Requests whose peer has given up
// meanwhile are passed over, as far as they are known; the Connect of others fails with ECONNABORTED. If the queues cannot be made, the peer is refused, and Accept fails. It fails with net.ErrClosed
// after Close, and with [ErrNoEvent] when ctx ends.
func (e *Endpoint) Accept(ctx context.Context, c *ConnConfig) (*ConnReq, error) {
	const op = "accept"
	id, err := e.l.GetRequest(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, waitError(op, ErrNoEvent, ctx)
		}
		return nil, opError(op, err)
	}
	conn, err := newConn(e.peer, id, c)
	if err != nil {
		_, _ = id.Reject(nil), id.Close() // the peer may be gone already
		return nil, err
	}
	conn.private = id.Request().PrivateData
	return &ConnReq{c: conn, passive: true}, nil
}

// Addr is the address that is listened on, with the real port.
func (e *Endpoint) Addr() net.Addr { return net.TCPAddrFromAddrPort(e.l.Addr()) }

// Close gives the address up. Requests not yet accepted are refused; those that were, and connections, live on. Closing twice
// is no error.
func (e *Endpoint) Close() error {
	e.once.Do(func() {
		e.err = opError("close endpoint", e.l.Close())
		e.peer.end("endpoint")
	})
	return e.err
}
