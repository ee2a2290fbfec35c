package share

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// A message is one packet that is handed over:
//
//	 0     version
//	 1     kind: 1, a packet
//	 2     family of the addresses: 4 or 6
//	 3     traffic class
//	 4     hop limit
//	 5     0
//	 6..7  UDP source port
//	 8..9  IPv4 identification
//	10..15 0
//	16..31 local address; an IPv4 address takes the first four bytes, the rest is 0
//	32..47 remote address
//	48..63 zone of the addresses, padded with zeros
//	64..   BTH to pad
//
// Numbers are big endian.
const (
	version    = 1
	kindPacket = 1
	headerLen  = 64
	zoneLen    = 16 // IFNAMSIZ

	minPacket = 12         // BTH
	maxPacket = 4096 + 256 // the largest MTU and its headers
	maxLen    = headerLen + maxPacket
)

// encode writes a message into b, which has maxLen bytes, and returns its length: 0 for a packet
// that does not fit.
func encode(b []byte, p *netio.Packet) int {
	local, remote := p.Local, p.Remote.Addr()
	zone := remote.Zone()
	if zone == "" {
		zone = local.Zone()
	}
	if len(p.Data) < minPacket || len(p.Data) > maxPacket || len(p.Data)%4 != 0 || len(zone) > zoneLen ||
		!local.IsValid() || local.Is4() != remote.Is4() || local.Is4In6() || remote.Is4In6() {
		return 0
	}
	clear(b[:headerLen])
	b[0], b[1] = version, kindPacket
	b[3], b[4] = p.TrafficClass, p.HopLimit
	binary.BigEndian.PutUint16(b[6:], p.Remote.Port())
	binary.BigEndian.PutUint16(b[8:], p.ID)
	if local.Is4() {
		b[2] = 4
		l, r := local.As4(), remote.As4()
		copy(b[16:], l[:])
		copy(b[32:], r[:])
	} else {
		b[2] = 6
		l, r := local.As16(), remote.As16()
		copy(b[16:], l[:])
		copy(b[32:], r[:])
		copy(b[48:], zone)
	}
	return headerLen + copy(b[headerLen:], p.Data)
}

// decoder reads messages. It keeps the last zone, which takes a look-up.
type decoder struct {
	zone string
}

// decode reads a message into p, whose Data is then part of b.
func (d *decoder) decode(b []byte, p *netio.Packet) bool {
	if len(b) < headerLen+minPacket || len(b) > maxLen || b[0] != version || b[1] != kindPacket || len(b)%4 != 0 {
		return false
	}
	var local, remote netip.Addr
	zone, _, _ := bytes.Cut(b[48:48+zoneLen], []byte{0})
	switch b[2] {
	case 4:
		if len(zone) != 0 {
			return false
		}
		local = netip.AddrFrom4([4]byte(b[16:]))
		remote = netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		local = d.withZone(netip.AddrFrom16([16]byte(b[16:])), zone)
		remote = d.withZone(netip.AddrFrom16([16]byte(b[32:])), zone)
		if local.Is4In6() || remote.Is4In6() {
			return false
		}
	default:
		return false
	}
	*p = netio.Packet{
		Local:        local,
		Remote:       netip.AddrPortFrom(remote, binary.BigEndian.Uint16(b[6:])),
		TrafficClass: b[3],
		HopLimit:     b[4],
		ID:           binary.BigEndian.Uint16(b[8:]),
		Data:         b[headerLen:len(b):len(b)],
	}
	return true
}

// withZone gives link-local addresses the zone; no other has one.
func (d *decoder) withZone(a netip.Addr, zone []byte) netip.Addr {
	if len(zone) == 0 || !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast() && !a.IsInterfaceLocalMulticast() {
		return a
	}
	if d.zone != string(zone) {
		d.zone = string(zone)
	}
	return a.WithZone(d.zone)
}
