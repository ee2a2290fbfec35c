package ibcm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// IPHeaderSize is the size of the header that rdma_cm puts in front of the
// private data of REQ and SIDR_REQ (IBTA annex A11).
const IPHeaderSize = 36

// IPHeader says which addresses a REQ or SIDR_REQ is between. The destination's
// port is in the service ID only.
type IPHeader struct {
	Source      netip.AddrPort
	Destination netip.Addr
}

// ParseIPHeader reads the header at the start of the private data.
func ParseIPHeader(b []byte) (IPHeader, error) {
	var h IPHeader
	if len(b) < IPHeaderSize {
		return h, fmt.Errorf("%w: rdma_cm header of %d bytes", ErrMalformed, len(b))
	}
	if b[0] != 0 {
		return h, fmt.Errorf("%w: rdma_cm header version %#x", ErrMalformed, b[0])
	}
	port := binary.BigEndian.Uint16(b[2:])
	src, dst := [16]byte(b[4:20]), [16]byte(b[20:36])
	switch b[1] >> 4 {
	case 4:
		h.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(src[12:])), port)
		h.Destination = netip.AddrFrom4([4]byte(dst[12:]))
	case 6:
		s, d := netip.AddrFrom16(src), netip.AddrFrom16(dst)
		if s.Is4In6() || d.Is4In6() {
			return h, fmt.Errorf("%w: IPv4 address in an IPv6 rdma_cm header", ErrMalformed)
		}
		h.Source, h.Destination = netip.AddrPortFrom(s, port), d
	default:
		return h, fmt.Errorf("%w: rdma_cm header for IP version %d", ErrMalformed, b[1]>>4)
	}
	return h, nil
}

// Put writes the header to the start of b. Both addresses are of one family.
func (h *IPHeader) Put(b []byte) {
	_ = b[IPHeaderSize-1]
	clear(b[:IPHeaderSize])
	b[1] = 6 << 4
	binary.BigEndian.PutUint16(b[2:], h.Source.Port())
	if h.Source.Addr().Is4() {
		b[1] = 4 << 4
		s, d := h.Source.Addr().As4(), h.Destination.As4()
		copy(b[16:20], s[:])
		copy(b[32:36], d[:])
		return
	}
	s, d := h.Source.Addr().As16(), h.Destination.As16()
	copy(b[4:20], s[:])
	copy(b[20:36], d[:])
}

// ServiceID is the service ID of a port of an rdma_cm port space.
func ServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// SplitServiceID is the inverse of [ServiceID]; ok is false for service IDs
// that are not rdma_cm's.
func SplitServiceID(id uint64) (space, port uint16, ok bool) {
	return uint16(id >> 16), uint16(id), id>>32 == 0 && id>>16 != 0
}

// GID is the RoCEv2 GID of an address.
func GID(a netip.Addr) [16]byte { return a.As16() }
