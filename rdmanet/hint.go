package rdmanet

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// hint tells in one line what to do about e. It is empty where the error says it
// all, or nothing is to be done.
func hint(e *Error, addr net.Addr) string {
	if h := cmp.Or(resourceHint(e.Err), deviceHint(e.Err)); h != "" {
		return h
	}
	switch e.Phase {
	case PhaseResolve:
		return resolveHint(e.Err)
	case PhaseRoute:
		return routeHint(e, addr)
	case PhaseConnect:
		return connectHint(e)
	case PhaseExchange:
		return "the peer must speak rsockets version 1: use rdmanet or librdmacm's rsockets at both ends"
	case PhaseTransfer:
		return transferHint(e.Err)
	}
	return ""
}

// deviceHint is about choosing a device.
func deviceHint(err error) string {
	var list *cm.DeviceListError
	if errors.As(err, &list) {
		return `write a comma-separated list of ` + strings.Join(list.Have, ", ") +
			` or other devices, a device's port after a slash ("mlx5_0/1")`
	}
	if !errors.Is(err, verbs.ErrNoDevice) {
		return ""
	}
	var unknown *cm.UnknownDeviceError
	if errors.As(err, &unknown) {
		return "rdmanet.Devices lists the devices of this host"
	}
	var none *cm.NoDeviceError
	hostOnly := ""
	if errors.As(err, &none) && none.HostOnly {
		hostOnly = `; Device "shm" listens for processes of this host alone`
	}
	var unasked *cm.UnaskedError
	if errors.As(err, &unasked) {
		return `Device "softroce" or ` + cm.DeviceEnv + "=softroce uses it all the same" + hostOnly
	}
	switch { // the cause tells the rest
	case !errors.Is(err, syscall.EADDRINUSE):
	case none != nil && none.InUse() == cm.Shm:
		return "another port (0 picks a free one), or none named shm, does without"
	default:
		return "to see who has it: ss -lunp 'sport = :4791'" + hostOnly
	}
	if hostOnly == "" && errors.As(err, &none) && none.Listed {
		return `leave Device and ` + cm.DeviceEnv + ` empty to use whatever serves the address`
	}
	return "rdmanet.Devices tells what each device of this host lacks" + hostOnly
}

func resolveHint(err error) string {
	var bad *net.AddrError
	if errors.As(err, &bad) {
		return `an address is "host:port" or "[ip%zone]:port"`
	}
	if errors.As(err, new(net.UnknownNetworkError)) {
		return `the networks are "rdma", "rdma4" and "rdma6", for datagrams "rdma-ud", "rdma-ud4" and "rdma-ud6"`
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return "a listener takes connections to one address of this host, or to all of them" // a multicast address
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return `Listen takes a stream network ("rdma", "rdma4" or "rdma6"), ListenPacket and ListenMulticast "rdma-ud", "rdma-ud4" or "rdma-ud6"`
	}
	return ""
}

func transferHint(err error) string {
	switch {
	case errors.Is(err, syscall.ETIMEDOUT):
		return "the peer's host, its process or the way to it is gone"
	case errors.Is(err, syscall.EMSGSIZE):
		return "an interface, a router or a tunnel has a smaller MTU than when the connection was made: connect again"
	}
	return ""
}

func routeHint(e *Error, addr net.Addr) string {
	err := e.Err
	a, _ := addr.(*Addr)
	switch {
	case e.Provider == cm.Shm && gaveUp(err):
		return stoppedHint
	case a != nil && a.IP.IsLinkLocalUnicast() && a.IP.Is6() && errors.Is(err, syscall.EINVAL):
		return "a link-local address needs its interface: [" + a.IP.WithZone("").String() + "%eth0]:port"
	case errors.Is(err, syscall.EADDRINUSE):
		return "another listener of this host has the port, at this address or, being another process, at any: end it, or choose another port (0 picks a free one)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the local address must be one of this host's; rdmanet.Devices lists those with a device"
	case errors.Is(err, syscall.EMSGSIZE):
		return "RDMA needs an MTU of at least 352 bytes"
	case a != nil && (a.IP.IsMulticast() || a.IP == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return "a stream goes to one host: dial that host's own address"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		if a != nil {
			return "see: ip route get " + a.IP.WithZone("").String()
		}
	}
	return ""
}

func connectHint(e *Error) string {
	err := e.Err
	var rej *RejectError
	switch {
	case errors.As(err, &rej) && rej.Reason == verbs.RejInvalidServiceID:
		return "start a server there with rdmanet.Listen or rsockets; TCP's ports are others than RDMA's"
	case errors.As(err, &rej) && rej.Reason == verbs.RejConsumer:
		return "the server is there and does not want this connection: see its Admit function, its protocol, and whether it listens at this address"
	case errors.As(err, &rej) && rej.Reason == verbs.RejInvalidMTU:
		return "the server's interface has a smaller MTU than this one's: make the two alike"
	case e.Provider == cm.Shm && gaveUp(err):
		return stoppedHint
	case gaveUp(err):
		return "nothing came back: is the host up, UDP port 4791 open in firewalls both ways, and no NAT between?"
	}
	return ""
}

// stoppedHint is about a process of this host that does not answer.
const stoppedHint = "the process that listens there is stopped, or has no time: see ps (state T is stopped)"

func gaveUp(err error) bool {
	return errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, context.DeadlineExceeded)
}

func resourceHint(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.ENFILE):
		return "raise the system's limit of open files (sysctl fs.file-max)"
	case errors.Is(err, syscall.ENOMEM):
		return "use smaller ReadBuffer and WriteBuffer or fewer connections, or raise the limit of locked memory (ulimit -l)"
	}
	return ""
}
