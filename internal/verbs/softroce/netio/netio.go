// Package netio carries RoCEv2 packets: batches of them out to a network, and
// verified ones in. It knows UDP, the invariant CRC and the kernel's segmentation
// offloads; it knows nothing of queue pairs.
//
// [Conn] is the seam at which a simulated network takes the kernel's place.
package netio

import (
	"net/netip"
	"sync/atomic"
	"syscall"
)

// Port is the UDP port of RoCEv2 (IANA).
const Port = 4791

// Path is the way of a queue pair's packets. It must not be copied once used.
type Path struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	HopLimit      uint8 // 0: 64
	Interface     int   // index of the one by which packets to a group leave; 0: by route

	// flow picks one of the UDP source ports. Packets of one flow keep their order.
	flow    atomic.Uint32
	fresh   atomic.Pointer[atomic.Int32] // how many paths use its port, if that is one of Fresh
	single  atomic.Bool
	tooLong atomic.Bool
	errno   atomic.Uint32

	enc atomic.Pointer[pathEnc] // what a Conn keeps of it
}

// Flow returns the number that picks the path's UDP source port.
func (p *Path) Flow() uint32 { return p.flow.Load() }

// SetFlow picks a UDP source port. A sender changes it to leave a way on which packets vanish.
func (p *Path) SetFlow(f uint32) {
	p.leaveFresh(nil)
	p.flow.Store(f &^ freshFlow)
}

// SetSingle asks that packets of the path are not left to the kernel or a NIC to be cut out of
// larger sends: the receiver checks the IPv4 identification that each gets, and hardware that
// numbers them otherwise than Linux does makes packets vanish. A sender that gets no answer tries it.
func (p *Path) SetSingle(on bool) { p.single.Store(on) }

// Err returns why the last Send did not put packets of the path on the network, or nil. It
// tells the paths of a batch apart.
func (p *Path) Err() error {
	if e := p.errno.Load(); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// TooLong tells whether a packet was longer than the way to the peer carries: the interface's MTU or
// what a router reported (path MTU discovery) is smaller than it was.
func (p *Path) TooLong() bool { return p.tooLong.Load() }

// SetTooLong is for implementations of [Conn].
func (p *Path) SetTooLong() { p.tooLong.Store(true) }

func (p *Path) setErr(e syscall.Errno) {
	if p.errno.Load() != uint32(e) {
		p.errno.Store(uint32(e))
	}
}

// Packet is one received packet whose ICRC was right.
type Packet struct {
	Local        netip.Addr     // destination address
	Remote       netip.AddrPort // source address and UDP source port
	TrafficClass uint8
	HopLimit     uint8
	ID           uint16 // IPv4 identification
	Interface    int    // of a packet to a group: index of the one on which it came

	// Data is BTH to pad, without the ICRC. It is valid until the handler returns.
	Data []byte
}

// Handler takes received packets. It is called from several goroutines at once,
// with packets of one flow in the order of their arrival.
type Handler interface {
	HandlePackets(ps []Packet)
}

// Idler is a Handler that wants to know when the goroutine of a [UDP] that has called it is about to sleep.
type Idler interface{ HandleIdle() }

// Route is how this host reaches an address.
type Route struct {
	Local     netip.Addr
	Remote    netip.Addr // as packets from there will name it: unmapped, the zone by its name
	Interface string
	Index     int // of the interface; Route does not tell it
	MTU       int // of the route, which is at most that of the interface; bytes
}

// Conn is a network's face to a softroce device.
type Conn interface {
	// Send sends the batch's packets in order and empties it. A network loses
	// packets silently; an error (EMSGSIZE, ENETUNREACH, EHOSTUNREACH, net.ErrClosed) is one that every
	// further attempt would meet too.
	Send(b *TxBatch) error

	// Poll hands over what has arrived, unless another goroutine is about it,
	// and returns the number of packets. It never waits.
	Poll() int

	// Route finds the source address for remote. A valid local is checked
	// (EADDRNOTAVAIL) and kept.
	Route(local, remote netip.Addr) (Route, error)

	// Addrs lists the host's addresses.
	Addrs() ([]netip.Addr, error)

	Groups

	// Prefer asks that packets from remote to local come to this process
	// rather than to another that shares the port.
	Prefer(local netip.Addr, remote netip.AddrPort)

	// Fresh gives a path a flow on a UDP source port that nothing was sent from before, as far as there are enough:
	// no process of the peer's host can have asked for its packets. SetFlow gives the port back. Fresh
	// returns its number, or 0 if there is none.
	Fresh(p *Path) uint16

	// Close stops. No handler runs once it returns.
	Close() error
}

// Stats counts what a Conn dropped.
type Stats struct {
	BadICRC uint64 // ICRC wrong: corruption, NAT, or no RoCE at all
	Runts   uint64 // shorter than BTH and ICRC, or of a length that is no multiple of 4
	Unsent  uint64 // the kernel had no room for them
}
