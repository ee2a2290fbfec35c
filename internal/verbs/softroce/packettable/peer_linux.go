package packettable

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const roceUDPPort = 4791

// Peer is the requester's side of the wire: a UDP socket that sends what it is told to. It answers the communication manager's
// DREQ, and nothing else, by itself.
type Peer struct {
	conn  *net.UDPConn
	local netip.Addr
	guid  uint64
	next  atomic.Uint32 // of communication IDs, queue pairs and ports

	sending sync.Mutex

	mu   sync.Mutex
	cm   map[uint32]chan ibcm.Message // by own communication ID
	qps  map[uint32]chan wire.Packet  // by own queue pair
	bad  []error                      // packets that no responder may send
	done chan struct{}
}

// Listen opens the wire at an address of the network namespace that the calling thread is in.
func Listen(local netip.Addr) (*Peer, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		set := func(fd uintptr, level, opt, value int) {
			if e := unix.SetsockoptInt(int(fd), level, opt, value); e != nil && err == nil {
				err = fmt.Errorf("packettable: socket option %d of level %d: %w", opt, level, e)
			}
		}
		if e := c.Control(func(fd uintptr) {
			// A device under test in this very namespace shares the port.
			set(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			set(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)
			if local.Is4() {
				// The ICRC covers the identification, which is 0 then.
				set(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			} else {
				set(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
				set(fd, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1) // rdma_rxe sends zeros
			}
		}); e != nil {
			return e
		}
		return err
	}}
	c, err := lc.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(local, roceUDPPort).String())
	if err != nil {
		return nil, err
	}
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	p := &Peer{
		conn: c.(*net.UDPConn), local: local,
		guid: binary.NativeEndian.Uint64(seed[:])&^3 | 2, // locally administered
		cm:   make(map[uint32]chan ibcm.Message), qps: make(map[uint32]chan wire.Packet), done: make(chan struct{}),
	}
	p.next.Store(binary.NativeEndian.Uint32(seed[8:]))
	go p.read()
	return p, nil
}

// Close closes the wire.
func (p *Peer) Close() error {
	err := p.conn.Close()
	<-p.done
	return err
}

// Faults returns and forgets what came that no responder may send.
func (p *Peer) Faults() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad := p.bad
	p.bad = nil
	return bad
}

func (p *Peer) fault(format string, args ...any) {
	p.mu.Lock()
	p.bad = append(p.bad, fmt.Errorf(format, args...))
	p.mu.Unlock()
}

func (p *Peer) read() {
	defer close(p.done)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		b := buf[:n]
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		if _, ok := wire.Verify(from.Addr(), p.local, from.Port(), b, 0); !ok {
			p.fault("a packet from %v with a bad ICRC: %x", from, b)
			continue
		}
		var h wire.Packet
		b = b[:n-wire.ICRCLen]
		if err := h.Decode(b); err != nil {
			p.fault("a packet from %v: %w: %x", from, err, b)
			continue
		}
		pad := b[len(b)-int(h.Pad):]
		switch {
		case slices.Max(append(pad, 0)) != 0:
			p.fault("%v: pad %x instead of zeros", h.Opcode, pad)
		case h.PKey != wire.DefaultPKey:
			p.fault("%v: P_Key %#x", h.Opcode, h.PKey)
		case h.Opcode.HasPayload() && h.Pad != wire.PadFor(len(h.Payload)):
			p.fault("%v: pad count %d of %d bytes", h.Opcode, h.Pad, len(h.Payload))
		case h.DestQP == wire.QPNGSI:
			p.mad(from.Addr(), &h)
			continue
		case !h.Opcode.IsResponse():
			p.fault("%v from a responder", h.Opcode)
		case h.AckReq || h.Solicited:
			p.fault("%v: AckReq %t, SE %t in a response", h.Opcode, h.AckReq, h.Solicited)
		}
		p.mu.Lock()
		c := p.qps[h.DestQP]
		p.mu.Unlock()
		if c == nil {
			continue // of a row that is done with
		}
		h.Payload = slices.Clone(h.Payload)
		select {
		case c <- h:
		default:
			p.fault("more packets than any row asks for")
		}
	}
}

// mad takes a datagram of the communication manager.
func (p *Peer) mad(from netip.Addr, h *wire.Packet) {
	header, m, err := ibcm.Decode(h.Payload)
	if err != nil {
		p.fault("a MAD from %v: %w", from, err)
		return
	}
	var to uint32
	switch m := m.(type) {
	case *ibcm.REP:
		to = m.RemoteCommID
	case *ibcm.REJ:
		to = m.RemoteCommID
	case *ibcm.DREQ:
		p.sendMAD(from, header.TransactionID, &ibcm.DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID})
		return
	default:
		return
	}
	p.mu.Lock()
	c := p.cm[to]
	p.mu.Unlock()
	select {
	case c <- m:
	default: // a repetition
	}
}

func (p *Peer) sendMAD(to netip.Addr, tid uint64, m ibcm.Message) {
	mad := ibcm.Encode(ibcm.NewHeader(tid, m), m)
	h := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.QPNGSI},
		DETH:    wire.DETH{QKey: wire.QKeyGSI, SrcQP: wire.QPNGSI},
		Payload: mad[:],
	}
	if err := p.send(to, p.seal(to, encode(&h), 0, false)); err != nil {
		p.fault("sending a MAD: %w", err)
	}
}

// encode returns BTH to pad.
func encode(h *wire.Packet) []byte {
	b := make([]byte, h.HeaderLen(), h.HeaderLen()+len(h.Payload)+3)
	h.PutHeaders(b)
	b = append(b, h.Payload...)
	return append(b, make([]byte, h.Pad)...)
}

// seal appends the ICRC, or a bad one, to BTH to pad.
func (p *Peer) seal(to netip.Addr, b []byte, ipID uint16, bad bool) []byte {
	crc := wire.ICRCStart(p.local, to, roceUDPPort, 8+len(b)+wire.ICRCLen, ipID)
	n := min(len(b), wire.BTHLen)
	crc = wire.ICRCBytes(wire.ICRCHeader(crc, b[:n]), b[n:])
	b = append(b, make([]byte, wire.ICRCLen)...)
	wire.PutICRC(b[len(b)-wire.ICRCLen:], crc)
	if bad {
		b[len(b)-1] ^= 1
	}
	return b
}

// send sends a datagram.
func (p *Peer) send(to netip.Addr, b []byte) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	_, err := p.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, roceUDPPort))
	return err
}

// sendTogether sends datagrams of one length as the segments of one: nobody takes the first before the last is there.
// The identifications of their IPv4 headers count from 0.
func (p *Peer) sendTogether(to netip.Addr, ds [][]byte) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	if err := p.segment(len(ds[0])); err != nil {
		return err
	}
	_, err := p.conn.WriteToUDPAddrPort(slices.Concat(ds...), netip.AddrPortFrom(to, roceUDPPort))
	return errors.Join(err, p.segment(0))
}

// segment has what is sent cut into segments of n bytes, or not.
func (p *Peer) segment(n int) (err error) {
	c, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, n) }); e != nil {
		return e
	}
	return err
}

// link is one connection of the peer's, or its end of datagrams.
type link struct {
	p      *Peer
	to     netip.Addr
	commID uint32
	qpn    uint32 // own
	remote uint32 // the responder's
	psn    uint32 // of the first request
	got    chan wire.Packet
	rep    chan ibcm.Message
}

func (p *Peer) newLink(to netip.Addr) *link {
	n := p.next.Add(1)
	l := &link{
		p: p, to: to, commID: n, qpn: 0x800000 | n&0x3fffff, got: make(chan wire.Packet, 4096), rep: make(chan ibcm.Message, 1),
	}
	p.mu.Lock()
	p.cm[l.commID], p.qps[l.qpn] = l.rep, l.got
	p.mu.Unlock()
	return l
}

func (l *link) close() {
	l.p.mu.Lock()
	delete(l.p.cm, l.commID)
	delete(l.p.qps, l.qpn)
	l.p.mu.Unlock()
}

// peerPSN is what the responder's own requests would begin with. It makes none.
const peerPSN = 0x123456

// request asks for a connection on which depth READs and atomics of the peer's may be outstanding.
func (l *link) request(port uint16, depth uint8) {
	const timeout, lid, ackTimeout = 20, 0xffff, 19
	q := &ibcm.REQ{
		LocalCommID: l.commID, ServiceID: ibcm.ServiceID(uint16(verbs.PSTCP), port), LocalCAGUID: l.p.guid, LocalQPN: l.qpn,
		ResponderResources: 1, InitiatorDepth: depth,
		RemoteCMResponseTimeout: timeout, LocalCMResponseTimeout: timeout, MaxCMRetries: 15,
		TransportServiceType: ibcm.TransportRC, StartingPSN: peerPSN, RetryCount: 7, RNRRetryCount: 7, PKey: wire.DefaultPKey,
		PathMTU: verbs.MTU(mtu).Code(),
		Primary: ibcm.PathRecord{
			LocalLID: lid, RemoteLID: lid, LocalGID: ibcm.GID(l.p.local), RemoteGID: ibcm.GID(l.to),
			HopLimit: 64, LocalACKTimeout: ackTimeout,
		},
	}
	h := ibcm.IPHeader{Source: netip.AddrPortFrom(l.p.local, uint16(l.commID)|0x8000), Destination: l.to}
	h.Put(q.PrivateData[:])
	l.p.sendMAD(l.to, uint64(l.commID), q)
}

// established waits for the answer, and confirms it.
func (l *link) established(limit time.Duration) error {
	select {
	case m := <-l.rep:
		rep, ok := m.(*ibcm.REP)
		if !ok {
			return fmt.Errorf("%v instead of a REP: %+v", m.Attr(), m)
		}
		l.remote, l.psn = rep.LocalQPN, rep.StartingPSN
		l.p.sendMAD(l.to, uint64(l.commID), &ibcm.RTU{LocalCommID: l.commID, RemoteCommID: rep.LocalCommID})
		return nil
	case <-time.After(limit):
		return fmt.Errorf("no REP within %v", limit)
	}
}
