package rdmanet

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-rdma/rdma/internal/cm"
)

// Addr is the address of one end of a connection: an IP address of a host and a port
// number in the space of RDMA streams, or that of datagrams, which are not TCP's and UDP's. It is comparable.
type Addr struct {
	IP   netip.Addr // with zone; IPv4 is never 4-in-6
	Port uint16
	UD   UDAddr // what a reply to a datagram needs; zero for streams
}

// UDAddr is the address of a datagram queue pair.
type UDAddr struct {
	GID       [16]byte // on RoCE: of the IP address
	QPN, QKey uint32

	// On InfiniBand, of a group, and of a sender that sends no GRH and thus no GID.
	LID uint16
	SL  uint8
}

// ResolveAddr reads "host:port" as [net.ResolveTCPAddr] does. The network is
// "rdma", "rdma4" or "rdma6", or empty for "rdma", or one of datagrams. Of a name with several
// addresses it takes the first IPv4 one, if there is one.
func ResolveAddr(network, address string) (*Addr, error) {
	if network == "" {
		network = "rdma"
	}
	nw, err := parseNetwork(network)
	if err != nil {
		return nil, err
	}
	addrs, err := cm.Lookup(context.Background(), nil, nw.family, address)
	if err != nil {
		return nil, err
	}
	a := addrs[0]
	for _, b := range addrs {
		if b.Addr().Is4() {
			a = b
			break
		}
	}
	return AddrFromAddrPort(a), nil
}

// AddrFromAddrPort returns the address ap of a stream, or of a service of datagrams.
func AddrFromAddrPort(ap netip.AddrPort) *Addr {
	return &Addr{IP: ap.Addr().Unmap(), Port: ap.Port()}
}

// AddrPort returns the address without what only datagrams need.
func (a *Addr) AddrPort() netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.IP, a.Port)
}

// Network returns "rdma", or "rdma-ud" for the address of a datagram queue pair.
func (a *Addr) Network() string {
	if a != nil && a.UD != (UDAddr{}) {
		return "rdma-ud"
	}
	return "rdma"
}

// String returns "ip:port" or "[ip%zone]:port"; ":port" if there is no IP address. The
// sender of a datagram whose port is not known is "ip:qp0x00002a".
func (a *Addr) String() string {
	if a == nil {
		return "<nil>"
	}
	host := ""
	if a.IP.IsValid() {
		host = a.IP.String()
	}
	if a.Port == 0 && a.UD.QPN != 0 {
		return net.JoinHostPort(host, fmt.Sprintf("qp0x%06x", a.UD.QPN))
	}
	return net.JoinHostPort(host, fmt.Sprint(a.Port))
}

// localAddrPort reads what a Dialer's LocalAddr may be.
func localAddrPort(a net.Addr) (netip.AddrPort, error) {
	ap := netip.AddrPort{}
	switch a := a.(type) {
	case nil:
	case *Addr:
		ap = a.AddrPort()
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	case *net.IPAddr:
		if a != nil {
			ip, _ := netip.AddrFromSlice(a.IP)
			ap = netip.AddrPortFrom(ip.WithZone(a.Zone), 0)
		}
	default:
		return ap, &net.AddrError{Err: "mismatched local address type", Addr: a.String()}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}
