package rdmanet

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/ring"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rpma"
)

// Phase tells what was being done when an error happened.
type Phase string

// Phases of a connection's life.
const (
	PhaseDevice   Phase = "device"   // finding a device
	PhaseResolve  Phase = "resolve"  // what a name or an address means
	PhaseRoute    Phase = "route"    // the way to an address, or the binding of a local one
	PhaseConnect  Phase = "connect"  // asking the peer
	PhaseExchange Phase = "exchange" // what the ends tell each other while connecting
	PhaseTransfer Phase = "transfer" // data
)

// Error is the cause inside every [*net.OpError] that this package returns, but for
// those around [net.ErrClosed] and [os.ErrDeadlineExceeded], which are package
// net's.
type Error struct {
	Phase            Phase
	Provider, Device string // empty where none had been chosen
	Hint             string // one line: what to do
	Err              error  // a syscall.Errno, ErrNoDevice, ErrProtocol, a *RejectError, or what wraps one
}

func (e *Error) Error() string {
	s := e.Err.Error()
	if at := cmp.Or(e.Device, e.Provider); at != "" {
		s = at + ": " + strings.TrimPrefix(s, e.Provider+": ") // the device, of several, where only its provider is named
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Timeout tells whether the error is one of time: a deadline, a peer's silence.
func (e *Error) Timeout() bool {
	if both := new(neitherError); errors.As(e.Err, &both) {
		return both.Timeout()
	}
	if errors.Is(e.Err, verbs.ErrNoDevice) {
		return false
	}
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// Temporary tells whether trying again later makes sense: after EMFILE, ENFILE,
// ENOMEM, and what a name server calls temporary. Servers go on accepting then.
func (e *Error) Temporary() bool {
	var dns *net.DNSError
	return outOfResources(e.Err) || errors.As(e.Err, &dns) && dns.Temporary()
}

func outOfResources(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// RejectError is a peer's refusal of a connection: of its program, with reason 28 and perhaps words of its own
// (package rdmanet has none), or because nobody listens, with reason 8. To errors.Is it is ECONNREFUSED.
type RejectError = rpma.RejectError

// refusal is an error of the floors below that wraps a refusal.
type refusal struct {
	error
	reject *RejectError
}

func (r *refusal) Unwrap() []error { return []error{r.error, r.reject} }

// withReject gives err, if it is a refusal, the type that users know.
func withReject(err error) error {
	var rej *verbs.RejectError
	if !errors.As(err, &rej) {
		return err
	}
	return &refusal{err, (*RejectError)(rej)}
}

// ErrNoDevice says that no device serves an address, or that the one asked for is not
// there. The text of an error that wraps it names each one tried, with its cause.
var ErrNoDevice = verbs.ErrNoDevice

// ErrProtocol says that the peer does not speak rsockets version 1, or broke its rules.
var ErrProtocol = ring.ErrProtocol

// opError is the *net.OpError around err, which may come from any floor below.
func opError(op, network string, source, addr net.Addr, phase Phase, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, net.ErrClosed):
		err = net.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = os.ErrDeadlineExceeded
	default:
		err = newError(phase, err, addr)
	}
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: err}
}

// newError is the *Error around err.
func newError(phase Phase, err error, addr net.Addr) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	e = &Error{Phase: phase, Err: err}
	var at *cm.ProviderError
	if errors.As(err, &at) {
		e.Provider, e.Device, e.Err = at.Provider, at.Device, at.Err
	}
	var list *cm.DeviceListError
	switch {
	case errors.Is(err, verbs.ErrNoDevice), errors.As(err, &list):
		e.Phase = PhaseDevice
	case errors.As(err, new(*cm.RefusedError)):
		e.Phase = PhaseConnect
	case errors.Is(err, ErrProtocol):
		e.Phase = PhaseExchange
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Err = syscall.ECONNRESET
	}
	e.Err = withReject(e.Err)
	e.Hint = hint(e, addr)
	return e
}

// contextError is the error of ctx, if it ended, and otherwise err. That something ran out is not
// left out: it may be why.
func contextError(ctx context.Context, err error) error {
	c := ctx.Err()
	if c == nil || errors.Is(err, c) && outOfResources(err) {
		return err
	}
	return c
}
