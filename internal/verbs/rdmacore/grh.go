package rdmacore

import "encoding/binary"

// What stands in front of a datagram on RoCE version 2.
const (
	protocolUDP = 17
	ihl5        = 0x45
)

// grhIsIPv4 tells whether the IP header in front of a datagram is one of IPv4, whose first 20 bytes are undefined. Verbs do not
// tell: a completion says only that there is one, so it has to be looked at, as ibv_init_ah_from_wc(3) does. A header of IPv6 that is
// also one of IPv4 with the right checksum takes a source address made for that and an own address that happens to
// fit. Where a device leaves the checksum out, what is no header of IPv6 decides.
func grhIsIPv4(b []byte) bool {
	h := b[20:40]
	if h[0] != ihl5 || h[9] != protocolUDP {
		return false
	}
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	return sum == 0xffff || b[0]>>4 != 6
}
