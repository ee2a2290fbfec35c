package ibcm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// The queue pair and key that datagrams of the general services travel on.
const (
	GSIQPN  = 1
	GSIQKey = 0x80010000
)

const (
	// MADSize is the size of every management datagram.
	MADSize = 256

	headerSize = 24
	dataSize   = MADSize - headerSize

	baseVersion  = 1
	classCM      = 0x07
	classVersion = 2
	methodSend   = 0x03
)

// Attr is the attribute ID of a management datagram: which message it is.
type Attr uint16

const (
	AttrREQ     Attr = 0x10
	AttrMRA     Attr = 0x11
	AttrREJ     Attr = 0x12
	AttrREP     Attr = 0x13
	AttrRTU     Attr = 0x14
	AttrDREQ    Attr = 0x15
	AttrDREP    Attr = 0x16
	AttrSIDRREQ Attr = 0x17
	AttrSIDRREP Attr = 0x18
	AttrLAP     Attr = 0x19
	AttrAPR     Attr = 0x1a
)

var attrNames = map[Attr]string{
	AttrREQ: "REQ", AttrMRA: "MRA", AttrREJ: "REJ", AttrREP: "REP", AttrRTU: "RTU", AttrDREQ: "DREQ",
	AttrDREP: "DREP", AttrSIDRREQ: "SIDR_REQ", AttrSIDRREP: "SIDR_REP", AttrLAP: "LAP", AttrAPR: "APR",
}

func (a Attr) String() string {
	if n, ok := attrNames[a]; ok {
		return n
	}
	return "Attr(0x" + strconv.FormatUint(uint64(a), 16) + ")"
}

// Header is the header of a management datagram (IBTA 13.4.3).
type Header struct {
	BaseVersion       uint8
	ManagementClass   uint8
	ClassVersion      uint8
	Method            uint8
	Status            uint16
	ClassSpecific     uint16
	TransactionID     uint64 // chosen by who sends REQ, DREQ or SIDR_REQ, echoed in what follows
	AttributeID       Attr
	AttributeModifier uint32
}

func (h *Header) decode(b []byte) {
	_ = b[headerSize-1]
	h.BaseVersion, h.ManagementClass, h.ClassVersion, h.Method = b[0], b[1], b[2], b[3]
	h.Status = binary.BigEndian.Uint16(b[4:])
	h.ClassSpecific = binary.BigEndian.Uint16(b[6:])
	h.TransactionID = binary.BigEndian.Uint64(b[8:])
	h.AttributeID = Attr(binary.BigEndian.Uint16(b[16:]))
	h.AttributeModifier = binary.BigEndian.Uint32(b[20:])
}

func (h *Header) encode(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1], b[2], b[3] = h.BaseVersion, h.ManagementClass, h.ClassVersion, h.Method
	binary.BigEndian.PutUint16(b[4:], h.Status)
	binary.BigEndian.PutUint16(b[6:], h.ClassSpecific)
	binary.BigEndian.PutUint64(b[8:], h.TransactionID)
	binary.BigEndian.PutUint16(b[16:], uint16(h.AttributeID))
	binary.BigEndian.PutUint16(b[18:], 0)
	binary.BigEndian.PutUint32(b[20:], h.AttributeModifier)
}

// Message is the body of a datagram of the communication manager: one of
// [REQ], [MRA], [REJ], [REP], [RTU], [DREQ], [DREP], [SIDRREQ] and [SIDRREP].
type Message interface {
	Attr() Attr
	decode(b []byte) // b has dataSize bytes
	encode(b []byte) // b has dataSize bytes, all zero
}

var (
	// ErrMalformed is the error of decoding what is no datagram of the
	// communication manager.
	ErrMalformed = errors.New("ibcm: malformed MAD")
	// ErrIgnored is the error of decoding a message that is well known and
	// without effect here: the alternate paths of LAP and APR.
	ErrIgnored = errors.New("ibcm: message not used")
)

// Decode reads a datagram. Private data of what it returns is copied.
func Decode(mad []byte) (Header, Message, error) {
	var h Header
	if len(mad) != MADSize {
		return h, nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(mad))
	}
	h.decode(mad)
	if h.BaseVersion != baseVersion || h.ManagementClass != classCM || h.ClassVersion != classVersion {
		return h, nil, fmt.Errorf("%w: base version %d, class %#x version %d", ErrMalformed,
			h.BaseVersion, h.ManagementClass, h.ClassVersion)
	}
	if h.Method != methodSend {
		return h, nil, fmt.Errorf("%w: method %#x", ErrMalformed, h.Method)
	}
	var m Message
	switch h.AttributeID {
	case AttrREQ:
		m = new(REQ)
	case AttrMRA:
		m = new(MRA)
	case AttrREJ:
		m = new(REJ)
	case AttrREP:
		m = new(REP)
	case AttrRTU:
		m = new(RTU)
	case AttrDREQ:
		m = new(DREQ)
	case AttrDREP:
		m = new(DREP)
	case AttrSIDRREQ:
		m = new(SIDRREQ)
	case AttrSIDRREP:
		m = new(SIDRREP)
	case AttrLAP, AttrAPR:
		return h, nil, ErrIgnored
	default:
		return h, nil, fmt.Errorf("%w: attribute %#x", ErrMalformed, uint16(h.AttributeID))
	}
	m.decode(mad[headerSize:])
	return h, m, nil
}

// NewHeader returns the header that m travels under.
func NewHeader(tid uint64, m Message) Header {
	return Header{
		BaseVersion: baseVersion, ManagementClass: classCM, ClassVersion: classVersion,
		Method: methodSend, TransactionID: tid, AttributeID: m.Attr(),
	}
}

// Encode writes a datagram. Fields wider than their place on the wire lose
// their high bits.
func Encode(h Header, m Message) *[MADSize]byte {
	b := new([MADSize]byte)
	h.encode(b[:])
	m.encode(b[headerSize:])
	return b
}

func u24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func putU24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

func bit(v bool, shift uint) byte {
	if v {
		return 1 << shift
	}
	return 0
}
