package rdmanet

import (
	"errors"
	"fmt"
	"net"

	"github.com/go-rdma/rdma/internal/cm"
)

// network is a network name, understood.
type network struct {
	name   string // as errors show it
	family cm.Family
}

// parseNetwork reads the name of a stream network. TCP's names are taken for
// RDMA's, since programs have them in their source.
func parseNetwork(name string) (network, error) {
	switch name {
	case "rdma", "tcp":
		return network{"rdma", cm.AnyFamily}, nil
	case "rdma4", "tcp4":
		return network{"rdma4", cm.IPv4}, nil
	case "rdma6", "tcp6":
		return network{"rdma6", cm.IPv6}, nil
	case "rdma-ud", "rdma-ud4", "rdma-ud6", "udp", "udp4", "udp6":
		return network{}, fmt.Errorf("datagram network %q: %w", name, errors.ErrUnsupported)
	}
	return network{}, net.UnknownNetworkError(name)
}
