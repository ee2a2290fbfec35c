package ibcm

import "encoding/binary"

// CommIDOffset is where a datagram has its sender's communication or request ID
// (of SIDR_REP, the receiver's).
const CommIDOffset = headerSize

// Dest is what a datagram is for, as far as its receiver can tell without
// knowing connections: a service, or one of the receiver's communication IDs.
type Dest struct {
	Attr      Attr
	ServiceID uint64 // of REQ, SIDR_REQ, and a REJ that takes back a REQ without answer
	CommID    uint32 // of all others; 0 if the sender knows none
}

// Service tells whether the datagram is for a service.
func (d *Dest) Service() bool { return d.ServiceID != 0 }

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
	case AttrREJ:
		d.CommID = binary.BigEndian.Uint32(b[4:])
		if d.CommID == 0 && binary.BigEndian.Uint16(b[10:]) == ReasonTimeout {
			d.ServiceID = binary.BigEndian.Uint64(b[12+ariService:])
		}
	case AttrMRA, AttrREP, AttrRTU, AttrDREQ, AttrDREP:
		d.CommID = binary.BigEndian.Uint32(b[4:])
	default:
		return d, false
	}
	return d, true
}
