package softroce

import (
	"encoding/binary"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	ipv4Header = 20
	udpHeader  = 8
	protoUDP   = 17
	dontFrag   = 0x4000
)

// putGRH writes what stands in front of a datagram: the packet's IP header (annex A17), an IPv4 one behind 20
// bytes of zeros, and returns the flags that tell which one. The header checksum is right, since readers without a
// completion recognize an IPv4 header by that. The flow label of an IPv6 header is not known, and 0.
func putGRH(b *[verbs.GRHLen]byte, p *netio.Packet) verbs.WCFlags {
	be := binary.BigEndian
	*b = [verbs.GRHLen]byte{}
	udp := udpHeader + len(p.Data) + wire.ICRCLen
	if p.Local.Is4() {
		h := b[verbs.GRHLen-ipv4Header:]
		src, dst := p.Remote.Addr().As4(), p.Local.As4()
		h[0], h[1] = 4<<4|ipv4Header/4, p.TrafficClass
		be.PutUint16(h[2:], uint16(ipv4Header+udp))
		be.PutUint16(h[4:], p.ID)
		be.PutUint16(h[6:], dontFrag)
		h[8], h[9] = p.HopLimit, protoUDP
		copy(h[12:], src[:])
		copy(h[16:], dst[:])
		var sum uint32 // RFC 1071
		for i := 0; i < ipv4Header; i += 2 {
			sum += uint32(be.Uint16(h[i:]))
		}
		sum = sum>>16 + sum&0xffff
		be.PutUint16(h[10:], ^uint16(sum>>16+sum))
		return verbs.WCGRH | verbs.WCGRHv4
	}
	src, dst := p.Remote.Addr().As16(), p.Local.As16()
	be.PutUint32(b[:], 6<<28|uint32(p.TrafficClass)<<20)
	be.PutUint16(b[4:], uint16(udp))
	b[6], b[7] = protoUDP, p.HopLimit
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	return verbs.WCGRH
}
