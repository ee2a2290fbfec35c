package rdmanet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/ring"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Dial connects to the address on the network "rdma", "rdma4" or "rdma6", as
// [net.Dial] does on TCP. What it returns is a [*Conn]. A host that is left out
// or unspecified is this one.
//
// On "rdma-ud", "rdma-ud4" or "rdma-ud6" it looks up a service of datagrams, as [net.Dial] would on UDP, and
// returns a [*PacketConn] that writes to it and reads what comes from it.
func Dial(network, address string) (net.Conn, error) {
	return new(Dialer).Dial(network, address)
}

// DialTimeout is [Dial] with a limit of time, which includes name resolution.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout}).Dial(network, address)
}

// A Dialer holds options of connecting. Its zero value is ready for use. It is read
// when a method is called and may be copied and shared. Fields named as in
// [net.Dialer] mean what they mean there.
type Dialer struct {
	// Timeout and Deadline limit the time for connecting, name resolution
	// included. Where a name has several addresses the time is shared among
	// them. Zero: no limit but the network's own.
	Timeout  time.Duration
	Deadline time.Time

	// LocalAddr is the address to connect from: a *Addr, *net.TCPAddr, *net.UDPAddr
	// or *net.IPAddr. On a host with several ports it also picks the port.
	LocalAddr net.Addr

	// FallbackDelay is how long to wait for an address of the preferred
	// family before one of the other is tried beside it (RFC 8305). 0: 300 ms, negative: one
	// after the other.
	FallbackDelay time.Duration

	// KeepAlive and KeepAliveConfig say when a silent peer is asked whether it
	// lives. Zero: Idle 15 s, Interval 15 s, Count 9; the transport may give up earlier than Count
	// says (see the package comment). A negative
	// KeepAlive: never, if KeepAliveConfig is not enabled.
	KeepAlive       time.Duration
	KeepAliveConfig net.KeepAliveConfig

	// Resolver looks names up. Nil: net.DefaultResolver.
	Resolver *net.Resolver

	// Device is a comma-separated list, best first, of providers ("shm", "rdmacore",
	// "softroce") and devices ("mlx5_0", "mlx5_0/1" for one port of it). Empty: what
	// RDMANET_DEVICE says, else shared memory (shm) to a listener of this host and this user, or root's, that is on it, else
	// whatever serves the address. "shm" alone connects to whoever holds the port, whose ever process it is.
	Device string

	// ReadBuffer and WriteBuffer limit the rings of the connection, in bytes. They
	// start small and grow with use. 0: 2 MiB.
	ReadBuffer  int
	WriteBuffer int

	// BusyPoll is how long, at most, a Read that finds nothing looks again and again
	// before it sleeps. 0: as seems good, negative: not at all. See [Conn.SetBusyPoll].
	BusyPoll time.Duration

	// TrafficClass is the DSCP, shifted left by two, of the packets. 0: the device's default.
	TrafficClass uint8

	// Fallback, if it is not nil, dials the same address by TCP where connecting by RDMA fails, or takes
	// longer than FallbackAfter; the connection is then a [*net.TCPConn]. Its own fields apply
	// (LocalAddr, KeepAlive, Timeout ...); a nil Resolver is the one above. For a minute after that TCP is tried first
	// for the destination. Each is counted ([DeviceStats]), and each cause logged once. It is for streams only. See the package comment
	// on what it means for security.
	Fallback *net.Dialer

	// FallbackAfter is how long RDMA has before TCP is tried beside it, at most half of the time there is. The
	// one that connects first serves, the other is given up. 0: 300 ms, negative: TCP only once RDMA has failed, for which it has half of the time.
	FallbackAfter time.Duration

	// Logger takes warnings. Nil: slog.Default().
	Logger *slog.Logger
}

// Dial is DialContext with the background context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to the address. The context ends the dialing only, not a
// connection that stands. Of several addresses that a name has, each is tried in order until one
// works; if none does, the first one's error is returned.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nw, err := parseNetwork(network)
	if err != nil {
		return nil, opError("dial", network, nil, nil, PhaseResolve, err)
	}
	if deadline := d.deadline(); !deadline.IsZero() {
		sub, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		ctx = sub
	}
	local, err := localAddrPort(d.LocalAddr)
	if err != nil {
		return nil, opError("dial", nw.name, d.LocalAddr, nil, PhaseResolve, err)
	}
	addrs, err := cm.LookupDial(ctx, d.Resolver, nw.family, address)
	if err != nil {
		return nil, opError("dial", nw.name, d.source(), nil, PhaseResolve, contextError(ctx, err))
	}
	if addrs = sameFamily(addrs, local.Addr()); len(addrs) == 0 {
		err = &net.AddrError{Err: "no suitable address found for the local address", Addr: address}
		return nil, opError("dial", nw.name, d.source(), nil, PhaseResolve, err)
	}
	x := &dialing{Dialer: d, network: nw, local: local}
	if nw.datagrams {
		c, err := (&attempts[*PacketConn]{d.FallbackDelay, x.datagram}).any(ctx, addrs)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	if d.Fallback != nil {
		return x.orTCP(ctx, addrs, address)
	}
	return x.rdma(ctx, addrs)
}

// deadline is the earlier one of Timeout and Deadline.
func (d *Dialer) deadline() time.Time {
	t := d.Deadline
	if d.Timeout != 0 {
		if u := time.Now().Add(d.Timeout); t.IsZero() || u.Before(t) {
			t = u
		}
	}
	return t
}

// source is LocalAddr without the trap of a typed nil.
func (d *Dialer) source() net.Addr {
	if ap, err := localAddrPort(d.LocalAddr); err == nil && ap == (netip.AddrPort{}) {
		return nil
	}
	return d.LocalAddr
}

// sameFamily leaves the addresses that can be reached from local.
func sameFamily(addrs []netip.AddrPort, local netip.Addr) []netip.AddrPort {
	if !local.IsValid() {
		return addrs
	}
	var same []netip.AddrPort
	for _, a := range addrs {
		if a.Addr().Is4() == local.Is4() {
			same = append(same, a)
		}
	}
	return same
}

// dialing is one call of DialContext.
type dialing struct {
	*Dialer
	network network
	local   netip.AddrPort
	tried   tried
}

// one connects to one address. Its errors are complete.
func (x *dialing) one(ctx context.Context, addr netip.AddrPort) (*Conn, error) {
	remote := AddrFromAddrPort(addr)
	var c *Conn // as far as it got
	fail := func(phase Phase, err error) error {
		e := newError(phase, contextError(ctx, err), remote)
		var at *cm.ProviderError
		if c != nil {
			e.Provider, e.Device = c.provider, c.device
		} else if errors.As(err, &at) {
			e.Provider, e.Device = at.Provider, at.Device
		}
		e.Hint = hint(e, remote)
		device := totalsOf(e.Provider, e.Device)
		x.tried.device(device)
		device.dials.Add(1)
		device.dialErrors.Add(1)
		return &net.OpError{Op: "dial", Net: x.network.name, Source: x.source(), Addr: remote, Err: e}
	}
	if err := ctx.Err(); err != nil {
		return nil, fail(PhaseConnect, err)
	}
	x.tried.addr(addr)
	cfg := ringConfig(x.ReadBuffer, x.WriteBuffer, x.BusyPoll, x.KeepAlive, x.KeepAliveConfig)
	var failed error
	err := cm.Default().Dial(ctx, x.Device, verbs.CMIDAttr{
		PortSpace: verbs.PSTCP, Local: x.local, Remote: addr, TrafficClass: x.TrafficClass,
	}, func(id verbs.CMID) error {
		c = newConn(x.network.name, id, cfg.KeepAlive)
		x.tried.device(c.totals)
		c.ring, failed = ring.Client(ctx, id, cfg)
		return failed
	})
	switch {
	case err == nil:
	case failed != nil && errors.Is(err, failed):
		return nil, fail(PhaseConnect, err)
	default:
		c = nil // if anything, what went before the last provider
		return nil, fail(PhaseRoute, err)
	}
	c.local = AddrFromAddrPort(c.ring.LocalAddr()) // the port may have been chosen while connecting
	c.opened()
	c.totals.dials.Add(1)
	return c, nil
}
