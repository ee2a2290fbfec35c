package rpma

import (
	"fmt"
	"strconv"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Status is the outcome of an operation. The values are those of enum ibv_wc_status.
type Status int

// Outcomes of operations.
const (
	StatusSuccess       Status = 0
	StatusLocalLength   Status = 1  // what came is longer than the receive
	StatusLocalQP       Status = 2  // the queue pair could not do it
	StatusLocalProtect  Status = 4  // local memory was not registered for it
	StatusFlushed       Status = 5  // not done: the connection failed or ended before
	StatusBadResponse   Status = 7  // the peer answered with something else
	StatusLocalAccess   Status = 8  // local memory could not be accessed
	StatusRemoteInvalid Status = 9  // the peer does not know the request
	StatusRemoteAccess  Status = 10 // the peer's memory is not registered for it, or ends before
	StatusRemoteOp      Status = 11 // the peer could not do it
	StatusRetryExceeded Status = 12 // the peer does not answer
	StatusRNRExceeded   Status = 13 // the peer has no receive posted
	StatusRemoteAborted Status = 16
	StatusFatal         Status = 19
	StatusNoResponse    Status = 20
	StatusGeneral       Status = 21
)

func (s Status) String() string {
	if s < 0 || s > 255 {
		return "status " + strconv.Itoa(int(s))
	}
	return verbs.Status(s).String()
}

// OpCode tells which operation has completed. The values are those of enum ibv_wc_opcode. An operation that is done by
// means of another one is still what was asked for: [Flush] completes as OpFlush.
type OpCode int

// Operations.
const (
	OpSend        OpCode = 0
	OpWrite       OpCode = 1
	OpRead        OpCode = 2
	OpFlush       OpCode = 8
	OpAtomicWrite OpCode = 9
	OpRecv        OpCode = 128
	OpRecvWithImm OpCode = 129 // a write with immediate consumed a receive
)

func (o OpCode) String() string {
	switch o {
	case OpSend:
		return "send"
	case OpWrite:
		return "write"
	case OpRead:
		return "read"
	case OpFlush:
		return "flush"
	case OpAtomicWrite:
		return "atomic write"
	case OpRecv:
		return "recv"
	case OpRecvWithImm:
		return "recv of write with immediate"
	}
	return "OpCode(" + strconv.Itoa(int(o)) + ")"
}

// Completion tells how an operation went.
type Completion struct {
	ID     uint64 // the operation's
	Status Status

	// These are of operations that succeeded.
	Op     OpCode
	Bytes  int    // the length of the operation; of a receive, what was received or written
	Imm    uint32 // the immediate, as the peer's program had it
	HasImm bool

	QPNum uint32 // of this side of the connection: Conn.QPNum

	vendor uint32
	recv   bool
}

// Err is nil, or a [*CompletionError] if the operation failed.
func (c *Completion) Err() error {
	if c.Status == StatusSuccess {
		return nil
	}
	return &CompletionError{ID: c.ID, Status: c.Status, QPNum: c.QPNum, VendorErr: c.vendor}
}

// CompletionError is the failure of an operation. To errors.Is it is the errno that says most of it: ETIMEDOUT if the peer
// does not answer, EACCES for memory that is not to be accessed so, EMSGSIZE for a message longer than its receive,
// ECONNRESET for what was not done because the connection was over.
type CompletionError struct {
	ID               uint64
	Status           Status
	QPNum, VendorErr uint32
}

func (e *CompletionError) Error() string {
	s := e.Status.String()
	switch e.Status {
	case StatusRemoteAccess:
		s += ": the peer has not registered that memory, or not for this use"
	case StatusRetryExceeded:
		s += ": the peer does not answer"
	case StatusRNRExceeded:
		s += ": the peer has no receive posted"
	case StatusRemoteInvalid:
		s += ": a message longer than the peer's receive, or an operation that its device does not know"
	case StatusLocalLength:
		s += ": a message longer than the receive"
	case StatusLocalProtect:
		s += ": local memory is not registered for this use"
	}
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorErr)
	}
	return s
}

// Is compares with an errno.
func (e *CompletionError) Is(target error) bool {
	errno, ok := target.(syscall.Errno)
	if !ok {
		return false
	}
	switch e.Status {
	case StatusFlushed, StatusRemoteAborted:
		return errno == syscall.ECONNRESET
	case StatusRetryExceeded, StatusRNRExceeded, StatusNoResponse:
		return errno == syscall.ETIMEDOUT
	case StatusRemoteAccess, StatusLocalProtect, StatusLocalAccess:
		return errno == syscall.EACCES
	case StatusLocalLength:
		return errno == syscall.EMSGSIZE
	}
	return false
}
