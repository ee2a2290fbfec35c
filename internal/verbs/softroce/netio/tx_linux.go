package netio

import (
	"encoding/binary"
	"math/bits"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	gsoSegments = 64    // UDP_MAX_SEGMENTS of Linux before 6.9
	gsoBytes    = 65000 // of one send, below what an IPv4 datagram holds
	gsoVectors  = 1024  // UIO_MAXIOV
	udpHeader   = 8

	// fullWait is the time a Send waits for room in the socket, in milliseconds, and
	// fullTries how often. Then packets are lost, as in any network.
	fullWait  = 1
	fullTries = 2
)

// pathEnc is a path in the form that the kernel takes.
type pathEnc struct {
	port    uint16
	family  int
	name    [unix.SizeofSockaddrInet6]byte
	nameLen int
	ctl     []byte
	noGSO   atomic.Bool // the kernel refused it for the path
}

// txControl bounds the control messages of a send: source address, traffic class, hop
// limit, segment length.
const txControl = 128

// encode makes the kernel's form of a path.
func (p *Path) encode(port uint16) (*pathEnc, syscall.Errno) {
	if !p.Local.IsValid() || p.Local.IsUnspecified() || p.Local.Is4() != p.Remote.Is4() || p.Local.Is4In6() {
		return nil, unix.EADDRNOTAVAIL
	}
	v6 := p.Remote.Is6()
	e := &pathEnc{port: port, family: familyIndex(v6)}
	var scope uint32
	if scoped(p.Remote) || scoped(p.Local) {
		if scope = scopeOf(p.Remote); scope == 0 {
			scope = scopeOf(p.Local)
		}
	}
	if p.Interface != 0 {
		scope = uint32(p.Interface)
	}
	e.nameLen = putSockaddr(&e.name, p.Remote, port, scope)
	ctl := make([]byte, 0, txControl)
	var info []byte
	if v6 {
		ctl, info = appendCmsg(ctl, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		src := p.Local.As16()
		copy(info, src[:])
		binary.NativeEndian.PutUint32(info[16:], scope)
	} else {
		ctl, info = appendCmsg(ctl, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		src := p.Local.As4()
		binary.NativeEndian.PutUint32(info, uint32(p.Interface)) // ipi_ifindex
		copy(info[4:], src[:])                                   // ipi_spec_dst
	}
	if p.TrafficClass != 0 {
		if v6 {
			ctl = appendIntCmsg(ctl, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(p.TrafficClass))
		} else {
			ctl = appendIntCmsg(ctl, unix.IPPROTO_IP, unix.IP_TOS, int(p.TrafficClass))
		}
	}
	if p.HopLimit != 0 && p.HopLimit != defaultHops {
		if v6 {
			ctl = appendIntCmsg(ctl, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int(p.HopLimit))
		} else {
			ctl = appendIntCmsg(ctl, unix.IPPROTO_IP, unix.IP_TTL, int(p.HopLimit))
		}
	}
	e.ctl = ctl
	p.enc.Store(e)
	return e, 0
}

// txState is what a Send takes.
type txState struct {
	socks [MaxBatch]uint8 // socket of each packet
	idx   [MaxBatch]uint8 // packets of the socket at hand
	encs  [MaxBatch]*pathEnc
	trail [MaxBatch][8]byte // pad and ICRC
	ctl   [MaxBatch][txControl]byte
	msgs  [MaxBatch]unix.Mmsghdr
	grps  [MaxBatch]txGroup
	iovs  []unix.Iovec
	flow  wire.Flow
}

// txGroup is the packets of one message: grps[i] is those of msgs[i].
type txGroup struct {
	first, n int // in idx
	iov      int
}

func newTxState() *txState { return &txState{iovs: make([]unix.Iovec, 0, 4*MaxBatch)} }

// Send sends the batch. Packets of one path and of one length go to the kernel as one, where it
// cuts them.
func (u *UDP) Send(b *TxBatch) error {
	if len(b.pkts) == 0 {
		return nil
	}
	defer b.Reset()
	u.txMu.RLock()
	defer u.txMu.RUnlock()
	if u.closed {
		return net.ErrClosed
	}
	ioSync.Release()
	st := u.txFree.get()
	var first syscall.Errno
	var used [2]uint64 // sockets of each family
	for i := range b.pkts {
		p := b.pkts[i].path
		enc := p.enc.Load()
		if enc == nil || enc.port != u.cfg.RemotePort {
			var e syscall.Errno
			if enc, e = p.encode(u.cfg.RemotePort); e != 0 {
				st.socks[i] = noSocket
				first = failed(p, e, first)
				continue
			}
		}
		if len(u.tx[enc.family]) == 0 {
			st.socks[i] = noSocket
			first = failed(p, unix.ENETUNREACH, first)
			continue
		}
		st.encs[i] = enc
		n := u.source(enc.family, p)
		st.socks[i] = sourceKey(enc.family, n)
		used[enc.family] |= 1 << n
	}
	for f, set := range used {
		for ; set != 0; set &= set - 1 {
			n := bits.TrailingZeros64(set)
			if e := u.sendOn(u.sourceSock(f, n), sourceKey(f, n), b, st); first == 0 {
				first = e
			}
		}
	}
	clear(st.encs[:len(b.pkts)])
	u.txFree.put(st)
	if first != 0 {
		return first
	}
	return nil
}

const noSocket = 0xFF

// sourceKey is one number for socket n of a family.
func sourceKey(family, n int) uint8 { return uint8(family*(maxSourcePorts+maxFresh) + n) }

// failed notes the error of a path and returns the first of all.
func failed(p *Path, e, first syscall.Errno) syscall.Errno {
	p.setErr(e)
	if first == 0 {
		return e
	}
	return first
}

// sendOn sends the packets of one socket. It returns the first error.
func (u *UDP) sendOn(s txSock, k uint8, b *TxBatch, st *txState) (first syscall.Errno) {
	idx := st.idx[:0]
	for i := range b.pkts {
		if st.socks[i] == k {
			idx = append(idx, uint8(i))
		}
	}
	for next := 0; next < len(idx); {
		msgs := st.msgs[:u.build(s, b, st, idx, next)]
		next = len(idx)
		tries, pending := 0, 0
		var at time.Time
		for done := 0; done < len(msgs); {
			if u.cfg.Trace != nil {
				at = time.Now()
			}
			n, e := sendmmsg(s.fd, msgs[done:])
			if e == 0 {
				for ; n > 0; n-- {
					if u.cfg.Trace != nil {
						u.traceSent(at, s, b, st, idx, st.grps[done])
					}
					st.mark(b, idx, done, 0)
					done++
				}
				continue
			}
			g := st.grps[done]
			enc := st.encs[idx[g.first]]
			switch e {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				if tries < fullTries {
					tries++
					waitRoom(s.fd)
					continue
				}
				fallthrough
			case unix.ENOBUFS, unix.ENOMEM:
				u.unsent.Add(uint64(len(idx) - g.first))
				return first
			case unix.ECONNREFUSED, unix.EPROTO, unix.ENOPROTOOPT:
				// What an ICMP message left at the socket, of whichever peer; it is gone now.
				if pending < 3 {
					pending++
					continue
				}
			}
			if g.n > 1 && gsoRefused(e) {
				enc.noGSO.Store(true)
				next = g.first
				break
			}
			if e == unix.EINVAL || e == unix.ENETUNREACH {
				if local := b.pkts[idx[g.first]].path.Local; !ours(local, scopeOf(local)) {
					e = unix.EADDRNOTAVAIL // not, or no longer
				}
			}
			if e == unix.EMSGSIZE {
				enc.noGSO.Store(false) // it was not segmentation that was refused
			}
			st.mark(b, idx, done, e)
			if first == 0 {
				first = e
			}
			done++
		}
	}
	return first
}

// mark notes the outcome of message m at the paths of its packets.
func (st *txState) mark(b *TxBatch, idx []uint8, m int, e syscall.Errno) {
	g := &st.grps[m]
	for _, i := range idx[g.first : g.first+g.n] {
		b.pkts[i].path.setErr(e)
		if e == unix.EMSGSIZE {
			b.pkts[i].path.SetTooLong()
		}
	}
}

// traceSent records the packets of a message that was sent.
func (u *UDP) traceSent(at time.Time, s txSock, b *TxBatch, st *txState, idx []uint8, g txGroup) {
	for n, i := range idx[g.first : g.first+g.n] {
		p := &b.pkts[i]
		tail := st.trail[i][:-p.payload&3+wire.ICRCLen]
		u.cfg.Trace.Sent(at, p.path, s.port, uint16(n), p.hdr, b.frags[p.frag:p.frag+p.nfrag], tail)
	}
}

// gsoRefused tells whether the kernel may have meant the segmentation: EINVAL and EMSGSIZE when
// a segment exceeds the path MTU (before and since Linux 6.2), EIO when a device or IPsec cannot do it.
func gsoRefused(e syscall.Errno) bool {
	return e == unix.EINVAL || e == unix.EMSGSIZE || e == unix.EIO || e == unix.EOPNOTSUPP
}

// waitRoom waits a moment for the device to take what the socket has.
func waitRoom(fd int) {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, _ = unix.Poll(fds[:], fullWait)
}

// build makes messages of idx[from:] and returns their number.
func (u *UDP) build(s txSock, b *TxBatch, st *txState, idx []uint8, from int) int {
	clear(st.iovs)
	st.iovs = st.iovs[:0]
	m := 0
	for i := from; i < len(idx); m++ {
		g := txGroup{first: i, n: 1, iov: len(st.iovs)}
		pk := &b.pkts[idx[i]]
		enc := st.encs[idx[i]]
		length := pk.length()
		seal(s, b, st, idx[i], 0)
		if u.gso && !enc.noGSO.Load() && !pk.path.single.Load() {
			total := length
			for j := i + 1; j < len(idx) && g.n < gsoSegments; j++ {
				q := &b.pkts[idx[j]]
				l := q.length()
				if l > length || total+l > gsoBytes || len(st.iovs)-g.iov+q.nfrag+2 > gsoVectors ||
					!sameWay(pk.path, q.path) || q.path.single.Load() {
					break
				}
				seal(s, b, st, idx[j], uint16(g.n))
				total += l
				g.n++
				if l < length {
					break
				}
			}
		}
		i += g.n
		st.grps[m] = g

		h := &st.msgs[m].Hdr
		h.Name = &enc.name[0]
		h.Namelen = uint32(enc.nameLen)
		ctl := enc.ctl
		if g.n > 1 {
			ctl = append(st.ctl[m][:0], ctl...)
			var data []byte
			ctl, data = appendCmsg(ctl, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
			binary.NativeEndian.PutUint16(data, uint16(length))
		}
		h.Control = &ctl[0]
		h.SetControllen(len(ctl))
	}
	// The vectors have their place only now.
	end := len(st.iovs)
	for i := m - 1; i >= 0; i-- {
		h := &st.msgs[i].Hdr
		h.Iov = &st.iovs[st.grps[i].iov]
		h.SetIovlen(end - st.grps[i].iov)
		end = st.grps[i].iov
	}
	return m
}

// length is that of the UDP payload.
func (p *txPacket) length() int { return len(p.hdr) + (p.payload+3)&^3 + wire.ICRCLen }

// sameWay tells whether packets of two paths look the same to the network.
func sameWay(p, q *Path) bool {
	return p == q || p.Remote == q.Remote && p.Local == q.Local && p.TrafficClass == q.TrafficClass && p.HopLimit == q.HopLimit &&
		p.Interface == q.Interface
}

// seal is where every sent packet passes: it adds pad and ICRC for IPv4 identification id, and the vectors of the
// whole packet. Packet i of b goes out on s.
func seal(s txSock, b *TxBatch, st *txState, i uint8, id uint16) {
	p := &b.pkts[i]
	frags := b.frags[p.frag : p.frag+p.nfrag]
	crc := st.flow.ICRCStart(p.path.Local, p.path.Remote, s.port, udpHeader+p.length(), id)
	crc = wire.ICRCHeader(crc, p.hdr)
	st.iov(p.hdr)
	for _, f := range frags {
		crc = wire.ICRCBytes(crc, f)
		st.iov(f)
	}
	pad := -p.payload & 3
	t := st.trail[i][:pad+wire.ICRCLen]
	clear(t[:pad])
	crc = wire.ICRCBytes(crc, t[:pad])
	wire.PutICRC(t[pad:], crc)
	st.iov(t)
}

func (st *txState) iov(b []byte) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	st.iovs = append(st.iovs, v)
}
