package packettable

import (
	"slices"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// Row is one line of the table. PSNs in it count from the first one that the responder expects.
type Row struct {
	Name string

	UD    bool  // a queue pair for datagrams
	Depth uint8 // READs and atomics that the peer may have outstanding
	Timer uint8 // code of the RNR NAK timer; 0: anyTimer
	Recv  []int // sizes of the receives that are posted
	SRQ   bool  // to a shared receive queue
	Limit int   // which is to tell when it has fewer

	Steps []Step
	Want  Outcome

	// Linux is what rdma_rxe of Linux 6.1 does instead; nil: the same.
	Linux *Deviation
}

// names tells whether a packet of the row names a region.
func (r *Row) names(region Region) bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool {
		return slices.ContainsFunc(s.Send, func(p Packet) bool { return p.At.Region == region })
	})
}

// anyTimer is the code of 0.64 ms.
const anyTimer = 12

// Step is what the peer does before it waits for the answers.
type Step struct {
	Recv     []int // posted first
	Close    bool  // Revocable is closed first
	Send     []Packet
	Together bool // the packets, of one length, arrive at once
}

// Packet is a request. Its RETH, AtomicETH or IETH gets address and key from At.
type Packet struct {
	wire.Packet
	PSN int
	At  Target

	QPN     func(own uint32) uint32 // the destination, made of the right one
	Edit    func(b []byte) []byte   // changes BTH to pad
	BadICRC bool                    // one bit of it is wrong
	QKey    uint32                  // changes that of a datagram
	Other   bool                    // comes from another host than the peer's
}

// Target is memory of the responder's.
type Target struct {
	Region Region
	Off    int64  // of the region's first byte
	VA     uint64 // instead, if it is not 0
	KeyXor uint32 // changes the key
}

// Region is a memory region of the responder's, or what was one.
type Region int

// The regions. All but Large are of RegionSize bytes, with other memory before and behind.
const (
	None       Region = iota
	Main              // any access
	Odd               // any access; 4 bytes off the alignment of atomics
	Large             // any access; of LargeSize bytes
	ReadOnly          // remote reads, and nothing else
	WriteOnly         // remote writes, no reads
	NoAtomic          // remote reads and writes
	Local             // local writes
	Foreign           // any access, of another protection domain
	Closed            // was a region
	Flushable         // any access, and FLUSH for global visibility
	Revocable         // any access, and SEND with Invalidate; made anew for a row that names it
	Persistent        // any access, and FLUSH for both; see unpersistent
	regions
)

// Sizes of regions and of the places for receives.
const (
	RegionSize = 3000
	LargeSize  = 128 << 10
	recvRoom   = 2048
	maxRecv    = 8

	// unpersistent is where ranges of Persistent begin that cannot be made persistent.
	unpersistent = 1000
)

// Outcome is what becomes of a row.
type Outcome struct {
	Answers [][]Answer // for each step
	WCs     []WC       // of receives, in order
	Mem     []Mem      // all that has changed
	Header  bool       // of a datagram has been written to receive 0, which failed
	Low     bool       // the shared receive queue has told, once, that it has fewer than Limit
	Synced  []Span     // ranges of Persistent that were made persistent, or should have been, in order

	// Dead: the queue pair is in the error state. If not, it expects the PSN Next: it takes such a request, which is answered by
	// an ACK and the MSN that follows on MSN. In the middle of a message, if Open is set, it refuses it, and dies then.
	Dead bool
	Open bool
	Next int
	MSN  uint32
}

// Answer is a packet of the responder's.
type Answer struct {
	Op       wire.Opcode
	PSN      int
	AETH     wire.AETH
	Original uint64
	Data     string
}

// anyOriginal stands for whatever an ATOMIC Acknowledge has as original value.
const anyOriginal = 0xa5a5a5a5a5a5a5a5

// WC is a completion of a receive. IDs count the receives of a row from 0. Of a failed one only ID and Status count.
type WC struct {
	ID     uint64
	Status verbs.Status
	Op     verbs.WCOpcode
	Len    uint32
	Imm    uint32 // 0: none
	Inv    bool   // Revocable is invalid now
}

// Mem is memory that has changed: of a region, or of receive Recv if that is None.
type Mem struct {
	Region Region
	Recv   int
	Off    int
	Data   []byte
}

// Span is a range of a region.
type Span struct{ Off, Len int }

// Deviation is another outcome than the specification's, and why.
type Deviation struct {
	Outcome
	Why string

	// Panic: the packets would bring the kernel down, so they are not sent.
	Panic bool
}
