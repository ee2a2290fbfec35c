package verbs

import (
	"context"
	"net/netip"
)

// Private data that a consumer may send with each message of the connection
// manager on InfiniBand and RoCE, in bytes. REQ and SIDR_REQ
// carry 36 bytes of rdma_cm's own in front. What arrives there is padded with
// zeros to the full size: its true length is not on the wire (IBTA 12.6). Other
// transports keep the limits and give the true length.
const (
	MaxPrivateREQ     = 56
	MaxPrivateREP     = 196
	MaxPrivateREJ     = 148
	MaxPrivateSIDRREQ = 180
	MaxPrivateSIDRREP = 136
)

// CMIDAttr says where a connection identifier shall lead.
type CMIDAttr struct {
	PortSpace    PortSpace
	Device       string         // a device of the provider; empty: any that serves the address
	Port         int            // a port of the device; 0: any
	Local        netip.AddrPort // the zero value, or a zero port: chosen by route
	Remote       netip.AddrPort
	TrafficClass uint8

	// AnyUser lets the listener be any user's process, where the provider knows whose it is. Else it is one of this
	// user's or of root's: a name of this host's can be held by whoever is first, and then not by who shall have it.
	AnyUser bool

	// Handler is told what happens to the connection, one event at a time, in order.
	Handler func(Event)
}

// ListenAttr says where a listener shall listen.
type ListenAttr struct {
	PortSpace    PortSpace
	Device       string
	Port         int
	Local        netip.AddrPort // an unspecified address of a family listens on all of that family
	DualStack    bool           // with an unspecified address: of both families
	Backlog      int            // requests kept for GetRequest; more are dropped, so that peers try again
	TrafficClass uint8          // of the packets to whoever connects; 0: what they ask for

	// AnyUser lets processes of other users send requests, where the provider knows whose they are: the consumer looks
	// at each one's [Credentialed]. Else they come from this user's processes and root's.
	AnyUser bool

	// Short, if not nil, is told now and then while requests or packets are lost because the process is out of
	// descriptors or memory. It must not wait. Not every provider can tell.
	Short func(err error)
}

// ConnParam is what the two sides of a connection tell each other, as struct
// rdma_conn_param. In what a peer sent, ResponderResources and InitiatorDepth
// are already exchanged, so that they read as limits of this side.
type ConnParam struct {
	PrivateData        []byte
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8 // 0 to 7
	RNRRetryCount      uint8 // 0 to 7; 7 is endless

	// Placement, in what a peer sent, says that its device is known to have FLUSH and ATOMIC_WRITE (IBTA annex A19). The
	// connection manager does not tell: of most peers it is not known.
	Placement bool
}

// EventType tells what happened to a connection, in rdma_cm's terms.
type EventType uint8

const (
	// EventEstablished: the passive side's connection stands (RTU, or data before it).
	EventEstablished EventType = iota + 1
	// EventDisconnected: the peer sent DREQ, or answered ours. The provider has
	// answered the peer; the queue pair still has its state.
	EventDisconnected
	// EventConnectError: the passive side's connection did not come to stand. Err says
	// why. It may come before Accept, when the peer gave up waiting for it.
	EventConnectError
	// EventDeviceRemoval: the device is gone.
	EventDeviceRemoval
	// EventAddrChange: the address of the device's interface changed.
	EventAddrChange
	// EventMulticastError: the membership of Group is lost, Err says why (on InfiniBand: the subnet's administrator forgot
	// it). It is still to be left, and may be joined again.
	EventMulticastError
)

// Event is one event of a connection.
type Event struct {
	Type  EventType
	Err   error
	Group *UDParam // what Join returned
}

// CMID is a communication identifier: one end of a connection that is to be.
// Its methods follow rdma_cm's functions.
type CMID interface {
	// Provider and Device tell where the identifier is bound.
	Provider() Provider
	Device() Device // lent, not opened: Close of it is not for the caller

	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort

	// SetHandler replaces the handler of events. Events that happened
	// while there was none are delivered to it first, in order, on
	// the provider's goroutine.
	SetHandler(func(Event))

	// CreateQP makes the queue pair of the connection, in a domain of Device or of
	// what Provider.Open gives under its name. It is closed by its owner, before the CMID.
	CreateQP(pd PD, attr *QPInitAttr) (QP, error)

	// Connect sends the request and waits for the answer, which it returns. A
	// refusal is a [*RejectError], silence ETIMEDOUT. When ctx ends, so does the attempt,
	// and the peer is told; after a failure only Close is of use. EventDisconnected may come
	// before Connect has returned.
	Connect(ctx context.Context, p *ConnParam) (*ConnParam, error)

	// Request is what the peer asked for; nil on the active side.
	Request() *ConnParam

	// Accept answers a request; EventEstablished or EventConnectError follows. It fails if the
	// peer has given up meanwhile.
	Accept(p *ConnParam) error

	// Reject refuses a request.
	Reject(privateData []byte) error

	// Disconnect moves the queue pair to the error state and tells the peer. It does
	// not wait for the peer. Disconnecting twice, or after the peer did, is no error.
	Disconnect() error

	// Close gives the identifier up, disconnecting or rejecting as its state
	// asks. What the peer must still be told is told in the background. No
	// handler is running or will run once Close returns, so it must not be called
	// with a lock held that the handler takes.
	Close() error
}

// Cred is a process as the kernel knows it (unix(7), SO_PEERCRED).
type Cred struct{ PID, UID, GID int }

// Credentialed is a [CMID] whose peer is a process of this host.
type Credentialed interface {
	// Cred is who made the listener, or who sent the request, and as whom.
	Cred() Cred
}

// Aborter is a [CMID] that can tell its peer that the connection is broken. A DREQ, which is all
// that others can say, may be taken for an orderly end.
type Aborter interface {
	// Abort is Disconnect, and the peer's EventDisconnected has an error, if word of it arrives.
	Abort() error
}

// UDParam is how a datagram peer or a group is reached.
type UDParam struct {
	AH          AHAttr // Local and Port are those of the identifier
	QPN         uint32 // of a group: MulticastQPN
	QKey        uint32
	PrivateData []byte
}

// JoinAttr names a multicast group to join.
type JoinAttr struct {
	Group netip.Addr // 0.0.0.0 or :: asks for a fresh group, which AH.Remote of the result names
	MGID  netip.Addr // instead of Group: a group identifier taken as it is; :: asks for a fresh one

	// SendOnly asks for a membership that receives nothing. Where it cannot be had the error says errors.ErrUnsupported;
	// it is never a full one in silence.
	SendOnly bool
}

// UDCMID is a [CMID] of a datagram port space: PSUDP and PSIPoIB. Resolve with a zero Remote only
// binds it to Local or Device, as a service or a member of unmapped groups needs;
// with a multicast Remote it chooses the interface.
//
// CreateQP makes a UD queue pair that is ready to send and receive at once, with the Q_Key of rdma_cm (UDPQKey; that of
// the IPoIB broadcast group in PSIPoIB) and the port's MTU as the limit of a datagram. Nothing is connected, so
// Connect and Accept fail with EINVAL, and Disconnect does no more than move the queue pair to the error state.
type UDCMID interface {
	CMID
	// Lookup asks the service at the remote address for its queue pair (SIDR_REQ), once for each identifier. It needs no
	// queue pair of this side, and the identifier may be closed when the answer is there. A refusal is a
	// [*LookupError], silence ETIMEDOUT. When ctx ends, so does the attempt; after a failure only Close is of use.
	Lookup(ctx context.Context, privateData []byte) (*UDParam, error)
	// Reply answers a request, of which only the PrivateData came, with a queue pair, which may serve many of them and be that of any
	// identifier. qkey 0 is the port space's own; another one need not be possible (errors.ErrUnsupported).
	Reply(qpn, qkey uint32, privateData []byte) error
	// Join makes the identifier's queue pair a member of a group and tells how it is reached. A group that is none gives
	// EINVAL, one that was joined already EADDRINUSE, as with IP_ADD_MEMBERSHIP.
	Join(ctx context.Context, attr *JoinAttr) (*UDParam, error)
	// Leave takes what Join returned, or a copy. Where the identifier is no member it gives EADDRNOTAVAIL. Closing the queue
	// pair or the identifier leaves what is left.
	Leave(p *UDParam) error
}

// ListenerStats counts what a listener did with the requests that reached it.
type ListenerStats struct {
	Requests uint64 // taken by GetRequest or waiting for it
	Dropped  uint64 // beyond the backlog
}

// Listener takes connection requests.
type Listener interface {
	// Addr is the bound address, with the real port.
	Addr() netip.AddrPort

	// GetRequest waits for a request. Its CMID has no handler yet.
	GetRequest(ctx context.Context) (CMID, error)

	Stats() ListenerStats

	// Close stops listening. Requests not yet taken are rejected; CMIDs that
	// GetRequest returned live on. GetRequest then gives net.ErrClosed.
	Close() error
}
