package rdmanet

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/dgram"
)

// PacketConn sends and receives datagrams on unreliable-datagram (UD) queue pairs: a [net.PacketConn] and, if it was dialed, a
// [net.Conn], with what a [*net.UDPConn] can do besides. Its methods may be called from several goroutines: reads wait for
// reads; Close and deadlines interrupt whatever waits.
//
// As with UDP, datagrams get lost without a word: on the way, and where a reader is slower than its senders (see SetReadBuffer and
// Stats). They are not fragmented, so the limit is what one packet holds: see MaxPayload. Those of one
// sender do not overtake each other on most networks.
//
// QUIC (quic-go's Transport) works over it where MaxPayload is 1,200 bytes or more, so not on an Ethernet with an MTU of 1500.
// Set quic.Config's InitialPacketSize to 1200: without it quic-go takes the error that says so for path MTU
// discovery, and the handshake times out.
type PacketConn struct {
	s       *dgram.Socket
	network network
	port    uint16 // that it is found at
	group   *Addr  // of ListenMulticast: what LocalAddr returns
	dialed  bool
	totals  *totals

	truncated atomic.Uint64
}

var (
	_ net.PacketConn = (*PacketConn)(nil)
	_ net.Conn       = (*PacketConn)(nil)
)

func (a *Addr) dgram() dgram.Addr {
	return dgram.Addr{
		IP: a.IP.Unmap(), Port: a.Port,
		GID: a.UD.GID, QPN: a.UD.QPN, QKey: a.UD.QKey, LID: a.UD.LID, SL: a.UD.SL,
	}
}

func addrOfPeer(a dgram.Addr) *Addr {
	return &Addr{IP: a.IP, Port: a.Port, UD: UDAddr{GID: a.GID, QPN: a.QPN, QKey: a.QKey, LID: a.LID, SL: a.SL}}
}

// ok tells whether the connection was made by this package.
func (c *PacketConn) ok() bool { return c != nil && c.s != nil }

// opError is the error of a method.
func (c *PacketConn) opError(op string, addr net.Addr, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, net.ErrWriteToConnected):
		return &net.OpError{Op: op, Net: c.network.name, Source: c.LocalAddr(), Addr: addr, Err: err}
	}
	err = packetError(op, c.network.name, c.LocalAddr(), addr, packetPhase(err, PhaseTransfer), err)
	var e *Error
	if errors.As(err, &e) && e.Provider == "" {
		e.Provider, e.Device = c.s.Device()
	}
	return err
}

// dest reads an address that is written to.
func (c *PacketConn) dest(a net.Addr) (dgram.Addr, error) {
	var d dgram.Addr
	switch a := a.(type) {
	case *Addr:
		if a == nil {
			return d, errMissingAddress
		}
		d = a.dgram()
	case *net.UDPAddr:
		if a == nil {
			return d, errMissingAddress
		}
		ap := a.AddrPort()
		d = dgram.Addr{IP: ap.Addr().Unmap(), Port: ap.Port()}
	case nil:
		return d, errMissingAddress
	default:
		return d, &net.AddrError{Err: "neither a *rdmanet.Addr nor a *net.UDPAddr", Addr: a.String()}
	}
	if !d.IP.IsValid() && d.QPN != 0 && d.GID != ([16]byte{}) {
		d.IP = netip.AddrFrom16(d.GID).Unmap()
	}
	switch {
	case d.IP.IsValid() && !c.network.allows(d.IP):
		return d, &net.AddrError{Err: "not of the network " + c.network.name, Addr: d.IP.String()}
	case !d.IP.IsValid() && d.LID != 0:
	case !d.IP.IsValid() || d.IP == netip.IPv4Unspecified(): // this host, as package net has it
		d.IP = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if c.network.allows(d.IP) {
			break
		}
		fallthrough
	case d.IP == netip.IPv6Unspecified():
		d.IP = netip.IPv6Loopback()
	}
	return d, nil
}

var errMissingAddress = errors.New("missing address")

// read reads one datagram. With want, the sender too.
func (c *PacketConn) read(b []byte) (n int, from net.Addr, err error) {
	for {
		err = c.s.BeginRead()
		var d dgram.Datagram
		ok := false
		if err == nil {
			if d, ok = c.s.Next(); ok {
				n, from = copy(b, d.Payload), d.From
				if n < len(d.Payload) {
					c.truncated.Add(1)
				}
			}
		}
		c.s.EndRead()
		if ok || err != nil {
			return n, from, err
		}
	}
}

// ReadFrom waits for a datagram and copies it into b, as far as it fits; the rest of one that is longer is lost. The sender is a [*Addr] with all
// that WriteTo needs to answer it. It is shared with other calls and must not be changed. Its Port
// is 0, since datagrams do not tell that of their sender, if it has one. The IP address is what the sender says; anybody can forge it.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	if !c.ok() {
		return 0, nil, syscall.EINVAL
	}
	n, from, err := c.read(b)
	return n, from, c.opError("read", nil, err)
}

// Read is ReadFrom without the sender. If c was dialed, it reads what the one sends that was dialed.
func (c *PacketConn) Read(b []byte) (int, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	n, _, err := c.read(b)
	if err != nil {
		err = c.opError("read", c.RemoteAddr(), err)
	}
	return n, err
}

// WriteTo sends b as one datagram to a [*Addr] or [*net.UDPAddr]: to a service, which is looked up by its IP address and port; to the sender of
// a datagram, by what ReadFrom returned; or to a group, by its IP address, whether c is a member or not. More than
// MaxPayload bytes give EMSGSIZE, and nothing is sent.
//
// A service is looked up by the first write to it, which waits for that, until the write deadline. If nobody serves the port
// the error is ECONNREFUSED; if nothing answers, ETIMEDOUT after a minute. Where what was sent remains unanswered for a
// second, the next write looks it up again, should it have been restarted; after that in intervals that double, up to a minute.
func (c *PacketConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	if c.dialed {
		return 0, c.opError("write", addr, net.ErrWriteToConnected)
	}
	to, err := c.dest(addr)
	if err == nil {
		err = c.write(b, to)
	}
	if err != nil {
		return 0, c.opError("write", addr, err)
	}
	return len(b), nil
}

// Write sends b as one datagram to the address that was dialed.
func (c *PacketConn) Write(b []byte) (int, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	if !c.dialed {
		return 0, c.opError("write", nil, syscall.EDESTADDRREQ)
	}
	if err := c.write(b, dgram.Addr{}); err != nil {
		return 0, c.opError("write", c.RemoteAddr(), err)
	}
	return len(b), nil
}

func (c *PacketConn) write(b []byte, to dgram.Addr) error {
	o := outs.Get().(*outBatch)
	o.bufs[0] = b
	o.out[0] = dgram.Out{Buffers: o.bufs[:], To: to}
	_, err := c.s.Write(o.out[:1])
	o.bufs[0], o.out[0] = nil, dgram.Out{}
	outs.Put(o)
	return err
}

// Close closes the connection and leaves its groups. What was written before has left the device when it returns.
func (c *PacketConn) Close() error {
	if !c.ok() {
		return syscall.EINVAL
	}
	local := c.LocalAddr()
	err := c.s.Close()
	c.closed()
	if err == nil {
		return nil
	}
	return opError("close", c.network.name, local, c.RemoteAddr(), PhaseTransfer, err)
}

// LocalAddr returns a [*Addr]: the address that c is bound to, its port and the number of its queue pair. Of one that
// [ListenMulticast] made it is the address of the group.
func (c *PacketConn) LocalAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	if c.group != nil {
		return c.group
	}
	a := addrOfPeer(c.s.Local())
	if c.port != 0 {
		a.Port = c.port
	}
	if !a.IP.IsValid() {
		a.IP = netip.IPv6Unspecified()
	}
	return a
}

// RemoteAddr returns the address that was dialed, a [*Addr], with the queue pair that was found there; nil if c was not dialed.
func (c *PacketConn) RemoteAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	if a, ok := c.s.Remote(); ok {
		return addrOfPeer(a)
	}
	return nil
}

// set wraps what the setters have in common.
func (c *PacketConn) set(f func() error) error {
	if !c.ok() {
		return syscall.EINVAL
	}
	return c.opError("set", nil, f())
}

// SetDeadline sets the deadlines of reads and writes.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return c.set(func() error { return errors.Join(c.s.SetReadDeadline(t), c.s.SetWriteDeadline(t)) })
}

// SetReadDeadline makes reads fail with [os.ErrDeadlineExceeded] from t on, those that wait already too. The zero time
// lifts that.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	return c.set(func() error { return c.s.SetReadDeadline(t) })
}

// SetWriteDeadline is SetReadDeadline for writes, which wait while a service is looked up and while the send queue is full.
func (c *PacketConn) SetWriteDeadline(t time.Time) error {
	return c.set(func() error { return c.s.SetWriteDeadline(t) })
}

// MaxPayload is the longest datagram that can be sent, in bytes: the MTU of the device's port, which is 1024 on an Ethernet with an
// MTU of 1500, and 4096 with jumbo frames and on a loopback interface. A peer behind an interface with a smaller MTU is
// reached with less: what is too long for the way gives EMSGSIZE too.
func (c *PacketConn) MaxPayload() int {
	if !c.ok() {
		return 0
	}
	return c.s.MaxPayload()
}

// SetReadBuffer says how many bytes of payload may wait to be read; each datagram counts as MaxPayload bytes. What arrives
// beyond is dropped and counted. The least is 16 datagrams; more than the device's queue holds, 2048 datagrams or what
// ReadBuffer of [ListenConfig] or [Dialer] says, is not had.
func (c *PacketConn) SetReadBuffer(bytes int) error {
	return c.set(func() error { return c.s.SetReadBuffer(bytes) })
}

// SetWriteBuffer bounds how many bytes of payload are with the device, counted in the same way. More than 256 datagrams never are.
func (c *PacketConn) SetWriteBuffer(bytes int) error {
	return c.set(func() error { return c.s.SetWriteBuffer(bytes) })
}
