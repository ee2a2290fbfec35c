package netio

import (
	"strconv"
	"syscall"
	"time"
)

// Config says how a [UDP] works. Only Handler is needed.
type Config struct {
	Handler Handler

	// Port is the UDP port to receive on, and RemotePort the one to send to. 0: 4791, and Port.
	// Another port gives packets that no other implementation takes: the ICRC is that of 4791.
	Port, RemotePort uint16

	// SourcePorts is the number of UDP source ports for each family. 0: 4. A process that may have few files gets fewer.
	SourcePorts int

	// MaxPreferred bounds the sockets that Prefer opens, of two descriptors each. 0: 64, or fewer if the process may have few files.
	MaxPreferred int

	// NoGSO and NoGRO do without the kernel's segmentation offloads.
	NoGSO, NoGRO bool

	// Trace is shown what is sent, and what came in and is no good. Nil: nobody.
	Trace Tracer
}

// Tracer records packets. It is called from several goroutines at once, keeps
// nothing of what it is given, and does not wait.
type Tracer interface {
	// Sent is called when the network has taken a packet, which was made at the time at: hdr, frags
	// and tail are BTH to ICRC, port is its UDP source port and id its IPv4 identification.
	Sent(at time.Time, p *Path, port, id uint16, hdr []byte, frags [][]byte, tail []byte)

	// Refused is called for a datagram that is dropped. Of p, Data and ID are not set.
	Refused(p *Packet, datagram []byte, why string)
}

func (c Config) withDefaults() Config {
	if c.Port == 0 {
		c.Port = Port
	}
	if c.RemotePort == 0 {
		c.RemotePort = c.Port
	}
	if c.SourcePorts == 0 {
		c.SourcePorts = 4
	}
	if c.MaxPreferred == 0 {
		c.MaxPreferred = 64
	}
	return c
}

// PortBusyError says that somebody else has the UDP port. It is EADDRINUSE to errors.Is.
type PortBusyError struct {
	Port uint16
	UID  int  // who holds it, or -1 if that could not be found out
	Rxe  bool // the kernel's own Soft-RoCE is there, and likely the holder
}

func (e *PortBusyError) Error() string {
	s := "UDP port " + strconv.Itoa(int(e.Port)) + " is in use"
	switch {
	case e.Rxe:
		return s + " by the kernel's Soft-RoCE (rdma_rxe): use that device through libibverbs, or remove the module (modprobe -r rdma_rxe)"
	case e.UID < 0:
		return s + ": another user has it, and only processes of one user can share it; end that process or use another network namespace"
	case e.UID == syscall.Geteuid():
		return s + " by another program of this user (uid " + strconv.Itoa(e.UID) + ") that does not share it: end that program or use another network namespace"
	}
	uid := strconv.Itoa(e.UID)
	return s + " by uid " + uid + ", and only processes of one user can share it: run as uid " + uid +
		", end that process, or use another network namespace"
}

// Unwrap returns EADDRINUSE.
func (e *PortBusyError) Unwrap() error { return syscall.EADDRINUSE }
