package rpma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Code is one of librpma's error codes. It is an error itself, as syscall.Errno is, which the errors of this
// package wrap: errors.Is(err, rpma.ErrInvalid).
type Code int

// librpma's error codes.
const (
	ErrUnknown          Code = -100000 - iota // unknown error
	ErrNotSupported                           // not supported; also errors.ErrUnsupported
	ErrProvider                               // the device, its driver or the connection manager failed; an errno says how
	ErrNoMemory                               // out of memory
	ErrInvalid                                // invalid argument; also fs.ErrInvalid
	ErrNoCompletion                           // a wait for completions ended without one
	ErrNoEvent                                // a wait for an event ended without one
	ErrAgain                                  // temporary error; librpma's log functions alone give it
	ErrSharedChannel                          // CQ.Wait of queues that share a channel: wait with Conn.Wait
	ErrNotSharedChannel                       // Conn.Wait without a shared channel: wait with CQ.Wait
)

var codeTexts = [...]string{
	"unknown error", "not supported", "provider error", "out of memory", "invalid argument",
	"no completion", "no event", "temporary error, try again",
	"the completion queues share a channel", "the completion queues share no channel",
}

func (c Code) Error() string {
	if i := int(ErrUnknown) - int(c); i >= 0 && i < len(codeTexts) {
		return codeTexts[i]
	}
	return "rpma code " + strconv.Itoa(int(c))
}

// Is makes codes match the errors of package errors and io/fs that mean the same.
func (c Code) Is(target error) bool {
	switch c {
	case ErrNotSupported:
		return target == errors.ErrUnsupported
	case ErrInvalid:
		return target == fs.ErrInvalid
	}
	return false
}

// Error is the error of this package's functions.
type Error struct {
	Op   string // what failed: "register", "connect", "write", ...
	Code Code
	Err  error // a syscall.Errno, a *CompletionError, a *RejectError, net.ErrClosed, the context's error, or what wraps one

	cause error // why the connection ended, if a request failed for that
}

func (e *Error) Error() string {
	s := "rpma: "
	if e.Op != "" {
		s += e.Op + ": "
	}
	switch {
	case e.Err == nil:
		return s + e.Code.Error()
	case e.cause != nil:
		return s + e.Err.Error() + ": " + e.cause.Error()
	}
	return s + e.Err.Error()
}

// Unwrap gives the code and what is behind it.
func (e *Error) Unwrap() []error {
	errs := []error{e.Code}
	for _, err := range []error{e.Err, e.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// opError is the *Error of an operation around err, whose code follows from what err is.
func opError(op string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var rej *verbs.RejectError
	if errors.As(err, &rej) {
		err = &refusal{err, (*RejectError)(rej)}
	}
	code := ErrProvider
	switch {
	case errors.Is(err, syscall.ENOMEM):
		code = ErrNoMemory
	case errors.Is(err, errors.ErrUnsupported):
		code = ErrNotSupported
	}
	return &Error{Op: op, Code: code, Err: err}
}

// invalid is an argument's error.
func invalid(op, format string, args ...any) error {
	return &Error{Op: op, Code: ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// waitError is the error of a wait that ctx has ended.
func waitError(op string, code Code, ctx context.Context) error { //nolint:revive // the context is what the error is about
	return &Error{Op: op, Code: code, Err: ctx.Err()}
}

// refusal is an error of the floors below that wraps a refusal.
type refusal struct {
	error
	reject *RejectError
}

func (r *refusal) Unwrap() []error { return []error{r.error, r.reject} }

// RejectError is a peer's refusal of a connection. To errors.Is it is ECONNREFUSED.
type RejectError struct {
	// Reason is one of the InfiniBand Architecture Specification (12.6.7.2): 8 if nobody listens, 28
	// if the application refused; on iWARP an errno.
	Reason int

	// PrivateData is what the peer's program said, padded with zeros. C's librpma and package rdmanet say nothing.
	PrivateData []byte
}

func (e *RejectError) Error() string { return (*verbs.RejectError)(e).Error() }

// Is makes every refusal match ECONNREFUSED.
func (e *RejectError) Is(target error) bool { return (*verbs.RejectError)(e).Is(target) }

// queueFull is the error of a queue without room.
type queueFull struct{}

func (queueFull) Error() string {
	return "no room in the queue: poll completions first, or let Do wait for room"
}

func (queueFull) Is(target error) bool { return target == syscall.ENOMEM }

// ErrQueueFull says that a queue has no room for another request. It is ENOMEM and ErrProvider too, as librpma
// and the verbs have it.
var ErrQueueFull error = &Error{Op: "post", Code: ErrProvider, Err: queueFull{}}
