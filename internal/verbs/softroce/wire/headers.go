package wire

import (
	"encoding/binary"
)

// Header lengths in bytes (IBTA 9.2 to 9.3).
const (
	BTHLen          = 12
	DETHLen         = 8
	RETHLen         = 16
	AETHLen         = 4
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	ImmLen          = 4
	IETHLen         = 4
	FETHLen         = 4
	ICRCLen         = 4

	// MaxHeaderLen bounds BTH and extension headers of every opcode.
	MaxHeaderLen = BTHLen + AtomicETHLen
)

// Numbers with a meaning of their own.
const (
	DefaultPKey  uint16 = 0xFFFF
	QPNGSI       uint32 = 1
	QPNMulticast uint32 = 0xFFFFFF
	QKeyGSI      uint32 = 0x80010000
	QKeyRDMACM   uint32 = 0x01234567 // RDMA_UDP_QKEY

	mask24 = 1<<24 - 1
)

// BTH is the base transport header.
type BTH struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       uint8 // bytes after the payload, 0 to 3
	TVer      uint8
	PKey      uint16
	FECN      bool
	BECN      bool
	Reserved6 uint8 // low six bits of byte 4
	DestQP    uint32
	AckReq    bool
	Reserved7 uint8 // low seven bits of byte 8
	PSN       uint32
}

func (h *BTH) decode(b []byte) {
	_ = b[BTHLen-1]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&0x80 != 0
	h.MigReq = b[1]&0x40 != 0
	h.Pad = b[1] >> 4 & 3
	h.TVer = b[1] & 15
	h.PKey = binary.BigEndian.Uint16(b[2:])
	q := binary.BigEndian.Uint32(b[4:])
	h.FECN = q&(1<<31) != 0
	h.BECN = q&(1<<30) != 0
	h.Reserved6 = uint8(q>>24) & 0x3F
	h.DestQP = q & mask24
	s := binary.BigEndian.Uint32(b[8:])
	h.AckReq = s&(1<<31) != 0
	h.Reserved7 = uint8(s>>24) & 0x7F
	h.PSN = s & mask24
}

// Put encodes the header into the first BTHLen bytes of b.
func (h *BTH) Put(b []byte) {
	_ = b[BTHLen-1]
	b[0] = byte(h.Opcode)
	b[1] = bit(h.Solicited)<<7 | bit(h.MigReq)<<6 | h.Pad&3<<4 | h.TVer&15
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	b[4] = bit(h.FECN)<<7 | bit(h.BECN)<<6 | h.Reserved6&0x3F
	put24(b[5:], h.DestQP)
	b[8] = bit(h.AckReq)<<7 | h.Reserved7&0x7F
	put24(b[9:], h.PSN)
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// DETH is the datagram extended header.
type DETH struct {
	QKey     uint32
	Reserved uint8
	SrcQP    uint32
}

func (h *DETH) decode(b []byte) {
	h.QKey = binary.BigEndian.Uint32(b)
	h.Reserved = b[4]
	h.SrcQP = binary.BigEndian.Uint32(b[4:]) & mask24
}

func (h *DETH) put(b []byte) {
	binary.BigEndian.PutUint32(b, h.QKey)
	b[4] = h.Reserved
	put24(b[5:], h.SrcQP)
}

// RETH is the RDMA extended header. Length is that of the whole message.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32
}

func (h *RETH) decode(b []byte) {
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.Length = binary.BigEndian.Uint32(b[12:])
}

func (h *RETH) put(b []byte) {
	binary.BigEndian.PutUint64(b, h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint32(b[12:], h.Length)
}

// AtomicETH is the extended header of CmpSwap and FetchAdd.
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

func (h *AtomicETH) decode(b []byte) {
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.SwapAdd = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
}

func (h *AtomicETH) put(b []byte) {
	binary.BigEndian.PutUint64(b, h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint64(b[12:], h.SwapAdd)
	binary.BigEndian.PutUint64(b[20:], h.Compare)
}

// AtomicAckETH carries the value the remote word had before.
type AtomicAckETH struct {
	Original uint64
}

// FETH is the extended header of FLUSH (IBTA 1.5): the word as it is on the wire.
type FETH uint32

// Placement types and selectivity levels of FLUSH.
const (
	PlacementGlobal     = 1 << 0
	PlacementPersistent = 1 << 1

	FlushRange = 0
	FlushMR    = 1
)

// NewFETH builds a FETH of placement types or-ed together and a selectivity level.
func NewFETH(placement, level uint8) FETH { return FETH(placement&15) | FETH(level&3)<<4 }

// Placement returns the placement types.
func (f FETH) Placement() uint8 { return uint8(f) & 15 }

// Level returns the selectivity level.
func (f FETH) Level() uint8 { return uint8(f) >> 4 & 3 }

// AETH is the ACK extended header.
type AETH struct {
	Syndrome uint8
	MSN      uint32
}

func (h *AETH) decode(b []byte) {
	h.Syndrome = b[0]
	h.MSN = binary.BigEndian.Uint32(b) & mask24
}

func (h *AETH) put(b []byte) {
	b[0] = h.Syndrome
	put24(b[1:], h.MSN)
}

// Syndromes (IBTA 9.7.5.2).
const (
	SyndromeACK          uint8 = 0x1F // end-to-end credits not used
	SyndromeRNR          uint8 = 0x20 // or-ed with a timer code
	SyndromePSNSequence  uint8 = 0x60
	SyndromeInvalidReq   uint8 = 0x61
	SyndromeRemoteAccess uint8 = 0x62
	SyndromeRemoteOp     uint8 = 0x63
	SyndromeInvalidRD    uint8 = 0x64
)

// AckKind is what an AETH says.
type AckKind uint8

const (
	KindACK AckKind = iota
	KindRNR
	KindReserved
	KindNAK
)

// ACK returns the AETH of a positive acknowledgement, credits not used.
func ACK(msn uint32) AETH { return AETH{SyndromeACK, msn & mask24} }

// RNRNAK returns the AETH of a "receiver not ready" with timer code code.
func RNRNAK(code uint8, msn uint32) AETH { return AETH{SyndromeRNR | code&31, msn & mask24} }

// NAK returns the AETH of a negative acknowledgement, of one of the syndromes 0x60 and up.
func NAK(syndrome uint8, msn uint32) AETH { return AETH{syndrome, msn & mask24} }

// Kind returns what the AETH says. Bit 7 of a syndrome is reserved; set, it makes all of it so.
func (h AETH) Kind() AckKind {
	if h.Syndrome&0x80 != 0 {
		return KindReserved
	}
	return AckKind(h.Syndrome >> 5)
}

// Code returns the lower five bits of the syndrome: a credit count code, an RNR
// timer code or a NAK code.
func (h AETH) Code() uint8 { return h.Syndrome & 31 }
