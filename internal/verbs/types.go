package verbs

import "strconv"

// QPType is the transport service of a queue pair.
type QPType uint8

const (
	RC QPType = iota + 1 // reliable connection
	UD                   // unreliable datagram
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UD:
		return "UD"
	}
	return "QPType(" + strconv.Itoa(int(t)) + ")"
}

// PortSpace is an rdma_cm port space (rdma_create_id(3)).
type PortSpace uint16

const (
	PSIPoIB PortSpace = 0x0002
	PSTCP   PortSpace = 0x0106 // RC, connected by REQ
	PSUDP   PortSpace = 0x0111 // UD, looked up by SIDR_REQ
	PSIB    PortSpace = 0x013f // RC, as rdma_create_id(3) makes identifiers of it
)

func (p PortSpace) String() string {
	switch p {
	case PSIPoIB:
		return "IPOIB"
	case PSTCP:
		return "TCP"
	case PSUDP:
		return "UDP"
	case PSIB:
		return "IB"
	}
	return "PortSpace(0x" + strconv.FormatUint(uint64(p), 16) + ")"
}

// Numbers of datagrams.
const (
	// UDPQKey is the Q_Key of queue pairs and groups of PSUDP (RDMA_UDP_QKEY of rdma_cm).
	UDPQKey = 0x01234567
	// MulticastQPN is the queue pair number that stands for all members of a group (IBTA 9.6.1.4).
	MulticastQPN = 0xffffff
)

// MTU is the payload of one packet, in bytes: 256, 512, 1024, 2048 or 4096.
type MTU int

// Code returns the MTU's code on the wire, 1 to 5, or 0 for a value that is none.
func (m MTU) Code() uint8 {
	switch m {
	case 256:
		return 1
	case 512:
		return 2
	case 1024:
		return 3
	case 2048:
		return 4
	case 4096:
		return 5
	}
	return 0
}

// MTUFromCode is the inverse of [MTU.Code]; it returns 0 for an unknown code.
func MTUFromCode(c uint8) MTU {
	if c < 1 || c > 5 {
		return 0
	}
	return 128 << c
}

// Access says what may be done to a memory region beyond local reads.
type Access uint16

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	RemoteAtomic
	FlushGlobal     // placement type "global visibility" of FLUSH
	FlushPersistent // placement type "persistence" of FLUSH
	// RemoteInvalidate lets a peer's SEND with invalidate end the region's keys, for the owner too, who still closes it. Hardware
	// has such regions for kernels alone: where programs cannot have them, RegMR says errors.ErrUnsupported.
	RemoteInvalidate
)

// Opcode is the operation of a send work request.
type Opcode uint8

const (
	OpSend Opcode = iota + 1
	OpSendWithImm
	OpSendWithInv
	OpWrite
	OpWriteWithImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpFlush
	OpAtomicWrite
)

var opNames = [...]string{
	OpSend: "SEND", OpSendWithImm: "SEND_WITH_IMM", OpSendWithInv: "SEND_WITH_INV",
	OpWrite: "RDMA_WRITE", OpWriteWithImm: "RDMA_WRITE_WITH_IMM", OpRead: "RDMA_READ",
	OpCompareSwap: "ATOMIC_CMP_AND_SWP", OpFetchAdd: "ATOMIC_FETCH_AND_ADD",
	OpFlush: "FLUSH", OpAtomicWrite: "ATOMIC_WRITE",
}

func (o Opcode) String() string {
	if int(o) < len(opNames) && opNames[o] != "" {
		return opNames[o]
	}
	return "Opcode(" + strconv.Itoa(int(o)) + ")"
}

// Completion is the opcode of a request's completion.
func (o Opcode) Completion() WCOpcode {
	switch o {
	case OpWrite, OpWriteWithImm:
		return WCWrite
	case OpRead:
		return WCRead
	case OpCompareSwap:
		return WCCompareSwap
	case OpFetchAdd:
		return WCFetchAdd
	case OpFlush:
		return WCFlush
	case OpAtomicWrite:
		return WCAtomicWrite
	}
	return WCSend
}

// SendFlags modify a send work request.
type SendFlags uint8

const (
	// Signaled asks for a completion when the request succeeds. One that fails
	// always completes.
	Signaled SendFlags = 1 << iota
	// Solicited marks the message as a solicited event at the receiver.
	Solicited
	// Fence holds the request back until earlier READs, atomics, FLUSHes and ATOMIC_WRITEs are done.
	Fence
)

// WCOpcode tells what a completion is of.
type WCOpcode uint8

const (
	WCSend WCOpcode = iota + 1
	WCWrite
	WCRead
	WCCompareSwap
	WCFetchAdd
	WCFlush
	WCAtomicWrite
	WCRecv
	WCRecvWithImm // a WRITE with immediate consumed a receive
)

// Status is the outcome of a work request. The values are those of enum
// ibv_wc_status. A Status other than Success is an error.
type Status uint8

const (
	Success        Status = 0
	LocLenErr      Status = 1
	LocQPOpErr     Status = 2
	LocProtErr     Status = 4
	WRFlushErr     Status = 5
	MWBindErr      Status = 6
	BadRespErr     Status = 7
	LocAccessErr   Status = 8
	RemInvReqErr   Status = 9
	RemAccessErr   Status = 10
	RemOpErr       Status = 11
	RetryExcErr    Status = 12
	RNRRetryExcErr Status = 13
	RemAbortErr    Status = 16
	FatalErr       Status = 19
	RespTimeoutErr Status = 20
	GeneralErr     Status = 21
)

var statusNames = map[Status]string{
	Success: "success", LocLenErr: "local length error", LocQPOpErr: "local QP operation error",
	LocProtErr: "local protection error", WRFlushErr: "work request flushed error",
	MWBindErr: "memory window bind error", BadRespErr: "bad response error",
	LocAccessErr: "local access error", RemInvReqErr: "remote invalid request error",
	RemAccessErr: "remote access error", RemOpErr: "remote operation error",
	RetryExcErr: "transport retry counter exceeded", RNRRetryExcErr: "RNR retry counter exceeded",
	RemAbortErr: "remote aborted error", FatalErr: "fatal error",
	RespTimeoutErr: "response timeout error", GeneralErr: "general error",
}

func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return "status " + strconv.Itoa(int(s))
}

func (s Status) Error() string { return s.String() }
