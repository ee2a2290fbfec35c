package dgram

import (
	"net/netip"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Addr is where datagrams come from and go to: a service, by IP address and port; a queue pair, by its number; or
// a group, whose IP address is enough.
type Addr struct {
	IP   netip.Addr
	Port uint16

	GID       [16]byte
	QPN, QKey uint32

	// InfiniBand, of a sender without GRH.
	LID uint16
	SL  uint8
}

// canonical is the address as peers are known by: of a group the IP address tells all.
func (a Addr) canonical() Addr {
	a.IP = a.IP.Unmap()
	if a.IP.IsMulticast() {
		return Addr{IP: a.IP}
	}
	if a.QPN != 0 && a.IP.IsValid() {
		a.GID = a.IP.WithZone("").As16()
	}
	if a.QPN != 0 && a.QKey == 0 {
		a.QKey = verbs.UDPQKey
	}
	return a
}
