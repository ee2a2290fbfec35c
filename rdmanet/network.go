package rdmanet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-rdma/rdma/internal/cm"
)

// network is a network name, understood.
type network struct {
	name      string // as errors show it
	family    cm.Family
	datagrams bool
}

// allows tells whether an address is of the network's family.
func (n network) allows(a netip.Addr) bool {
	switch n.family {
	case cm.IPv4:
		return a.Is4()
	case cm.IPv6:
		return a.Is6()
	}
	return true
}

// parseNetwork reads the name of a network. TCP's and UDP's names are taken for
// RDMA's, since programs have them in their source.
func parseNetwork(name string) (network, error) {
	switch name {
	case "rdma", "tcp":
		return network{"rdma", cm.AnyFamily, false}, nil
	case "rdma4", "tcp4":
		return network{"rdma4", cm.IPv4, false}, nil
	case "rdma6", "tcp6":
		return network{"rdma6", cm.IPv6, false}, nil
	case "rdma-ud", "udp":
		return network{"rdma-ud", cm.AnyFamily, true}, nil
	case "rdma-ud4", "udp4":
		return network{"rdma-ud4", cm.IPv4, true}, nil
	case "rdma-ud6", "udp6":
		return network{"rdma-ud6", cm.IPv6, true}, nil
	}
	return network{}, net.UnknownNetworkError(name)
}

// parseStreams is parseNetwork where only streams are wanted.
func parseStreams(name string) (network, error) {
	nw, err := parseNetwork(name)
	if err == nil && nw.datagrams {
		err = fmt.Errorf("datagram network %q: %w", name, errors.ErrUnsupported)
	}
	return nw, err
}

// parseDatagrams is parseNetwork where only datagrams are wanted.
func parseDatagrams(name string) (network, error) {
	nw, err := parseNetwork(name)
	if err == nil && !nw.datagrams {
		err = fmt.Errorf("stream network %q: %w", name, errors.ErrUnsupported)
	}
	return nw, err
}
