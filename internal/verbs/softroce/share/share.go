// Package share lets several processes of one user live behind one UDP port. The
// kernel gives the packets of a flow to one of them, whichever it likes; the package tells whose they
// are and passes them on.
//
// Each process has a slot, a number that is part of its queue pair numbers and communication IDs,
// and each port of the connection manager that it listens on has a name. Slots and ports are abstract
// Unix sockets (unix(7)): the kernel sees to it that each has one owner, frees them when a process dies,
// vouches for who is at the other end, and keeps network namespaces apart. The names contain
// the version of the protocol, the UDP port and the user.
//
// Nothing here waits for another process: what it does not take at once is dropped, as
// a network would.
//
// On systems other than Linux a process has only itself.
package share

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// Slots are the numbers 1 to MaxSlot.
const MaxSlot = 254

// Reasons for which HandOver and Watch fail.
var (
	// ErrUnclaimed: no process has the slot or port.
	ErrUnclaimed = errors.New("no process of this user has it")
	// ErrOwn: this process has it.
	ErrOwn = errors.New("this process has it")
	// ErrForeign: a process of another user has taken the name.
	ErrForeign = errors.New("another user's process has taken the name")
	// ErrDropped: the process that has it does not take more, or no descriptor was left.
	ErrDropped = errors.New("dropped")
)

// Config says how a [Process] takes part.
type Config struct {
	// Port is the shared UDP port. 0: 4791.
	Port uint16

	// Received gets the packets that others hand over. It is called from several goroutines at
	// once, in the order in which one process hands over to one target. The packet is
	// valid until it returns.
	Received func(pkt *netio.Packet)

	// Short, if not nil, is told when descriptors or memory ran out, and what others
	// hand over has to wait or is lost. It must not wait.
	Short func(err error)
}

// Target is what a packet is for: a slot, or if that is 0 a port of the connection manager.
type Target struct {
	Slot      uint8
	PortSpace verbs.PortSpace
	Port      uint16
}

func (t Target) String() string {
	if t.Slot != 0 {
		return fmt.Sprintf("slot %d", t.Slot)
	}
	return fmt.Sprintf("port %d of port space %v", t.Port, t.PortSpace)
}

// InUseError says who holds a port. It is EADDRINUSE to errors.Is.
type InUseError struct {
	Target Target
	UID    int // -1: not known
	PID    int // 0: not known; the number as this process sees it
}

func (e *InUseError) Error() string {
	s := e.Target.String() + ": address already in use"
	switch {
	case e.UID < 0:
	case e.UID != syscall.Geteuid():
		s += fmt.Sprintf(" by a process of uid %d", e.UID)
	case e.PID == syscall.Getpid():
		s += " by this process"
	case e.PID != 0:
		s += fmt.Sprintf(" by process %d", e.PID)
	}
	return s
}

// Unwrap returns EADDRINUSE.
func (e *InUseError) Unwrap() error { return syscall.EADDRINUSE }

// Stats counts packets and connections between processes.
type Stats struct {
	HandedOver uint64 // packets that another process's queue took
	Received   uint64 // packets from others
	Dropped    uint64 // packets that HandOver could not pass on, unclaimed targets aside
	Malformed  uint64 // messages of another version, or that make no sense
	Foreign    uint64 // connections from or to other users' processes
	Refused    uint64 // connections from a process that has too many
}

type counters struct {
	handedOver, received, dropped, malformed, foreign, refused atomic.Uint64
}

// Process is this process's part. Its methods are safe for concurrent use, and but for
// Close may be called from its callbacks.
type Process struct {
	cfg   Config
	slot  uint8
	ports portTable
	counters
	sys
}

// Join claims a free slot.
func Join(cfg Config) (*Process, error) {
	if cfg.Port == 0 {
		cfg.Port = netio.Port
	}
	p := &Process{cfg: cfg}
	p.ports.held = make(map[portKey]*heldPort)
	if err := p.join(); err != nil {
		return nil, err
	}
	return p, nil
}

// Slot returns the process's slot.
func (p *Process) Slot() uint8 { return p.slot }

// Stats returns what happened so far.
func (p *Process) Stats() Stats {
	return Stats{
		HandedOver: p.handedOver.Load(),
		Received:   p.counters.received.Load(),
		Dropped:    p.dropped.Load(),
		Malformed:  p.malformed.Load(),
		Foreign:    p.foreign.Load(),
		Refused:    p.refused.Load(),
	}
}

// BindPort binds a port of the connection manager, and returns its number: port 0 asks for
// a free one. The zero addr is the wildcard of both families.
//
// Inside the process, addresses conflict as those of sockets do: a wildcard with every address of its
// family, others with the same one. Between processes a port has one holder for all addresses.
// A conflict is an [*InUseError].
func (p *Process) BindPort(ps verbs.PortSpace, addr netip.Addr, port uint16) (bound uint16, release func(), err error) {
	return p.ports.bind(ps, addr.Unmap().WithZone(""), port, p.claim)
}

// HandOver passes a packet on to the process that has the target. It never waits: what is
// dropped is counted, and the error tells why. ErrUnclaimed asks the caller to answer in the place
// of the process that is not there.
func (p *Process) HandOver(to Target, pkt *netio.Packet) error {
	if to.Slot == p.slot || to.Slot == 0 && p.ports.has(to.PortSpace, to.Port) {
		return ErrOwn
	}
	err := p.handOver(to, pkt)
	switch {
	case err == nil:
		p.handedOver.Add(1)
	case !errors.Is(err, ErrUnclaimed):
		p.dropped.Add(1)
		p.tellShort(err)
	}
	return err
}

// Watch calls died once when the process that has the slot has died, or has left. Once stop
// has returned, the call does not begin any more. A slot without a process gives ErrUnclaimed.
func (p *Process) Watch(slot uint8, died func()) (stop func(), err error) {
	if slot == p.slot {
		return nil, ErrOwn
	}
	stop, err = p.watch(slot, died)
	p.tellShort(err)
	return stop, err
}

// Shortage tells whether an error says that something ran out, which may come back.
func Shortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *Process) tellShort(err error) {
	if p.cfg.Short != nil && Shortage(err) {
		p.cfg.Short(err)
	}
}

// Close gives slot and ports up. No callback runs once it returns; so it must not be called by one.
func (p *Process) Close() error {
	p.ports.close()
	return p.leave()
}
