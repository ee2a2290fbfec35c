package verbs

import (
	"errors"
	"strconv"
	"syscall"
)

// ErrNoDevice says that no device serves an address, or that the one asked for is not
// there. What wraps it says why and what to do.
var ErrNoDevice = errors.New("no RDMA device serves the address")

// ErrBusy is the error of closing what is still in use.
var ErrBusy error = syscall.EBUSY

// Reasons of a REJ (IBTA 12.6.7.2) that the code above providers tells apart.
const (
	RejNoQP             = 1
	RejNoResources      = 3
	RejTimeout          = 4
	RejUnsupported      = 5
	RejInvalidServiceID = 8 // nobody listens
	RejStale            = 10
	RejInvalidMTU       = 26
	RejConsumer         = 28 // the application refused
)

var rejNames = map[int]string{
	RejNoQP: "no queue pair", RejNoResources: "no resources", RejTimeout: "timeout",
	RejUnsupported: "unsupported request", RejInvalidServiceID: "nobody listens on the port",
	RejStale: "stale connection", RejInvalidMTU: "invalid path MTU", RejConsumer: "refused by the application",
}

// RejectError is a peer's refusal to connect. It is ECONNREFUSED to errors.Is.
type RejectError struct {
	Reason      int    // on iWARP an errno
	PrivateData []byte // as received, padded with zeros
}

func (e *RejectError) Error() string {
	s := "connection refused: " // the errno's words, which people search for
	if n, ok := rejNames[e.Reason]; ok {
		return s + n + " (reason " + strconv.Itoa(e.Reason) + ")"
	}
	return s + "reason " + strconv.Itoa(e.Reason)
}

// Is makes every refusal match ECONNREFUSED.
func (e *RejectError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// Statuses of a SIDR_REP (IBTA 12.11.2.2) that the code above providers tells apart.
const (
	SIDRUnsupported = 1 // nobody serves the port
	SIDRRejected    = 2 // the application refused
	SIDRNoQP        = 3
)

var sidrNames = map[int]string{
	SIDRUnsupported: "nobody serves the port", SIDRRejected: "refused by the application", SIDRNoQP: "no queue pair",
}

// LookupError is a refusal to tell the queue pair of a service. It is ECONNREFUSED to errors.Is.
type LookupError struct {
	Status      int
	PrivateData []byte // as received, padded with zeros; nil where a provider does not tell
}

func (e *LookupError) Error() string {
	s := "connection refused: "
	if n, ok := sidrNames[e.Status]; ok {
		return s + n + " (status " + strconv.Itoa(e.Status) + ")"
	}
	return s + "status " + strconv.Itoa(e.Status)
}

// Is makes every refusal match ECONNREFUSED.
func (e *LookupError) Is(target error) bool { return target == syscall.ECONNREFUSED }
