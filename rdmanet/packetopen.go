package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/dgram"
	"github.com/go-rdma/rdma/internal/verbs"
)

// ListenPacket announces a service of datagrams on the network "rdma-ud", "rdma-ud4" or "rdma-ud6", as
// [net.ListenPacket] does on UDP. What it returns is a [*PacketConn]. Peers find it by its address and port: the
// connection manager tells them the number of its queue pair (SIDR, in the port space RDMA_PS_UDP, whose numbers are not UDP's). A host that
// is left out or unspecified means all addresses of this host; port 0 picks a free one.
func ListenPacket(network, address string) (net.PacketConn, error) {
	return new(ListenConfig).ListenPacket(context.Background(), network, address)
}

// ListenPacket announces a service of datagrams, see the function [ListenPacket]. The context ends the announcing only. Admit
// is asked about each peer that looks the service up. Nobody needs to do that to send to it, so it keeps nobody out.
func (lc *ListenConfig) ListenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	nw, err := parseDatagrams(network)
	if err != nil {
		return nil, packetError("listen", network, nil, nil, PhaseResolve, err)
	}
	local, dual, err := cm.LookupListen(ctx, nil, nw.family, address)
	if err != nil {
		addr := AddrFromAddrPort(local)
		if !local.IsValid() {
			return nil, packetError("listen", nw.name, nil, nil, PhaseResolve, contextError(ctx, err))
		}
		e := newError(PhaseResolve, contextError(ctx, err), addr)
		if addr.IP.IsMulticast() {
			e.Hint = "ListenMulticast and JoinGroup are for groups"
		}
		return nil, &net.OpError{Op: "listen", Net: nw.name, Addr: addr, Err: e}
	}
	addr := AddrFromAddrPort(local)
	if err := ctx.Err(); err != nil {
		return nil, packetError("listen", nw.name, nil, addr, PhaseRoute, err)
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	l, err := cm.Default().Listen(ctx, lc.Device, verbs.ListenAttr{
		PortSpace: verbs.PSUDP, Local: local, DualStack: dual, Backlog: backlog, TrafficClass: lc.TrafficClass,
	})
	if err != nil {
		return nil, packetError("listen", nw.name, nil, addr, PhaseRoute, contextError(ctx, err))
	}
	cfg := lc.socket()
	if !dual {
		cfg.Local = local.Addr()
	}
	c := &PacketConn{s: dgram.New(cfg), network: nw, port: l.Addr().Port()}
	if err := c.serve(ctx, l); err != nil {
		_ = c.s.Close() // the first error says more
		return nil, packetError("listen", nw.name, nil, addr, PhaseRoute, contextError(ctx, err))
	}
	return c.opened(), nil
}

// serve has lookups answered on each provider, and makes a queue pair on each.
func (c *PacketConn) serve(ctx context.Context, l *cm.Listener) error {
	var first error
	opened := 0
	for _, p := range l.Parts {
		device := p.Device
		if device == "" {
			device = p.Provider
		}
		err := c.s.Open(ctx, device)
		if err == nil {
			opened++
			err = c.s.Serve(p)
		} else {
			_ = p.Close() // nobody could be answered there
		}
		if err != nil && first == nil {
			first = &cm.ProviderError{Provider: p.Provider, Device: p.Device, Err: err}
		}
	}
	if opened == 0 {
		return first
	}
	return nil
}

// socket is the configuration of a socket of datagrams.
func (lc *ListenConfig) socket() *dgram.Config {
	cfg := &dgram.Config{
		Resolve: cm.Default().Resolve, Devices: lc.Device, TrafficClass: lc.TrafficClass,
		ReadBuffer: lc.ReadBuffer, WriteBuffer: lc.WriteBuffer, BusyPoll: lc.BusyPoll,
		Intern: func(a dgram.Addr) net.Addr { return addrOfPeer(a) },
	}
	if lc.Admit != nil {
		cfg.Admit = func(id verbs.CMID) error {
			return lc.Admit(&Request{
				Local: AddrFromAddrPort(id.LocalAddr()), Remote: AddrFromAddrPort(id.RemoteAddr()),
				Provider: id.Provider().Name(), Device: id.Device().Name(),
			})
		}
	}
	return cfg
}

// datagram finds a service at one address. Its errors are complete.
func (x *dialing) datagram(ctx context.Context, addr netip.AddrPort) (*PacketConn, error) {
	remote := AddrFromAddrPort(addr)
	lc := ListenConfig{
		ReadBuffer: x.ReadBuffer, WriteBuffer: x.WriteBuffer, BusyPoll: x.BusyPoll, TrafficClass: x.TrafficClass, Device: x.Device,
	}
	cfg := lc.socket()
	cfg.Local, cfg.LocalPort = x.local.Addr(), x.local.Port()
	c := &PacketConn{s: dgram.New(cfg), network: x.network, dialed: true}
	err := ctx.Err()
	if err == nil {
		err = c.s.Dial(ctx, remote.dgram())
	}
	provider, device := c.s.Device()
	if err != nil {
		_ = c.s.Close() // the first error says more
		phase := PhaseRoute
		if errors.Is(err, syscall.ETIMEDOUT) || ctx.Err() != nil {
			phase = PhaseConnect
		}
		e := newError(packetPhase(err, phase), contextError(ctx, err), remote)
		e.Hint = packetHint(e, remote)
		if e.Provider == "" {
			e.Provider, e.Device = provider, device
		}
		t := totalsOf(e.Provider, e.Device)
		t.dials.Add(1)
		t.dialErrors.Add(1)
		return nil, &net.OpError{Op: "dial", Net: x.network.name, Source: x.source(), Addr: remote, Err: e}
	}
	totalsOf(provider, device).dials.Add(1)
	return c.opened(), nil
}
