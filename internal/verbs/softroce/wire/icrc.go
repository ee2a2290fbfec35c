package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// The invariant CRC (IBTA 7.8.1 and annex A17) is the CRC-32 of Ethernet over
// eight bytes of ones in place of an LRH, the IP and UDP headers, BTH, extension
// headers, payload and pad, where fields that the network may change read as
// ones. Values are carried between the functions as crc32.Update returns them.

const (
	udpPort   = 4791
	udpHdrLen = 8
	flagDF    = 0x4000

	// icrcLRH is the CRC of eight bytes 0xFF.
	icrcLRH = 0x2144DF1C

	// bthMasked is the byte of the BTH (FECN, BECN, reserved) that is not covered.
	bthMasked = 4
)

// ICRCStart returns the state after the IP and UDP headers of a datagram to UDP
// port 4791. udpLen is the length field of the UDP header: 8 and everything from
// BTH to ICRC. An IPv4 header has DF set and the identification ipID. Both
// addresses are of one family, and not IPv4-mapped.
func ICRCStart(src, dst netip.Addr, srcPort uint16, udpLen int, ipID uint16) uint32 {
	if src.Is4() && dst.Is4() {
		return icrcStart4(src.As4(), dst.As4(), srcPort, udpLen, ipID)
	}
	return icrcStart6(src.As16(), dst.As16(), srcPort, udpLen)
}

func icrcStart4(src, dst [4]byte, srcPort uint16, udpLen int, ipID uint16) uint32 {
	var h [20 + udpHdrLen]byte
	h[0] = 0x45
	h[1] = 0xFF // TOS
	binary.BigEndian.PutUint16(h[2:], uint16(20+udpLen))
	binary.BigEndian.PutUint16(h[4:], ipID)
	binary.BigEndian.PutUint16(h[6:], flagDF)
	h[8] = 0xFF // TTL
	h[9] = 17
	h[10], h[11] = 0xFF, 0xFF // header checksum
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	putUDP(h[20:], srcPort, udpLen)
	return crcShort(icrcLRH, h[:])
}

func icrcStart6(src, dst [16]byte, srcPort uint16, udpLen int) uint32 {
	var h [40 + udpHdrLen]byte
	h[0], h[1], h[2], h[3] = 0x6F, 0xFF, 0xFF, 0xFF // traffic class, flow label
	binary.BigEndian.PutUint16(h[4:], uint16(udpLen))
	h[6] = 17
	h[7] = 0xFF // hop limit
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	putUDP(h[40:], srcPort, udpLen)
	return crcShort(icrcLRH, h[:])
}

func putUDP(h []byte, srcPort uint16, udpLen int) {
	_ = h[7]
	binary.BigEndian.PutUint16(h, srcPort)
	binary.BigEndian.PutUint16(h[2:], udpPort)
	binary.BigEndian.PutUint16(h[4:], uint16(udpLen))
	h[6], h[7] = 0xFF, 0xFF // checksum
}

// Flow remembers the state after the IP and UDP headers of the last datagram: most that follow differ in their
// identification at most, and there are as many bytes before a BTH as in one. The zero Flow is ready for use.
type Flow struct {
	src, dst netip.Addr
	srcPort  uint16
	udpLen   int
	v4       bool
	crc      uint32 // with identification 0
}

// ICRCStart is [ICRCStart].
func (f *Flow) ICRCStart(src, dst netip.Addr, srcPort uint16, udpLen int, ipID uint16) uint32 {
	if udpLen != f.udpLen || srcPort != f.srcPort || src != f.src || dst != f.dst {
		*f = Flow{src, dst, srcPort, udpLen, src.Is4() && dst.Is4(), ICRCStart(src, dst, srcPort, udpLen, 0)}
	}
	if !f.v4 {
		return f.crc
	}
	// A CRC is linear: what the identification changes does not depend on the rest.
	return f.crc ^ identEffect[0][ipID>>8] ^ identEffect[1][byte(ipID)]
}

// ICRCHeader continues crc over a BTH and its extension headers. hdr begins with
// the BTH; what follows its twelve bytes may be anything that is covered as it is.
func ICRCHeader(crc uint32, hdr []byte) uint32 {
	var h [MaxHeaderLen]byte
	n := copy(h[:], hdr)
	h[bthMasked] = 0xFF
	crc = crcShort(crc, h[:n])
	if n < len(hdr) {
		crc = ICRCBytes(crc, hdr[n:])
	}
	return crc
}

// ICRCBytes continues crc over payload and pad.
func ICRCBytes(crc uint32, p []byte) uint32 {
	if len(p) < 64 {
		return crcShort(crc, p)
	}
	return crc32.Update(crc, crc32.IEEETable, p)
}

// PutICRC writes the finished CRC: least significant byte first, unlike
// everything else on this wire.
func PutICRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// slicing holds the tables of the slicing-by-8 method: slicing[i][b] is the effect of
// byte b followed by i zero bytes. hash/crc32 has its own, but calls through a
// function variable, which would move the short arrays here to the heap.
var slicing [8][256]uint32

func init() {
	slicing[0] = *crc32.IEEETable
	for b := range slicing[0] {
		c := slicing[0][b]
		for i := 1; i < 8; i++ {
			c = slicing[0][byte(c)] ^ c>>8
			slicing[i][b] = c
		}
	}
	// From here on the headers' bytes may be zeros, and so may those before.
	for b := range 256 {
		var h [identToEnd]byte
		none := crcShort(0, h[:])
		h[0] = byte(b)
		identEffect[0][b] = crcShort(0, h[:]) ^ none
		h[0], h[1] = 0, byte(b)
		identEffect[1][b] = crcShort(0, h[:]) ^ none
	}
}

// identEffect is what the first and the second byte of an IPv4 identification change in the state after the UDP header.
var identEffect [2][256]uint32

// crcShort is crc32.Update for the IEEE polynomial and short p.
func crcShort(crc uint32, p []byte) uint32 {
	c := ^crc
	for len(p) >= 8 {
		c ^= binary.LittleEndian.Uint32(p)
		d := binary.LittleEndian.Uint32(p[4:])
		c = slicing[7][byte(c)] ^ slicing[6][byte(c>>8)] ^ slicing[5][byte(c>>16)] ^ slicing[4][c>>24] ^
			slicing[3][byte(d)] ^ slicing[2][byte(d>>8)] ^ slicing[1][byte(d>>16)] ^ slicing[0][d>>24]
		p = p[8:]
	}
	if len(p) >= 4 {
		c ^= binary.LittleEndian.Uint32(p)
		c = slicing[3][byte(c)] ^ slicing[2][byte(c>>8)] ^ slicing[1][byte(c>>16)] ^ slicing[0][c>>24]
		p = p[4:]
	}
	for _, v := range p {
		c = slicing[0][byte(c)^v] ^ c>>8
	}
	return ^c
}
