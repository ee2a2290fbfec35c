// Package relay joins connections: what comes on one goes out on the other, both ways, until both ways have ended. Each
// may be on TCP, a Unix socket or RDMA.
package relay

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/go-rdma/rdma/rdmanet"
)

// Endpoint is an address with its network.
type Endpoint struct {
	Network string // "tcp", "tcp4", "tcp6", "unix", "rdma", "rdma4" or "rdma6"
	Address string
}

// Networks are what an endpoint may begin with.
var Networks = []string{"rdma", "rdma4", "rdma6", "tcp", "tcp4", "tcp6", "unix"}

// ParseEndpoint reads "network://address" or "network:address".
func ParseEndpoint(s string) (Endpoint, error) {
	network, address, ok := strings.Cut(s, ":")
	if known := false; ok {
		for _, n := range Networks {
			known = known || n == network
		}
		ok = known
	}
	if !ok {
		return Endpoint{}, fmt.Errorf("endpoint %q: write network://address, the network being one of %s: tcp://127.0.0.1:6379, rdma://:6379, unix:///run/x.sock",
			s, strings.Join(Networks, ", "))
	}
	address = strings.TrimPrefix(address, "//")
	if address == "" {
		return Endpoint{}, fmt.Errorf("endpoint %q: an address is missing behind %s://", s, network)
	}
	if network != "unix" {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %q: %w: an address is host:port or [ip%%zone]:port", s, err)
		}
	}
	return Endpoint{network, address}, nil
}

func (e Endpoint) String() string { return e.Network + "://" + e.Address }

func (e Endpoint) rdma() bool { return strings.HasPrefix(e.Network, "rdma") }

// Listen announces the endpoint. device is that of a rdmanet.ListenConfig.
func (e Endpoint) Listen(ctx context.Context, device string) (net.Listener, error) {
	if e.rdma() {
		return (&rdmanet.ListenConfig{Device: device}).Listen(ctx, e.Network, e.Address)
	}
	return new(net.ListenConfig).Listen(ctx, e.Network, e.Address)
}

// Dial connects to the endpoint. device is that of a rdmanet.Dialer.
func (e Endpoint) Dial(ctx context.Context, device string) (net.Conn, error) {
	if e.rdma() {
		return (&rdmanet.Dialer{Device: device}).DialContext(ctx, e.Network, e.Address)
	}
	return new(net.Dialer).DialContext(ctx, e.Network, e.Address)
}
