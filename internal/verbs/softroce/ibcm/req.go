package ibcm

import "encoding/binary"

// Transport service types of a REQ.
const (
	TransportRC = 0
	TransportUC = 1
	TransportRD = 2
)

// REQ asks for a connection (IBTA 12.6.5).
type REQ struct {
	LocalCommID             uint32
	VendorID                uint32 // 24 bits; enhanced connection establishment
	ServiceID               uint64
	LocalCAGUID             uint64
	LocalQKey               uint32
	LocalQPN                uint32 // 24 bits
	ResponderResources      uint8  // READs and atomics the sender takes at once
	LocalEECN               uint32 // 24 bits
	InitiatorDepth          uint8  // READs and atomics the sender wants to have outstanding
	RemoteEECN              uint32 // 24 bits
	RemoteCMResponseTimeout uint8  // 5 bits
	TransportServiceType    uint8  // 2 bits
	EndToEndFlowControl     bool
	StartingPSN             uint32 // 24 bits; of the receiver's requests, not of the sender's
	LocalCMResponseTimeout  uint8  // 5 bits
	RetryCount              uint8  // 3 bits
	PKey                    uint16
	PathMTU                 uint8 // 4 bits; a code
	RDCExists               bool
	RNRRetryCount           uint8 // 3 bits; of the receiver's requests
	MaxCMRetries            uint8 // 4 bits
	SRQ                     bool
	ExtendedTransportType   uint8 // 3 bits
	Primary                 PathRecord
	Alternate               PathRecord // all zero: none
	PrivateData             [92]byte
}

// PathRecord is a path of a REQ.
type PathRecord struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID [16]byte
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	LocalACKTimeout     uint8 // 5 bits
}

const pathSize = 44

func (p *PathRecord) decode(b []byte) {
	_ = b[pathSize-1]
	p.LocalLID = binary.BigEndian.Uint16(b[0:])
	p.RemoteLID = binary.BigEndian.Uint16(b[2:])
	copy(p.LocalGID[:], b[4:])
	copy(p.RemoteGID[:], b[20:])
	p.FlowLabel = u24(b[36:]) >> 4
	p.PacketRate = b[39] & 0x3f
	p.TrafficClass = b[40]
	p.HopLimit = b[41]
	p.SL = b[42] >> 4
	p.SubnetLocal = b[42]&0x08 != 0
	p.LocalACKTimeout = b[43] >> 3
}

func (p *PathRecord) encode(b []byte) {
	_ = b[pathSize-1]
	binary.BigEndian.PutUint16(b[0:], p.LocalLID)
	binary.BigEndian.PutUint16(b[2:], p.RemoteLID)
	copy(b[4:20], p.LocalGID[:])
	copy(b[20:36], p.RemoteGID[:])
	putU24(b[36:], p.FlowLabel<<4)
	b[39] = p.PacketRate & 0x3f
	b[40] = p.TrafficClass
	b[41] = p.HopLimit
	b[42] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[43] = p.LocalACKTimeout << 3
}

// Attr implements [Message].
func (*REQ) Attr() Attr { return AttrREQ }

func (m *REQ) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.VendorID = u24(b[5:])
	m.ServiceID = binary.BigEndian.Uint64(b[8:])
	m.LocalCAGUID = binary.BigEndian.Uint64(b[16:])
	m.LocalQKey = binary.BigEndian.Uint32(b[28:])
	m.LocalQPN = u24(b[32:])
	m.ResponderResources = b[35]
	m.LocalEECN = u24(b[36:])
	m.InitiatorDepth = b[39]
	m.RemoteEECN = u24(b[40:])
	m.RemoteCMResponseTimeout = b[43] >> 3
	m.TransportServiceType = b[43] >> 1 & 3
	m.EndToEndFlowControl = b[43]&1 != 0
	m.StartingPSN = u24(b[44:])
	m.LocalCMResponseTimeout = b[47] >> 3
	m.RetryCount = b[47] & 7
	m.PKey = binary.BigEndian.Uint16(b[48:])
	m.PathMTU = b[50] >> 4
	m.RDCExists = b[50]&8 != 0
	m.RNRRetryCount = b[50] & 7
	m.MaxCMRetries = b[51] >> 4
	m.SRQ = b[51]&8 != 0
	m.ExtendedTransportType = b[51] & 7
	m.Primary.decode(b[52:])
	m.Alternate.decode(b[52+pathSize:])
	copy(m.PrivateData[:], b[140:])
}

func (m *REQ) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	putU24(b[5:], m.VendorID)
	binary.BigEndian.PutUint64(b[8:], m.ServiceID)
	binary.BigEndian.PutUint64(b[16:], m.LocalCAGUID)
	binary.BigEndian.PutUint32(b[28:], m.LocalQKey)
	putU24(b[32:], m.LocalQPN)
	b[35] = m.ResponderResources
	putU24(b[36:], m.LocalEECN)
	b[39] = m.InitiatorDepth
	putU24(b[40:], m.RemoteEECN)
	b[43] = m.RemoteCMResponseTimeout<<3 | m.TransportServiceType&3<<1 | bit(m.EndToEndFlowControl, 0)
	putU24(b[44:], m.StartingPSN)
	b[47] = m.LocalCMResponseTimeout<<3 | m.RetryCount&7
	binary.BigEndian.PutUint16(b[48:], m.PKey)
	b[50] = m.PathMTU<<4 | bit(m.RDCExists, 3) | m.RNRRetryCount&7
	b[51] = m.MaxCMRetries<<4 | bit(m.SRQ, 3) | m.ExtendedTransportType&7
	m.Primary.encode(b[52:])
	m.Alternate.encode(b[52+pathSize:])
	copy(b[140:], m.PrivateData[:])
}
