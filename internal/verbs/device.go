package verbs

import (
	"context"
	"net/netip"
)

// Provider is one way to reach RDMA.
type Provider interface {
	// Name is the provider's name in a Device list: "softroce", "rdmacore", "shm".
	Name() string

	// Devices describes every device the provider knows, usable or not. It
	// fails only if not even the list can be had.
	Devices() ([]DeviceInfo, error)

	// Open returns the device of that name. A device is opened once in a
	// process and shared: each Open is matched by one Close of what it returned.
	Open(name string) (Device, error)

	// Resolve finds the device and source address from which attr.Remote is
	// reached, as rdma_resolve_addr and rdma_resolve_route do, and returns an
	// identifier bound to them. An address that the provider does not serve
	// gives an error that wraps [ErrNoDevice].
	Resolve(ctx context.Context, attr *CMIDAttr) (CMID, error)

	// Listen binds attr.Local and takes connection requests. Port 0 picks one.
	Listen(ctx context.Context, attr *ListenAttr) (Listener, error)
}

// Finder is a [Provider] for which it costs something to describe all devices.
type Finder interface {
	// Find describes the device of that name, as far as can be known without opening it: it may prove unusable later.
	Find(name string) (info DeviceInfo, ok bool)
}

// DeviceCounters counts what a device did not take, which leaves no trace with
// the connections that it might have been meant for.
type DeviceCounters struct {
	BadICRC   uint64 // packets dropped: changed on the way, or not RoCE
	BadKey    uint64 // requests refused: memory that is not there or not the peer's to access
	BadPacket uint64 // packets dropped: malformed, or not what the peer may send
}

// Counter is a [Provider] that counts.
type Counter interface {
	// Counted names the devices that have been open.
	Counted() []string

	// Counters returns a device's counters since the program began, whether it is open or not.
	Counters(device string) DeviceCounters
}

// LinkTransport is what carries a device's packets.
type LinkTransport uint8

const (
	TransportIB LinkTransport = iota + 1 // InfiniBand and RoCE
	TransportIWARP
	TransportShm
)

// DeviceInfo describes a device. It is a value, not a handle.
type DeviceInfo struct {
	Name      string
	Provider  string
	Unusable  error // nil, or why the device cannot be used and what to do about it
	Transport LinkTransport
	Ports     []PortInfo

	MaxQP       int
	MaxCQE      int
	MaxQPWR     int   // work requests per send or receive queue
	MaxSGE      int   // scatter/gather entries per work request
	MaxMsgSize  int64 // bytes per message
	MaxInline   int   // bytes that SendWR.Inline may have; 0: known only of a queue pair
	MaxRDAtomic int   // outstanding READs and atomics per queue pair

	ODP               bool // on-demand paging
	NativeFlush       bool // FLUSH (IBTA 1.5) of both placement types, without emulation
	NativeAtomicWrite bool // ATOMIC_WRITE (IBTA 1.5) without emulation
}

// PortInfo describes one port of a device.
type PortInfo struct {
	Num       int
	State     string // "ACTIVE", "DOWN"
	MTU       MTU    // active MTU: the limit of a datagram; a route may allow less
	Interface string // network interface; empty when the port serves all of the host
	GIDs      []netip.Addr
}

// Device is an open device. What [CMID.Device] gives may be narrower than
// [Provider.Open] of the same name (shm: one peer process) and is another
// after a device was removed and came back: domains and arenas are shared by
// Device value, not by name.
type Device interface {
	Name() string
	Info() *DeviceInfo // of the moment of the call, which looks at the host: not for every connection

	// Dup opens this very device once more, also one that is only lent. What it
	// returns equals the device.
	Dup() (Device, error)

	AllocPD() (PD, error)
	CreateCQ(attr *CQAttr) (CQ, error)

	// Close gives back one Open. What was made of the device keeps working
	// until it is closed itself; the device's resources go with the last of all.
	Close() error
}

// PD is a protection domain: memory regions and queue pairs work together only
// inside one.
type PD interface {
	// NewArena maps size bytes (a multiple of the page size) of memory fit for
	// registration: zeroed, page aligned, outside the Go heap. Many regions are
	// ranges of one arena.
	NewArena(size int) (Arena, error)

	// RegMR registers mem, which lies in one of the domain's arenas or in a
	// mapping of the caller's own, never in the Go heap. Regions may overlap.
	RegMR(mem []byte, access Access) (MR, error)

	CreateSRQ(attr *SRQAttr) (SRQ, error)

	// CreateAH may wait for the neighbour's hardware address (ARP) where the device needs it.
	CreateAH(attr *AHAttr) (AH, error)

	// Close fails while regions, arenas, queue pairs, SRQs or AHs of the domain live.
	Close() error
}

// Arena is a mapping out of which regions are registered.
type Arena interface {
	Bytes() []byte
	Close() error // unmaps; fails while regions of it live
}

// MR is a registered memory region.
type MR interface {
	Bytes() []byte
	Addr() uint64 // address of Bytes()[0] in work requests, own and remote; not a pointer
	LKey() uint32
	RKey() uint32

	// Close deregisters: once it returns nil no peer and no work request
	// touches the memory. ErrBusy means that a peer may still be at it (a stopped process, in shared memory): the
	// memory is not used again, and its owner calls Close again later.
	Close() error
}
