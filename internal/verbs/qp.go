package verbs

import "net/netip"

// QPInitAttr says what a queue pair shall be able to do. Zero limits take the
// provider's defaults. MaxInline is a wish and may come back smaller, even 0;
// the other limits are met or exceeded, or CreateQP fails.
type QPInitAttr struct {
	Type           QPType
	SendCQ, RecvCQ CQ  // may be one and the same
	SRQ            SRQ // nil: the queue pair has a receive queue of its own
	MaxSendWR      int
	MaxRecvWR      int
	MaxSendSGE     int
	MaxRecvSGE     int
	MaxInline      int

	// MinRNRTimer is the RNR NAK timer code (IBTA 9.7.5.2.8) this side sends when
	// a message meets no receive: 12 means 0.64 ms. 0 takes the provider's
	// default, which for rdma_cm is the longest, 655.36 ms.
	MinRNRTimer uint8

	// BlockMulticastLoopback keeps a UD queue pair's own datagrams from coming back to it. A device that cannot gives
	// errors.ErrUnsupported.
	BlockMulticastLoopback bool
}

// QPCap is what a queue pair was really given.
type QPCap struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
	PathMTU                                                 MTU // 0 before the queue pair is connected; of UD: the port's
}

// QPStats counts what the transport had to repair or to drop; zero where a device does not tell.
type QPStats struct {
	Retransmits uint64 // packets sent again
	RNRs        uint64 // RNR NAKs received
	Dropped     uint64 // UD: datagrams that met no receive, or one too small for them
}

// QP is a queue pair. [CMID.CreateQP] makes one; connecting the CMID moves it
// through its states.
type QP interface {
	Num() uint32
	Cap() QPCap
	Stats() QPStats

	// PostSend takes the work requests in order, as many as fit: n < len(wrs)
	// with a nil error means that the send queue is full and the rest is still
	// the caller's. That happens only while MaxSendWR requests hold slots. A
	// request's slot is free again when it, or a later one, has completed and
	// been polled: among any MaxSendWR requests in a row one must be Signaled.
	// After a failure the unsignaled requests complete too, so a CQ's Depth
	// counts them.
	//
	// An error is about wrs[n], which was not taken; one that says
	// errors.ErrUnsupported is about an operation the device does not have.
	// The provider keeps neither wrs nor its slices; a caller that posts often keeps
	// an array of them, since they escape. Posting to a queue
	// pair in the error state succeeds and the request completes as flushed;
	// after Close it gives net.ErrClosed, on a device that is gone ENODEV.
	PostSend(wrs []SendWR) (n int, err error)

	// PostRecv is PostSend for receives. They may be posted before the queue
	// pair is connected.
	PostRecv(wrs []RecvWR) (n int, err error)

	// ToError moves the queue pair to the error state: every outstanding
	// request completes as flushed, nothing more is sent or received.
	ToError() error

	// Close destroys the queue pair and leaves its groups. After it returns no memory is touched on
	// its behalf and no completion of it is added to its queues; completions not yet
	// polled may stay or vanish.
	Close() error
}

// SGE is a range of a registered region.
type SGE struct {
	Addr   uint64 // MR.Addr plus an offset
	Length uint32
	LKey   uint32
}

// SendWR is a send work request.
type SendWR struct {
	ID    uint64
	Op    Opcode
	Flags SendFlags

	// SGL is the local memory: gathered by SEND, WRITE and ATOMIC_WRITE, scattered into by
	// READ and atomics. It must not change until the request completes.
	SGL []SGE
	// Inline replaces SGL by bytes of any memory, taken before PostSend
	// returns; at most QPCap.MaxInline bytes, but the 8 of ATOMIC_WRITE always.
	Inline []byte

	Imm           uint32 // host order; on the wire big endian
	InvalidateKey uint32 // of a region registered with RemoteInvalidate, else the peer's receive and queue pair fail, not this request

	RemoteAddr uint64
	RKey       uint32

	Compare uint64 // CMP_SWAP
	SwapAdd uint64 // CMP_SWAP: the new value; FETCH_ADD: the addend

	// FLUSH only. It makes what earlier requests of this queue pair wrote to the memory visible to everything in the peer's host, or
	// persistent, or both, before it completes. Later requests but READs, atomics and ATOMIC_WRITEs do not wait for it, unless
	// they have the flag Fence.
	FlushLength uint32
	FlushLevel  FlushLevel
	FlushType   Access // FlushGlobal, FlushPersistent or both

	// UD only.
	AH         AH
	RemoteQPN  uint32
	RemoteQKey uint32
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID  uint64
	SGL []SGE // none for receives that only immediates consume; of UD: the first entry has room for the GRH
}

// SRQAttr says what a shared receive queue shall be able to do.
type SRQAttr struct {
	MaxWR, MaxSGE int
	LimitEvent    func() // called once when fewer than the armed limit remain
}

// SRQ is a shared receive queue. A message takes a receive when it begins, and what has been taken completes, or is flushed, at its
// queue pair. All others stay when a queue pair fails or is closed.
type SRQ interface {
	// PostRecv is [QP.PostRecv], which fails on queue pairs that take from a shared queue. Any number of goroutines may call it.
	PostRecv(wrs []RecvWR) (n int, err error)

	// ArmLimit asks for one LimitEvent when fewer than limit receives remain; 0 asks for none. Where there are fewer already it
	// may come at once or with the next message.
	ArmLimit(limit int) error
	Close() error // fails with ErrBusy while a queue pair uses it
}

// AHAttr is the address of a UD peer or a multicast group.
type AHAttr struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	HopLimit      uint8 // 0: 64
	FlowLabel     uint32
	Port          int // of the device; 0: the only one, or the one with the Local address

	// InfiniBand link layer only.
	LID        uint16
	SL         uint8
	PathBits   uint8
	StaticRate uint8
}

// AH is an address handle. It outlives the requests that name it.
type AH interface{ Close() error }
