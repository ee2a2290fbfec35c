package wire

import "strconv"

// Opcode is byte 0 of the BTH: transport service in the upper three bits,
// operation in the others (IBTA 9.2.1).
type Opcode uint8

// Opcodes of the reliable connection service.
const (
	RCSendFirst         Opcode = 0x00
	RCSendMiddle        Opcode = 0x01
	RCSendLast          Opcode = 0x02
	RCSendLastImm       Opcode = 0x03
	RCSendOnly          Opcode = 0x04
	RCSendOnlyImm       Opcode = 0x05
	RCWriteFirst        Opcode = 0x06
	RCWriteMiddle       Opcode = 0x07
	RCWriteLast         Opcode = 0x08
	RCWriteLastImm      Opcode = 0x09
	RCWriteOnly         Opcode = 0x0A
	RCWriteOnlyImm      Opcode = 0x0B
	RCReadRequest       Opcode = 0x0C
	RCReadResponseFirst Opcode = 0x0D
	RCReadResponseMid   Opcode = 0x0E
	RCReadResponseLast  Opcode = 0x0F
	RCReadResponseOnly  Opcode = 0x10
	RCAck               Opcode = 0x11
	RCAtomicAck         Opcode = 0x12
	RCCompareSwap       Opcode = 0x13
	RCFetchAdd          Opcode = 0x14
	RCSendLastInv       Opcode = 0x16
	RCSendOnlyInv       Opcode = 0x17
	RCFlush             Opcode = 0x1C
	RCAtomicWrite       Opcode = 0x1D
)

// Opcodes of the unreliable datagram service, and the congestion notification
// packet of RoCEv2 (annex A17).
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// Service is the transport service an opcode belongs to.
type Service uint8

const (
	ServiceNone Service = iota // opcode not known
	ServiceRC
	ServiceUD
	ServiceCNP
)

// Position is a packet's place in its message.
type Position uint8

const (
	PosOnly Position = iota
	PosFirst
	PosMiddle
	PosLast
)

// Extensions is a set of extension headers.
type Extensions uint8

const (
	ExtDETH Extensions = 1 << iota
	ExtFETH
	ExtRETH
	ExtAETH
	ExtAtomic
	ExtAtomicAck
	ExtImm
	ExtIETH
)

// kind is what a packet is about.
type kind uint8

const (
	kindNone kind = iota
	kindSend
	kindWrite
	kindReadRequest
	kindReadResponse
	kindAck
	kindAtomicAck
	kindAtomic
	kindFlush
	kindAtomicWrite
	kindCNP
)

type opInfo struct {
	name    string
	service Service
	kind    kind
	pos     Position
	ext     Extensions
	payload bool
	hdrLen  uint8 // BTH and extension headers; set by init
}

var ops = [256]opInfo{
	RCSendFirst:         {"RC SEND First", ServiceRC, kindSend, PosFirst, 0, true, 0},
	RCSendMiddle:        {"RC SEND Middle", ServiceRC, kindSend, PosMiddle, 0, true, 0},
	RCSendLast:          {"RC SEND Last", ServiceRC, kindSend, PosLast, 0, true, 0},
	RCSendLastImm:       {"RC SEND Last with Immediate", ServiceRC, kindSend, PosLast, ExtImm, true, 0},
	RCSendOnly:          {"RC SEND Only", ServiceRC, kindSend, PosOnly, 0, true, 0},
	RCSendOnlyImm:       {"RC SEND Only with Immediate", ServiceRC, kindSend, PosOnly, ExtImm, true, 0},
	RCWriteFirst:        {"RC RDMA WRITE First", ServiceRC, kindWrite, PosFirst, ExtRETH, true, 0},
	RCWriteMiddle:       {"RC RDMA WRITE Middle", ServiceRC, kindWrite, PosMiddle, 0, true, 0},
	RCWriteLast:         {"RC RDMA WRITE Last", ServiceRC, kindWrite, PosLast, 0, true, 0},
	RCWriteLastImm:      {"RC RDMA WRITE Last with Immediate", ServiceRC, kindWrite, PosLast, ExtImm, true, 0},
	RCWriteOnly:         {"RC RDMA WRITE Only", ServiceRC, kindWrite, PosOnly, ExtRETH, true, 0},
	RCWriteOnlyImm:      {"RC RDMA WRITE Only with Immediate", ServiceRC, kindWrite, PosOnly, ExtRETH | ExtImm, true, 0},
	RCReadRequest:       {"RC RDMA READ Request", ServiceRC, kindReadRequest, PosOnly, ExtRETH, false, 0},
	RCReadResponseFirst: {"RC RDMA READ Response First", ServiceRC, kindReadResponse, PosFirst, ExtAETH, true, 0},
	RCReadResponseMid:   {"RC RDMA READ Response Middle", ServiceRC, kindReadResponse, PosMiddle, 0, true, 0},
	RCReadResponseLast:  {"RC RDMA READ Response Last", ServiceRC, kindReadResponse, PosLast, ExtAETH, true, 0},
	RCReadResponseOnly:  {"RC RDMA READ Response Only", ServiceRC, kindReadResponse, PosOnly, ExtAETH, true, 0},
	RCAck:               {"RC Acknowledge", ServiceRC, kindAck, PosOnly, ExtAETH, false, 0},
	RCAtomicAck:         {"RC ATOMIC Acknowledge", ServiceRC, kindAtomicAck, PosOnly, ExtAETH | ExtAtomicAck, false, 0},
	RCCompareSwap:       {"RC CmpSwap", ServiceRC, kindAtomic, PosOnly, ExtAtomic, false, 0},
	RCFetchAdd:          {"RC FetchAdd", ServiceRC, kindAtomic, PosOnly, ExtAtomic, false, 0},
	RCSendLastInv:       {"RC SEND Last with Invalidate", ServiceRC, kindSend, PosLast, ExtIETH, true, 0},
	RCSendOnlyInv:       {"RC SEND Only with Invalidate", ServiceRC, kindSend, PosOnly, ExtIETH, true, 0},
	RCFlush:             {"RC FLUSH", ServiceRC, kindFlush, PosOnly, ExtFETH | ExtRETH, false, 0},
	RCAtomicWrite:       {"RC ATOMIC WRITE", ServiceRC, kindAtomicWrite, PosOnly, ExtRETH, true, 0},
	UDSendOnly:          {"UD SEND Only", ServiceUD, kindSend, PosOnly, ExtDETH, true, 0},
	UDSendOnlyImm:       {"UD SEND Only with Immediate", ServiceUD, kindSend, PosOnly, ExtDETH | ExtImm, true, 0},
	// The 16 reserved bytes of a CNP are its payload.
	CNP: {"CNP", ServiceCNP, kindCNP, PosOnly, 0, true, 0},
}

func init() {
	sizes := [8]uint8{DETHLen, FETHLen, RETHLen, AETHLen, AtomicETHLen, AtomicAckETHLen, ImmLen, IETHLen}
	for i := range ops {
		n := uint8(BTHLen)
		for bit, size := range sizes {
			if ops[i].ext&(1<<bit) != 0 {
				n += size
			}
		}
		ops[i].hdrLen = n
	}
}

// Known tells whether the opcode is one of those above.
func (o Opcode) Known() bool { return ops[o].service != ServiceNone }

// Service returns the opcode's transport service.
func (o Opcode) Service() Service { return ops[o].service }

// Position returns the packet's place in its message.
func (o Opcode) Position() Position { return ops[o].pos }

// Extensions returns the headers that follow the BTH.
func (o Opcode) Extensions() Extensions { return ops[o].ext }

// HeaderLen returns the length of the BTH and the extension headers.
func (o Opcode) HeaderLen() int { return int(ops[o].hdrLen) }

// HasPayload tells whether the packet may carry payload.
func (o Opcode) HasPayload() bool { return ops[o].payload }

// Begins tells whether the packet is the first of its message: a First or an Only.
func (o Opcode) Begins() bool { p := ops[o].pos; return p == PosOnly || p == PosFirst }

// Ends tells whether the packet is the last of its message: a Last or an Only.
func (o Opcode) Ends() bool { p := ops[o].pos; return p == PosOnly || p == PosLast }

// IsFirst, IsMiddle, IsLast and IsOnly are about the opcode's name: a packet
// that is the whole message is Only, and neither First nor Last.
func (o Opcode) IsFirst() bool  { return ops[o].pos == PosFirst }
func (o Opcode) IsMiddle() bool { return ops[o].pos == PosMiddle }
func (o Opcode) IsLast() bool   { return ops[o].pos == PosLast }
func (o Opcode) IsOnly() bool   { return ops[o].pos == PosOnly }

// IsRequest tells whether a requester sends the packet: everything but
// responses and CNPs.
func (o Opcode) IsRequest() bool {
	switch ops[o].kind {
	case kindSend, kindWrite, kindReadRequest, kindAtomic, kindFlush, kindAtomicWrite:
		return true
	}
	return false
}

// IsResponse tells whether an RC responder sends the packet.
func (o Opcode) IsResponse() bool {
	switch ops[o].kind {
	case kindReadResponse, kindAck, kindAtomicAck:
		return true
	}
	return false
}

// IsSend tells whether the packet is of a SEND, of either service.
func (o Opcode) IsSend() bool { return ops[o].kind == kindSend }

// IsWrite tells whether the packet is of an RDMA WRITE (not an ATOMIC WRITE).
func (o Opcode) IsWrite() bool { return ops[o].kind == kindWrite }

// IsReadResponse tells whether the packet is of an RDMA READ response.
func (o Opcode) IsReadResponse() bool { return ops[o].kind == kindReadResponse }

// IsAtomic tells whether the packet is a CmpSwap or a FetchAdd.
func (o Opcode) IsAtomic() bool { return ops[o].kind == kindAtomic }

// HasImm tells whether the packet carries immediate data.
func (o Opcode) HasImm() bool { return ops[o].ext&ExtImm != 0 }

// HasInv tells whether the packet carries a key to invalidate.
func (o Opcode) HasInv() bool { return ops[o].ext&ExtIETH != 0 }

// HasRETH tells whether the packet carries an RDMA extended header.
func (o Opcode) HasRETH() bool { return ops[o].ext&ExtRETH != 0 }

// HasAETH tells whether the packet carries an ACK extended header.
func (o Opcode) HasAETH() bool { return ops[o].ext&ExtAETH != 0 }

func (o Opcode) String() string {
	if n := ops[o].name; n != "" {
		return n
	}
	return "opcode 0x" + strconv.FormatUint(uint64(o), 16)
}
