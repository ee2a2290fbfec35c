package netio

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	rxMessages = 16      // messages read at once
	rxBuffer   = 1 << 16 // bytes of one: what GRO joins, at most
	rxControl  = 192     // bytes of control messages
	rxPackets  = 256     // packets handed over at once

	minDatagram = wire.BTHLen + wire.ICRCLen
)

// rxState is what reading a socket once takes.
type rxState struct {
	msgs [rxMessages]unix.Mmsghdr
	iovs [rxMessages]unix.Iovec
	name [rxMessages][unix.SizeofSockaddrInet6]byte
	ctl  [rxMessages][rxControl]byte
	bufs []byte
	pkts [rxPackets]Packet
}

func newRxState() *rxState {
	st := &rxState{bufs: make([]byte, rxMessages*rxBuffer)}
	for i := range st.msgs {
		st.iovs[i].Base = &st.bufs[i*rxBuffer]
		st.iovs[i].SetLen(rxBuffer)
		h := &st.msgs[i].Hdr
		h.Name = &st.name[i][0]
		h.Iov = &st.iovs[i]
		h.SetIovlen(1)
		h.Control = &st.ctl[i][0]
		st.arm(i)
	}
	return st
}

// arm makes message i ready to be read into again.
func (st *rxState) arm(i int) {
	h := &st.msgs[i].Hdr
	h.Namelen = unix.SizeofSockaddrInet6
	h.SetControllen(rxControl)
	h.Flags = 0
}

// rxSock is a socket that receives. A goroutine of its own reads it, and so does
// whoever calls Poll.
type rxSock struct {
	u     *UDP
	v6    bool
	fd    int
	watch watch
	gone  atomic.Bool // close was called
	index int         // of a group: the interface whose packets it takes; 0: no group

	// misses counts the reads by Poll since there was something.
	misses atomic.Uint32
	// used is when something was received, in nanoseconds of the monotonic clock.
	used atomic.Int64

	// mu is held while the socket is read and while the handler has what was read: packets of one flow
	// stay in order.
	mu     sync.Mutex
	closed bool
	addrs  addrCache
	flows  [64]flow
	last   wire.Flow
}

func (u *UDP) newRxSock(fd int, v6 bool) (*rxSock, error) {
	s := &rxSock{u: u, v6: v6, fd: fd}
	if err := s.watch.open(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.misses.Store(coldAfter)
	s.used.Store(now())
	return s, nil
}

// start begins to read.
func (s *rxSock) start() {
	s.u.wg.Go(func() {
		s.watch.run(func() (closed bool) {
			if closed = s.drain(); !closed {
				s.u.idle()
			}
			return closed
		})
	})
}

// close closes the socket once no handler runs with what it received.
func (s *rxSock) close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if !closed {
		s.watch.close()
		s.gone.Store(true)
		s.u.unseat(s)
		_ = unix.Close(s.fd)
	}
}

// drain reads until nothing is left, because the poller reports only arrivals.
// It returns true when the socket is closed.
func (s *rxSock) drain() (closed bool) {
	for failures := 0; failures < 16; {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return true
		}
		_, more, e := s.recv()
		s.mu.Unlock()
		switch {
		case e == 0 && more:
			failures = 0
		case e == 0, e == unix.EAGAIN:
			return false
		default: // an error that the network left at a connected socket; reading takes it off
			failures++
		}
	}
	return false
}

// idle tells the handler that its caller is about to sleep.
func (u *UDP) idle() {
	if u.idler != nil {
		u.idler.HandleIdle()
	}
}

// Poll reads the sockets where there is traffic, each once.
func (u *UDP) Poll() int {
	n := 0
	for _, s := range u.rx {
		n += s.poll()
	}
	for _, s := range *u.prefSocks.Load() {
		n += s.poll()
	}
	for _, s := range *u.groupSocks.Load() {
		n += s.poll()
	}
	return n
}

// coldAfter is the number of fruitless reads after which Poll passes a socket over,
// until its goroutine finds something there. The socket that was last to have traffic is always read.
const coldAfter = 64

func (s *rxSock) poll() int {
	if s.misses.Load() >= coldAfter && s.u.hot.Load() != s && !s.watch.quiet() {
		return 0
	}
	if !s.mu.TryLock() {
		return 0
	}
	if s.closed {
		s.mu.Unlock()
		return 0
	}
	n, _, e := s.recv()
	s.mu.Unlock()
	if e == unix.EAGAIN {
		s.misses.Add(1)
	}
	return n
}

// recv reads one batch and gives it to the handler. It returns the number of packets
// in it, good ones or not, and whether there may be more: where a batch was not filled, what comes next is a new arrival.
// (Behind an error, which is as rare as a loss, packets may be left. They are found with the next arrival.)
func (s *rxSock) recv() (n int, more bool, _ unix.Errno) {
	st := s.u.rxFree.get()
	defer s.u.rxFree.put(st)
	m, e := recvmmsg(s.fd, st.msgs[:])
	for e == unix.EINTR {
		m, e = recvmmsg(s.fd, st.msgs[:])
	}
	if e != 0 {
		return 0, false, e
	}
	ioSync.Acquire()
	s.used.Store(now())
	if s.misses.Load() != 0 {
		s.misses.Store(0)
	}
	if s.u.hot.Load() != s {
		s.u.hot.Store(s)
	}
	total, good := 0, 0
	for i := range m {
		total += s.message(st, i, &good)
		st.arm(i)
	}
	s.flush(st, &good)
	return total, m == len(st.msgs), 0
}

// flush gives the handler the first *good packets of st.
func (s *rxSock) flush(st *rxState, good *int) {
	if *good > 0 {
		s.u.cfg.Handler.HandlePackets(st.pkts[:*good])
		*good = 0
	}
}

// message cuts message i into the datagrams that it was joined from and adds those that are good to
// st.pkts. It returns their number, good or not.
func (s *rxSock) message(st *rxState, i int, good *int) int {
	h := &st.msgs[i].Hdr
	buf := st.bufs[i*rxBuffer:][:min(st.msgs[i].Len, rxBuffer)]
	if h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(buf) == 0 {
		s.u.runts.Add(1)
		return 1
	}
	p := Packet{Interface: s.index}
	segment := s.control(st.ctl[i][:min(int(h.Controllen), rxControl)], &p)
	p.Remote = s.addrs.remote(st.name[i][:min(h.Namelen, unix.SizeofSockaddrInet6)])
	if p.Interface != s.index {
		return 1 // of an IPv6 group the kernel gives what comes on any interface
	}
	if segment <= 0 || segment > len(buf) {
		segment = len(buf)
	}
	fl := s.flowOf(p.Remote)
	n := 0
	for ; len(buf) > 0; n++ {
		d := buf[:min(segment, len(buf))]
		buf = buf[len(d):]
		if !s.accept(&p, d, fl, n) {
			continue
		}
		st.pkts[*good] = p
		*good++
		if *good == len(st.pkts) {
			s.flush(st, good)
		}
	}
	return n
}

// accept is where every received datagram passes. d is number n of those that arrived joined; accept
// checks it, and sets p.ID and p.Data.
func (s *rxSock) accept(p *Packet, d []byte, fl *flow, n int) bool {
	if len(d) < minDatagram || len(d)%4 != 0 {
		s.u.runts.Add(1)
		s.refused(p, d, "no RoCE packet has this length")
		return false
	}
	id, ok := s.last.Verify(p.Remote.Addr(), p.Local, p.Remote.Port(), d, fl.expect(n))
	if ok && !s.v6 {
		ok = fl.seen(id, n)
	}
	if !ok {
		s.u.badICRC.Add(1)
		s.refused(p, d, "wrong ICRC: corrupted, or rewritten on the way, by NAT for one")
		return false
	}
	p.ID = id
	p.Data = d[: len(d)-wire.ICRCLen : len(d)-wire.ICRCLen]
	return true
}

// refused records a datagram that is dropped.
func (s *rxSock) refused(p *Packet, d []byte, why string) {
	if s.u.cfg.Trace != nil {
		q := *p // p itself would be allocated for every packet
		s.u.cfg.Trace.Refused(&q, d, why)
	}
}

// control reads the control messages of a message. It returns the length of the segments that were
// joined, or 0.
func (s *rxSock) control(b []byte, p *Packet) (segment int) {
	for {
		level, typ, data, rest, ok := nextCmsg(b)
		if !ok {
			return segment
		}
		b = rest
		switch {
		case level == unix.IPPROTO_IP && typ == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			p.Local = netip.AddrFrom4([4]byte(data[8:12])) // ipi_addr, the header's destination
		case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			p.Local = s.addrs.local(data[:unix.SizeofInet6Pktinfo])
			if s.index != 0 {
				p.Interface = int(binary.NativeEndian.Uint32(data[16:]))
			}
		case level == unix.IPPROTO_IP && typ == unix.IP_TOS, level == unix.IPPROTO_IPV6 && typ == unix.IPV6_TCLASS:
			p.TrafficClass = uint8(cmsgInt(data))
		case level == unix.IPPROTO_IP && typ == unix.IP_TTL, level == unix.IPPROTO_IPV6 && typ == unix.IPV6_HOPLIMIT:
			p.HopLimit = uint8(cmsgInt(data))
		case level == unix.SOL_UDP && typ == unix.UDP_GRO:
			segment = cmsgInt(data)
		}
	}
}

// addrCache keeps the last conversion of each kind: a zone takes a look-up.
type addrCache struct {
	from   [unix.SizeofSockaddrInet6]byte
	fromAP netip.AddrPort
	to     [unix.SizeofInet6Pktinfo]byte
	toAddr netip.Addr
}

// remote converts a raw socket address.
func (c *addrCache) remote(b []byte) netip.AddrPort {
	var raw [unix.SizeofSockaddrInet6]byte
	copy(raw[:], b)
	if raw == c.from {
		return c.fromAP
	}
	port := binary.BigEndian.Uint16(raw[2:])
	var ap netip.AddrPort
	switch binary.NativeEndian.Uint16(raw[:]) {
	case unix.AF_INET:
		ap = netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port)
	case unix.AF_INET6:
		a := netip.AddrFrom16([16]byte(raw[8:24]))
		ap = netip.AddrPortFrom(withScope(a, binary.NativeEndian.Uint32(raw[24:])), port)
	}
	c.from, c.fromAP = raw, ap
	return ap
}

// local converts a struct in6_pktinfo.
func (c *addrCache) local(b []byte) netip.Addr {
	raw := [unix.SizeofInet6Pktinfo]byte(b)
	if raw == c.to {
		return c.toAddr
	}
	a := withScope(netip.AddrFrom16([16]byte(raw[:16])), binary.NativeEndian.Uint32(raw[16:]))
	c.to, c.toAddr = raw, a
	return a
}

var clockBase = time.Now()

func now() int64 { return int64(time.Since(clockBase)) }
