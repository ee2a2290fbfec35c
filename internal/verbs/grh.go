package verbs

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// GRHLen is the number of bytes in front of a received datagram when its completion has [WCGRH].
const GRHLen = 40

// GRH is the global route header of a datagram (IBTA 8.3), or on RoCE the IP header that stands for it (annex A17).
type GRH struct {
	Source, Dest netip.Addr // GIDs of IPv4 addresses are given as these
	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32
}

// ErrBadGRH is the error of [ParseGRH].
var ErrBadGRH = errors.New("no GRH in front of the datagram")

// ParseGRH reads the first [GRHLen] bytes of a datagram, of whose completion flags are. Only the completion tells the
// address family: the first 20 bytes in front of an IPv4 header are undefined. The checksum of that header is not looked at,
// since some devices leave it out; nor are lengths, which the completion knows better.
func ParseGRH(b []byte, flags WCFlags) (GRH, error) {
	var g GRH
	if len(b) < GRHLen || flags&WCGRH == 0 {
		return g, ErrBadGRH
	}
	if flags&WCGRHv4 != 0 {
		h := b[20:GRHLen]
		if h[0] != 0x45 {
			return g, ErrBadGRH
		}
		g.TrafficClass, g.HopLimit = h[1], h[8]
		g.Source, g.Dest = netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
		return g, nil
	}
	if b[0]>>4 != 6 {
		return g, ErrBadGRH
	}
	w := binary.BigEndian.Uint32(b)
	g.TrafficClass, g.FlowLabel, g.HopLimit = uint8(w>>20), w&0xfffff, b[7]
	g.Source, g.Dest = netip.AddrFrom16([16]byte(b[8:24])).Unmap(), netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	return g, nil
}
