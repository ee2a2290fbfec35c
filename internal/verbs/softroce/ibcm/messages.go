package ibcm

import "encoding/binary"

// Which message an MRA or a REJ is about.
const (
	AboutREQ   = 0
	AboutREP   = 1
	AboutOther = 2 // MRA: LAP
)

// MRA asks the sender of a message to be patient (IBTA 12.6.6).
type MRA struct {
	LocalCommID    uint32
	RemoteCommID   uint32
	MessageMRAed   uint8 // 2 bits
	ServiceTimeout uint8 // 5 bits
	PrivateData    [222]byte
}

// Attr implements [Message].
func (*MRA) Attr() Attr { return AttrMRA }

func (m *MRA) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	m.MessageMRAed = b[8] >> 6
	m.ServiceTimeout = b[9] >> 3
	copy(m.PrivateData[:], b[10:])
}

func (m *MRA) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	b[8] = m.MessageMRAed << 6
	b[9] = m.ServiceTimeout << 3
	copy(b[10:], m.PrivateData[:])
}

// REJ refuses or abandons a connection (IBTA 12.6.7).
type REJ struct {
	LocalCommID        uint32 // 0: none was assigned
	RemoteCommID       uint32
	MessageRejected    uint8 // 2 bits
	RejectedInfoLength uint8 // 7 bits; of ARI
	Reason             uint16
	ARI                [72]byte // additional reject information
	PrivateData        [148]byte
}

// Attr implements [Message].
func (*REJ) Attr() Attr { return AttrREJ }

func (m *REJ) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	m.MessageRejected = b[8] >> 6
	m.RejectedInfoLength = b[9] >> 1
	m.Reason = binary.BigEndian.Uint16(b[10:])
	copy(m.ARI[:], b[12:])
	copy(m.PrivateData[:], b[84:])
}

func (m *REJ) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	b[8] = m.MessageRejected << 6
	b[9] = m.RejectedInfoLength << 1
	binary.BigEndian.PutUint16(b[10:], m.Reason)
	copy(b[12:], m.ARI[:])
	copy(b[84:], m.PrivateData[:])
}

// REP accepts a connection (IBTA 12.6.8).
type REP struct {
	LocalCommID         uint32
	RemoteCommID        uint32
	LocalQKey           uint32
	LocalQPN            uint32 // 24 bits
	VendorID            uint32 // 24 bits
	LocalEECN           uint32 // 24 bits
	StartingPSN         uint32 // 24 bits; of the receiver's requests
	ResponderResources  uint8
	InitiatorDepth      uint8
	TargetACKDelay      uint8 // 5 bits
	FailoverAccepted    uint8 // 2 bits
	EndToEndFlowControl bool
	RNRRetryCount       uint8 // 3 bits; of the receiver's requests
	SRQ                 bool
	LocalCAGUID         uint64
	PrivateData         [196]byte
}

// Attr implements [Message].
func (*REP) Attr() Attr { return AttrREP }

func (m *REP) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	m.LocalQKey = binary.BigEndian.Uint32(b[8:])
	m.LocalQPN = u24(b[12:])
	m.VendorID = uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23])
	m.LocalEECN = u24(b[16:])
	m.StartingPSN = u24(b[20:])
	m.ResponderResources = b[24]
	m.InitiatorDepth = b[25]
	m.TargetACKDelay = b[26] >> 3
	m.FailoverAccepted = b[26] >> 1 & 3
	m.EndToEndFlowControl = b[26]&1 != 0
	m.RNRRetryCount = b[27] >> 5
	m.SRQ = b[27]&0x10 != 0
	m.LocalCAGUID = binary.BigEndian.Uint64(b[28:])
	copy(m.PrivateData[:], b[36:])
}

func (m *REP) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	binary.BigEndian.PutUint32(b[8:], m.LocalQKey)
	putU24(b[12:], m.LocalQPN)
	putU24(b[16:], m.LocalEECN)
	putU24(b[20:], m.StartingPSN)
	b[15], b[19], b[23] = byte(m.VendorID>>16), byte(m.VendorID>>8), byte(m.VendorID)
	b[24] = m.ResponderResources
	b[25] = m.InitiatorDepth
	b[26] = m.TargetACKDelay<<3 | m.FailoverAccepted&3<<1 | bit(m.EndToEndFlowControl, 0)
	b[27] = m.RNRRetryCount<<5 | bit(m.SRQ, 4)
	binary.BigEndian.PutUint64(b[28:], m.LocalCAGUID)
	copy(b[36:], m.PrivateData[:])
}

// RTU tells that the active side is ready to use the connection (IBTA 12.6.9).
type RTU struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  [224]byte
}

// Attr implements [Message].
func (*RTU) Attr() Attr { return AttrRTU }

func (m *RTU) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	copy(m.PrivateData[:], b[8:])
}

func (m *RTU) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	copy(b[8:], m.PrivateData[:])
}

// DREQ ends a connection (IBTA 12.6.10).
type DREQ struct {
	LocalCommID  uint32
	RemoteCommID uint32
	RemoteQPN    uint32 // 24 bits; the receiver's
	PrivateData  [220]byte
}

// Attr implements [Message].
func (*DREQ) Attr() Attr { return AttrDREQ }

func (m *DREQ) decode(b []byte) {
	_ = b[dataSize-1]
	m.LocalCommID = binary.BigEndian.Uint32(b[0:])
	m.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	m.RemoteQPN = u24(b[8:])
	copy(m.PrivateData[:], b[12:])
}

func (m *DREQ) encode(b []byte) {
	_ = b[dataSize-1]
	binary.BigEndian.PutUint32(b[0:], m.LocalCommID)
	binary.BigEndian.PutUint32(b[4:], m.RemoteCommID)
	putU24(b[8:], m.RemoteQPN)
	copy(b[12:], m.PrivateData[:])
}

// DREP answers a DREQ (IBTA 12.6.11).
type DREP struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  [224]byte
}

// Attr implements [Message].
func (*DREP) Attr() Attr { return AttrDREP }

func (m *DREP) decode(b []byte) { (*RTU)(m).decode(b) }

func (m *DREP) encode(b []byte) { (*RTU)(m).encode(b) }
