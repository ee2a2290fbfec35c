package trace

import (
	"encoding/binary"
	"net/netip"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	protoUDP    = 17
	dontFrag    = 0x4000
	defaultHops = 64
)

// header is what the IP and UDP headers of a packet say.
type header struct {
	src, dst netip.Addr
	srcPort  uint16
	tclass   uint8
	hops     uint8
	id       uint16 // IPv4
}

func (h *header) len() int {
	if h.src.Is4() {
		return ipv4Len + udpLen
	}
	return ipv6Len + udpLen
}

// put writes the headers of n bytes of UDP payload into b, which has their length. The UDP checksum is
// to be written once the payload is there. The destination port is RoCE's, which the ICRC
// is computed for.
func (h *header) put(b []byte, n int) {
	be := binary.BigEndian
	clear(b)
	u := b[len(b)-udpLen:]
	be.PutUint16(u, h.srcPort)
	be.PutUint16(u[2:], netio.Port)
	be.PutUint16(u[4:], uint16(udpLen+n))
	if h.src.Is4() {
		src, dst := h.src.As4(), h.dst.As4()
		b[0] = 4<<4 | ipv4Len/4
		b[1] = h.tclass
		be.PutUint16(b[2:], uint16(len(b)+n))
		be.PutUint16(b[4:], h.id)
		be.PutUint16(b[6:], dontFrag)
		b[8], b[9] = h.hops, protoUDP
		copy(b[12:], src[:])
		copy(b[16:], dst[:])
		be.PutUint16(b[10:], ^fold(sum(0, b[:ipv4Len])))
		return
	}
	src, dst := h.src.As16(), h.dst.As16()
	be.PutUint32(b, 6<<28|uint32(h.tclass)<<20)
	be.PutUint16(b[4:], uint16(udpLen+n))
	b[6], b[7] = protoUDP, h.hops
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}

// putChecksum completes the UDP header of a packet of hdr bytes of headers (RFC 768).
func putChecksum(p []byte, hdr int) {
	from := hdr - udpLen
	addrs := p[12:from]
	if from == ipv6Len {
		addrs = p[8:from]
	}
	s := sum(0, addrs) + protoUDP + uint64(len(p)-from)
	c := ^fold(sum(s, p[from:]))
	if c == 0 {
		c = 0xFFFF // 0 means none
	}
	binary.BigEndian.PutUint16(p[from+6:], c)
}

// sum adds the 16-bit words of b to s (RFC 1071), an odd last byte being the high one. 2^16-1
// divides 2^32-1, so that words of 32 bits serve as well.
func sum(s uint64, b []byte) uint64 {
	for len(b) >= 4 {
		s += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

func fold(s uint64) uint16 {
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}
