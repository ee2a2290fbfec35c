package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
)

// defaultFallbackAfter is how long RDMA is given before TCP is tried beside it: longer than a request to
// connect takes that is lost once, and what RFC 8305 has people wait for.
const defaultFallbackAfter = 300 * time.Millisecond

// tried is how far a dial has got by RDMA, for one that TCP may end at any moment.
type tried struct {
	mu    sync.Mutex
	addrs []netip.AddrPort
	at    *totals // of the device that was used last
}

func (t *tried) addr(a netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addrs = append(t.addrs, a)
}

func (t *tried) device(at *totals) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}

// rdma connects to one of the addresses by RDMA.
func (x *dialing) rdma(ctx context.Context, addrs []netip.AddrPort) (net.Conn, error) {
	c, err := (&attempts[*Conn]{x.FallbackDelay, x.one}).any(ctx, addrs)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// tcp connects to the address that was dialed, which may be a name, by TCP.
func (x *dialing) tcp(ctx context.Context, address string) (net.Conn, error) {
	d := *x.Fallback
	if d.Resolver == nil {
		d.Resolver = x.Resolver // else a name could mean something else
	}
	return d.DialContext(ctx, "tcp"+strings.TrimPrefix(x.network.name, "rdma"), address)
}

// way is one way to connect.
type way func(context.Context) (net.Conn, error)

// within limits the time of a way. 0: no limit.
func (w way) within(limit time.Duration) way {
	if limit <= 0 {
		return w
	}
	return func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return w(ctx)
	}
}

// orTCP connects by RDMA or, where that fails or is slow, by TCP. Where RDMA has failed lately, TCP comes first.
func (x *dialing) orTCP(ctx context.Context, addrs []netip.AddrPort, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var rdma, tcp way
	rdma = func(ctx context.Context) (net.Conn, error) {
		c, err := x.rdma(ctx, addrs)
		if errors.As(err, new(*cm.DeviceListError)) {
			cancel() // TCP would only hide the mistake
		}
		return c, err
	}
	tcp = func(ctx context.Context) (net.Conn, error) { return x.tcp(ctx, address) }
	after, limit := x.patience(ctx)
	var c net.Conn
	var rdmaErr, tcpErr error
	worth, known := detours.worth(x, addrs)
	if len(worth) > 0 {
		addrs = worth
		c, rdmaErr, tcpErr = either(ctx, rdma.within(limit), tcp, after)
	} else {
		c, tcpErr, rdmaErr = either(ctx, tcp.within(limit), rdma, after)
	}
	switch c := c.(type) {
	case nil:
		return nil, x.neither(ctx, rdmaErr, tcpErr)
	case *Conn:
		detours.forget(x, c.remote.AddrPort())
		return c, nil
	}
	x.fellBack(address, known, rdmaErr, after)
	return c, nil
}

// patience is after how long the second way is tried beside the first, or how long the first may take at most: whichever
// comes second needs time, too.
func (x *dialing) patience(ctx context.Context) (after, limit time.Duration) {
	after = x.FallbackAfter
	if after == 0 {
		after = defaultFallbackAfter
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return after, 0
	}
	half := max(time.Until(deadline)/2, 1)
	if after < 0 {
		return after, half
	}
	return min(after, half), 0
}

// fellBack counts, remembers and tells that TCP serves instead of RDMA. known is the device on which that had
// been found out before, if it had.
func (x *dialing) fellBack(address string, known *totals, cause error, after time.Duration) {
	x.tried.mu.Lock()
	addrs, at := x.tried.addrs, x.tried.at
	x.tried.mu.Unlock()
	if at == nil {
		at = known
	}
	if at == nil {
		at = totalsOf("", "")
	}
	at.fallbacks.Add(1)
	if len(addrs) == 0 {
		return // it was known, and RDMA not tried
	}
	if cause == nil {
		cause = fmt.Errorf("not connected after %v", after)
	}
	if detours.remember(x, addrs, at, cause.Error()) {
		logger(x.Logger).Warn("rdmanet: TCP instead of RDMA", "addr", address, "err", cause)
	}
}

// neither is the error of a dial that neither RDMA nor TCP served.
func (x *dialing) neither(ctx context.Context, rdmaErr, tcpErr error) error {
	var op *net.OpError
	if !errors.As(rdmaErr, &op) {
		// The context ended before RDMA's turn.
		return opError("dial", x.network.name, x.source(), nil, PhaseConnect, contextError(ctx, tcpErr))
	}
	var e *Error
	if !errors.As(op.Err, &e) || tcpErr == nil || ctx.Err() != nil && errors.Is(rdmaErr, ctx.Err()) {
		return rdmaErr
	}
	both := *e
	both.Err = &neitherError{e.Err, tcpErr}
	return &net.OpError{Op: op.Op, Net: op.Net, Source: op.Source, Addr: op.Addr, Err: &both}
}

// neitherError is why neither RDMA nor TCP connected.
type neitherError struct{ rdma, tcp error }

func (e *neitherError) Error() string   { return e.rdma.Error() + " (by TCP: " + e.tcp.Error() + ")" }
func (e *neitherError) Unwrap() []error { return []error{e.rdma, e.tcp} }

// Timeout tells whether the one that ended the dial, or the other, took too long.
func (e *neitherError) Timeout() bool {
	for _, err := range e.Unwrap() {
		var t interface{ Timeout() bool }
		if !errors.Is(err, ErrNoDevice) && errors.As(err, &t) && t.Timeout() {
			return true
		}
	}
	return false
}
