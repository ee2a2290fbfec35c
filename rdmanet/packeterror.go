package rdmanet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/go-rdma/rdma/internal/dgram"
	"github.com/go-rdma/rdma/internal/verbs"
)

// packetError is opError for datagrams.
func packetError(op, network string, source, addr net.Addr, phase Phase, err error) error {
	err = opError(op, network, source, addr, phase, err)
	var e *Error
	if errors.As(err, &e) {
		e.Hint = packetHint(e, addr)
	}
	return err
}

// packetPhase tells what was being done when an error happened, where the error knows it better than its receiver.
func packetPhase(err error, phase Phase) Phase {
	var refused *verbs.LookupError
	switch {
	case errors.As(err, &refused):
		return PhaseConnect
	case errors.Is(err, dgram.ErrNotMulticast):
		return PhaseResolve
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return PhaseRoute
	}
	return phase
}

// packetHint is hint for datagrams.
func packetHint(e *Error, addr net.Addr) string {
	if h := cmp.Or(resourceHint(e.Err), deviceHint(e.Err)); h != "" {
		return h
	}
	var refused *verbs.LookupError
	a, _ := addr.(*Addr)
	switch {
	case errors.Is(e.Err, dgram.ErrNotMulticast):
		return "a group's address is 224.0.0.0 to 239.255.255.255 or ff00::/8; to reach one host, use Dial or WriteTo"
	case errors.As(e.Err, &refused) && refused.Status == verbs.SIDRUnsupported:
		return "start a service there with rdmanet.ListenPacket or rdma_listen(3) in RDMA_PS_UDP; UDP's ports are others than RDMA's"
	case errors.As(e.Err, &refused):
		return "the service is there and does not want this peer"
	case errors.Is(e.Err, syscall.EDESTADDRREQ):
		return "an address needs an IP address, and a port or a queue pair number; Write needs a connection that was dialed"
	case e.Phase == PhaseTransfer && errors.Is(e.Err, syscall.EMSGSIZE):
		return "PacketConn.MaxPayload tells the limit, of ways within the network of the device's port"
	case e.Phase == PhaseTransfer && errors.Is(e.Err, syscall.ETIMEDOUT), errors.Is(e.Err, context.DeadlineExceeded):
		return "nothing came back: is the host up, UDP port 4791 open in firewalls both ways, and no NAT between?"
	case errors.Is(e.Err, syscall.ECONNRESET):
		return "the queue pair is made anew: go on, peers find it by itself"
	case e.Phase == PhaseRoute && a != nil && (a.IP.IsMulticast() || a.IP.IsUnspecified()):
		if errors.Is(e.Err, syscall.EADDRNOTAVAIL) {
			return "name an interface that has an address of the group's family, or none"
		}
		return ""
	}
	return hint(e, addr)
}
