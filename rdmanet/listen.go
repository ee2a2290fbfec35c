package rdmanet

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Listen announces a stream address on the network "rdma", "rdma4" or "rdma6", as
// [net.Listen] does on TCP. What it returns is a [*Listener]. A host that is left
// out or unspecified means all addresses of this host; port 0 picks a free one. Listeners of one process may have
// a port at different addresses, as TCP's; of several processes one has it, for all addresses.
func Listen(network, address string) (net.Listener, error) {
	return new(ListenConfig).Listen(context.Background(), network, address)
}

// A ListenConfig holds options of listening. Its zero value is ready for use. It
// is read when Listen is called and may be copied and shared.
type ListenConfig struct {
	// KeepAlive, KeepAliveConfig, ReadBuffer, WriteBuffer, BusyPoll and TrafficClass
	// are for accepted connections what they are for dialed ones: see Dialer.
	KeepAlive               time.Duration
	KeepAliveConfig         net.KeepAliveConfig
	ReadBuffer, WriteBuffer int
	BusyPoll                time.Duration
	TrafficClass            uint8

	// Device is a list as a Dialer's. The listener listens on all of it that serves
	// the address, at one port number. Empty: what RDMANET_DEVICE says, else all there is. Shared memory alone, which is for processes of this
	// host, will do only for a loopback address, or if the list is "shm".
	Device string

	// Backlog bounds the connections that are being set up or wait for Accept.
	// Requests beyond it are dropped, so that dialers try again; a peer that does
	// not answer for half a second, or less in a flood of them, makes room for others. 0: 1024.
	Backlog int

	// Admit is asked about each request, before anything is allocated for it; an error
	// rejects it. It may be called from several goroutines. Nil admits all; over shared memory, processes of this user and
	// of root, while the function is asked about other users' too.
	// With Fallback it is asked about TCP connections, too, which it can only end.
	Admit func(r *Request) error

	// Fallback, if it is not nil, takes TCP connections on the same port number, too: Accept returns either a
	// *Conn or a [*net.TCPConn]. Port 0 picks a number that is free with both. Its own fields apply to TCP, whose backlog is the
	// kernel's. Where no device serves the address there is TCP alone, and a line in the log. It is for streams only.
	Fallback *net.ListenConfig

	// Logger takes warnings. Nil: slog.Default().
	Logger *slog.Logger
}

// Request is a peer's wish to connect, as Admit sees it.
type Request struct {
	Local  *Addr
	Remote *Addr // a claim, not an identity: whoever can send packets can forge it

	Provider, Device string // "tcp" and no device where a listener's Fallback serves

	// Cred is the peer as the kernel knows it; nil where the kernel does not vouch for it.
	Cred *Cred
}

// Cred identifies a process of this host.
type Cred struct{ PID, UID, GID int }

const defaultBacklog = 1024

// Listen announces the address. The context ends the announcing only, not a
// listener that stands.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	nw, err := parseStreams(network)
	if err != nil {
		return nil, opError("listen", network, nil, nil, PhaseResolve, err)
	}
	local, dual, err := cm.LookupListen(ctx, nil, nw.family, address)
	if err != nil {
		return nil, opError("listen", nw.name, nil, nil, PhaseResolve, contextError(ctx, err))
	}
	addr := AddrFromAddrPort(local)
	if err := ctx.Err(); err != nil {
		return nil, opError("listen", nw.name, nil, addr, PhaseRoute, err)
	}
	backlog := lc.Backlog
	if backlog <= 0 {
		backlog = defaultBacklog
	}
	// Half of the backlog is the provider's: requests not yet looked at. The
	// other half are those being set up and those that wait for Accept.
	arrived := max(backlog/2, 1)
	short := make(chan error, 1)
	attr := verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: local, DualStack: dual, Backlog: arrived, TrafficClass: lc.TrafficClass,
		AnyUser: lc.Admit != nil, // which sees whose they are
		Short:   func(err error) { tellShort(short, err) },
	}
	slots := max(backlog-arrived, 1)
	if lc.Fallback != nil {
		parts, tcp, err := lc.listenBoth(ctx, &attr)
		if err != nil {
			return nil, opError("listen", nw.name, nil, addr, PhaseRoute, contextError(ctx, err))
		}
		return newListenerOfBoth(nw.name, *lc, parts, tcp, slots, short), nil
	}
	parts, err := cm.Default().Listen(ctx, lc.Device, attr)
	if err != nil {
		return nil, opError("listen", nw.name, nil, addr, PhaseRoute, contextError(ctx, err))
	}
	lc.tellSkipped(parts)
	return newListener(nw.name, *lc, parts, slots, short), nil
}

// tellSkipped logs that processes of this host do not reach the listener over shared memory, where they could: what they use instead is slower.
func (lc *ListenConfig) tellSkipped(parts *cm.Listener) {
	if why := parts.WithoutShm(); why != nil && len(parts.Parts) > 0 {
		logger(lc.Logger).Warn("rdmanet: listening without shared memory", "addr", parts.Addr().String(), "err", why)
	}
}
