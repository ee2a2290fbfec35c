//go:build linux

package shm

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"

	"github.com/go-rdma/rdma/internal/verbs"
)

// kind is what a message says.
type kind uint8

const (
	// The first messages of a link, each way.
	msgHello kind = iota + 1

	msgSegment   // a segment, number id; its descriptor comes along
	msgNoSegment // it is no more
	msgUnmapped  // nobody here has it mapped any more
	msgBell      // completion queue id was armed, and there is something
	msgReceives  // queue pair id waits for receives, and there are some
	msgShared    // those that wait for the shared receive queue id, likewise
	msgWant      // the shared receive queue id is to have one for this peer
	msgNone      // it has none for anybody

	// Of connection id. The side that dialed makes up the number.
	msgConnect
	msgBusy // the listener has no room: to be tried again
	msgAccept
	msgReject
	msgReady
	msgCancel
	msgDisconnect
	msgDisconnected
	msgBye    // the queue pair is no more
	msgForgot // nobody here uses it any more

	msgAsk    // queue pair id shall do what follows
	msgAnswer // to a msgAsk; the flag is the status

	msgPorch // the pipe to knock with

	msgPing     // is anybody there? With the flag it is the answer: the process runs
	lastMessage = msgPing
)

// Numbers of the protocol. Another version is another protocol.
const (
	magic   = 0x4d485352 // RSHM
	version = 5

	maxMessage = 1024
	headerLen  = 8
)

var errMessage = errors.New("malformed message")

// order is the host's own: both ends are on it.
var order = binary.NativeEndian

// header is what each message begins with.
type header struct {
	Kind  kind
	Flag  uint8
	Extra uint16
	ID    uint32
}

// hello introduces a process.
type hello struct {
	Magic    uint32
	Version  uint32
	Features uint64
	Process  [16]byte
	To       address // whom the active side wants, the port apart
	Verdict  uint32  // of the passive one
	_        uint32
}

// place is where a ring lies in the memory of who describes it.
type place struct {
	Segment uint32
	Slots   uint32
	Offset  uint64
	Stride  uint32
	MaxSGE  uint32
}

// queuePair describes one to the peer.
type queuePair struct {
	Num, Domain    uint32
	SendCQ, RecvCQ uint32
	Ring           place // without slots if there is a shared queue
	Shared         place // the peer's ring of that; its slots are 0 if there is none
	SharedID       uint32
	RNRTimer       uint32
	RecvMarks      [2]uint32 // of the queue pair, and of its shared queue, in RecvCQ
	SendMarks      [2]uint32 // likewise in SendCQ
}

// address is an address and port.
type address struct {
	IP   [16]byte
	Zone [16]byte
	Port uint16
	Four uint8
	_    uint8
}

// request is what a msgConnect or msgAccept carries; of the latter only parameters and queue pair matter.
type request struct {
	Local, Remote address // as the one sees it who sends it
	PortSpace     uint16
	Private       uint16 // bytes that follow

	ResponderResources, InitiatorDepth uint8
	Retry, RNRRetry                    uint8
	FlowControl                        bool
	_                                  [7]byte

	QP queuePair
}

func toAddress(a netip.AddrPort) (w address, ok bool) {
	w.IP, w.Port = a.Addr().As16(), a.Port()
	if a.Addr().Is4() {
		w.Four = 1
	}
	z := a.Addr().Zone()
	copy(w.Zone[:], z)
	return w, a.Addr().IsValid() && len(z) <= len(w.Zone)
}

func (w *address) addrPort() netip.AddrPort {
	ip := netip.AddrFrom16(w.IP)
	if w.Four != 0 {
		return netip.AddrPortFrom(ip.Unmap(), w.Port)
	}
	if zone := strings.TrimRight(string(w.Zone[:]), "\x00"); zone != "" {
		ip = ip.WithZone(zone)
	}
	return netip.AddrPortFrom(ip, w.Port)
}

// putHeader writes a header that is a whole message, or begins one.
func putHeader(b *[headerLen]byte, h header) []byte {
	b[0], b[1] = byte(h.Kind), h.Flag
	order.PutUint16(b[2:], h.Extra)
	order.PutUint32(b[4:], h.ID)
	return b[:]
}

func getHeader(b []byte) (h header, rest []byte, err error) {
	if len(b) < headerLen {
		return h, nil, errMessage
	}
	h = header{kind(b[0]), b[1], order.Uint16(b[2:]), order.Uint32(b[4:])}
	if h.Kind == 0 || h.Kind > lastMessage {
		return h, nil, errMessage
	}
	return h, b[headerLen:], nil
}

// appendBody appends a value of fixed size, which is one of the types above.
func appendBody(b []byte, v any) []byte {
	b, err := binary.Append(b, order, v)
	if err != nil {
		panic(err) // a type that has no fixed size
	}
	return b
}

// getBody reads what makes up the whole of b.
func getBody(b []byte, v any) error {
	if n, err := binary.Decode(b, order, v); err != nil || n != len(b) {
		return errMessage
	}
	return nil
}

// getRequest reads a request and the private data behind it.
func getRequest(b []byte) (r *request, private []byte, err error) {
	r = new(request)
	n, err := binary.Decode(b, order, r)
	if err != nil || len(b)-n != int(r.Private) || r.Private > verbs.MaxPrivateREP {
		return nil, nil, errMessage
	}
	return r, append([]byte{}, b[n:]...), nil
}
