package wire

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

// Verify checks the ICRC of a received datagram, which is BTH to ICRC, and
// returns the identification of its IPv4 header.
//
// A socket does not tell the identification, which the ICRC covers. So expectID is tried
// first; when it is not the one, the identification is solved for: of the 32 bits of
// the CRC it takes 16, and the other 16 remain as check. DF is taken to be set, as
// every known sender sets it, but a header without it is solved for too. The id
// of an IPv6 datagram is 0.
func Verify(src, dst netip.Addr, srcPort uint16, datagram []byte, expectID uint16) (id uint16, ok bool) {
	var f Flow
	return f.Verify(src, dst, srcPort, datagram, expectID)
}

// Verify is [Verify].
func (f *Flow) Verify(src, dst netip.Addr, srcPort uint16, datagram []byte, expectID uint16) (id uint16, ok bool) {
	n := len(datagram) - ICRCLen
	if n < BTHLen {
		return 0, false
	}
	v4 := src.Is4() && dst.Is4()
	if !v4 && !(src.Is6() && dst.Is6()) {
		return 0, false
	}
	got := binary.LittleEndian.Uint32(datagram[n:])
	c := f.ICRCStart(src, dst, srcPort, udpHdrLen+len(datagram), expectID)
	if n <= MaxHeaderLen {
		c = ICRCHeader(c, datagram[:n])
	} else {
		c = ICRCHeader(c, datagram[:BTHLen])
		c = ICRCBytes(c, datagram[BTHLen:n])
	}
	if c == got {
		if !v4 {
			expectID = 0
		}
		return expectID, true
	}
	if !v4 {
		return 0, false
	}
	return solveID(c^got, n, expectID)
}

// solveID finds the identification from diff, the difference between the ICRC
// received and the one computed with guess.
//
// CRC is linear: a difference in the four bytes of identification, flags and
// fragment offset, read as a little-endian word w, becomes w * x^(8k) modulo the
// polynomial at the end of the k bytes from there on. Multiplying by
// x^(-8k) gives w back.
func solveID(diff uint32, n int, guess uint16) (uint16, bool) {
	k := identToEnd + n
	w := mulmod(diff, inversePower(k))
	// Little endian: the low half is the identification, the high half flags and
	// offset, each with its first byte lowest.
	if hi := w >> 16; hi != 0 && hi != flagDF>>8 {
		return 0, false
	}
	return guess ^ (uint16(w)<<8 | uint16(w)>>8), true
}

// identToEnd is the number of bytes from the identification of an IPv4 header to
// the end of the UDP header.
const identToEnd = 16 + udpHdrLen

// Polynomials over GF(2) modulo that of CRC-32, reflected: the top bit is the
// coefficient of x^0.
const (
	crcPoly = 0xEDB88320
	polyOne = 1 << 31
)

// mulmod returns the product of a and b. It is free of branches that depend on data.
func mulmod(a, b uint32) uint32 {
	var r uint32
	for range 32 {
		r ^= b & -(a >> 31)
		b = b>>1 ^ crcPoly&-(b&1)
		a <<= 1
	}
	return r
}

// divX returns a / x.
func divX(a uint32) uint32 {
	if a&polyOne != 0 {
		return (a^crcPoly)<<1 | 1
	}
	return a << 1
}

// tableWords bounds the packets whose power is looked up: BTH to pad of a
// packet of the largest MTU, in units of 4 bytes. RoCE lengths are multiples of 4.
const tableWords = (MaxHeaderLen + 4096 + 256) / 4

// inverseTable[i] is x^(-8(identToEnd+4i)).
var inverseTable = sync.OnceValue(func() *[tableWords]uint32 {
	t := new([tableWords]uint32)
	p := uint32(polyOne)
	for range 8 * identToEnd {
		p = divX(p)
	}
	for i := range t {
		t[i] = p
		for range 32 {
			p = divX(p)
		}
	}
	return t
})

// inversePower returns x^(-8k).
func inversePower(k int) uint32 {
	if i := k - identToEnd; i >= 0 && i&3 == 0 && i/4 < tableWords {
		return inverseTable()[i/4]
	}
	// Square and multiply from x^-8.
	p := uint32(polyOne)
	sq := p
	for range 8 {
		sq = divX(sq)
	}
	for ; k > 0; k >>= 1 {
		if k&1 != 0 {
			p = mulmod(p, sq)
		}
		sq = mulmod(sq, sq)
	}
	return p
}
