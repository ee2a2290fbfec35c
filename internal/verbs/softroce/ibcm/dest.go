package ibcm

import "encoding/binary"

// CommIDOffset is where a datagram has its sender's communication or request ID
// (of SIDR_REP, the receiver's).
const CommIDOffset = headerSize

// Dest is what a datagram is for, as far as its receiver can tell without
// knowing connections: a service, or one of the receiver's communication IDs.
type Dest struct {
	Attr      Attr
	ServiceID uint64 // of REQ and SIDR_REQ
	CommID    uint32 // of all others; 0 if the sender knows none
}

// Service tells whether the datagram is for a service.
func (d *Dest) Service() bool { return d.Attr == AttrREQ || d.Attr == AttrSIDRREQ }

// ParseDest reads only as much of a datagram as tells where it belongs.
func ParseDest(mad []byte) (d Dest, ok bool) {
	if len(mad) != MADSize || mad[1] != classCM {
		return d, false
	}
	d.Attr = Attr(binary.BigEndian.Uint16(mad[16:]))
	b := mad[headerSize:]
	switch d.Attr {
	case AttrREQ, AttrSIDRREQ:
		d.ServiceID = binary.BigEndian.Uint64(b[8:])
	case AttrSIDRREP:
		d.CommID = binary.BigEndian.Uint32(b[0:])
	case AttrMRA, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP:
		d.CommID = binary.BigEndian.Uint32(b[4:])
	default:
		return d, false
	}
	return d, true
}
