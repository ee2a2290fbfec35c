package ibcm

import "encoding/binary"

// Status of a SIDR_REP.
const (
	SIDRSuccess        = 0
	SIDRUnsupported    = 1 // nobody serves the service ID
	SIDRRejected       = 2 // by the application
	SIDRNoQP           = 3
	SIDRRedirect       = 4
	SIDRUnknownVersion = 5
)

// SIDRREQ asks for the datagram queue pair of a service (IBTA 12.11.2.1).
type SIDRREQ struct {
	RequestID   uint32
	PKey        uint16
	ServiceID   uint64
	PrivateData [216]byte
}

// Attr implements [Message].
func (*SIDRREQ) Attr() Attr { return AttrSIDRREQ }

func (m *SIDRREQ) decode(b []byte) {
	_ = b[dataSize-1]
	m.RequestID = binary.BigEndian.Uint32(b[0:])
	m.PKey = binary.BigEndian.Uint16(b[4:])
	m.ServiceID = binary.BigEndian.Uint64(b[8:])
	copy(m.PrivateData[:], b[16:])
}

func (m *SIDRREQ) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.RequestID)
	binary.BigEndian.PutUint16(b[4:], m.PKey)
	binary.BigEndian.PutUint64(b[8:], m.ServiceID)
	copy(b[16:], m.PrivateData[:])
}

// SIDRREP answers a SIDR_REQ (IBTA 12.11.2.2).
type SIDRREP struct {
	RequestID            uint32
	Status               uint8
	AdditionalInfoLength uint8
	VendorID             uint32 // 24 bits
	QPN                  uint32 // 24 bits
	ServiceID            uint64
	QKey                 uint32
	AdditionalInfo       [72]byte
	PrivateData          [136]byte
}

// Attr implements [Message].
func (*SIDRREP) Attr() Attr { return AttrSIDRREP }

func (m *SIDRREP) decode(b []byte) {
	_ = b[dataSize-1]
	m.RequestID = binary.BigEndian.Uint32(b[0:])
	m.Status = b[4]
	m.AdditionalInfoLength = b[5]
	m.VendorID = uint32(binary.BigEndian.Uint16(b[6:]))<<8 | uint32(b[11])
	m.QPN = u24(b[8:])
	m.ServiceID = binary.BigEndian.Uint64(b[12:])
	m.QKey = binary.BigEndian.Uint32(b[20:])
	copy(m.AdditionalInfo[:], b[24:])
	copy(m.PrivateData[:], b[96:])
}

func (m *SIDRREP) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.RequestID)
	b[4] = m.Status
	b[5] = m.AdditionalInfoLength
	binary.BigEndian.PutUint16(b[6:], uint16(m.VendorID>>8))
	putU24(b[8:], m.QPN)
	b[11] = byte(m.VendorID)
	binary.BigEndian.PutUint64(b[12:], m.ServiceID)
	binary.BigEndian.PutUint32(b[20:], m.QKey)
	copy(b[24:], m.AdditionalInfo[:])
	copy(b[96:], m.PrivateData[:])
}
