// Package wire is the RoCEv2 packet: headers from the BTH on, and the invariant
// CRC over them and the IP and UDP headers before (IBTA 9 and annex A17).
//
// Nothing in it allocates, and nothing keeps what it was given.
package wire

import "encoding/binary"

// DecodeError says why a packet is none.
type DecodeError uint8

const (
	ErrShort   DecodeError = iota + 1 // shorter than its headers
	ErrLength                         // length not a multiple of 4
	ErrOpcode                         // opcode not known
	ErrVersion                        // transport version not 0
	ErrPad                            // more pad than payload
	ErrPayload                        // payload on an opcode that has none
)

func (e DecodeError) Error() string {
	switch e {
	case ErrShort:
		return "wire: packet shorter than its headers"
	case ErrLength:
		return "wire: packet length not a multiple of 4"
	case ErrOpcode:
		return "wire: unknown opcode"
	case ErrVersion:
		return "wire: unknown transport version"
	case ErrPad:
		return "wire: pad count exceeds payload"
	case ErrPayload:
		return "wire: payload where there is none"
	}
	return "wire: bad packet"
}

// Packet is a decoded packet. Only the headers that its opcode has are meaningful;
// the others are zero after Decode.
type Packet struct {
	BTH
	DETH
	RETH RETH
	AETH
	Atomic    AtomicETH
	AtomicAck AtomicAckETH
	Imm       uint32
	InvKey    uint32
	FETH

	// Payload is without pad. After Decode it aliases the packet's bytes.
	Payload []byte
}

// Decode reads b, which is BTH to pad without ICRC. After an error the contents
// of p are undefined.
func (p *Packet) Decode(b []byte) error {
	if len(b) < BTHLen {
		return ErrShort
	}
	if len(b)&3 != 0 {
		return ErrLength
	}
	*p = Packet{}
	p.BTH.decode(b)
	if p.TVer != 0 {
		return ErrVersion
	}
	op := &ops[p.Opcode]
	if op.service == ServiceNone {
		return ErrOpcode
	}
	n := int(op.hdrLen)
	if len(b) < n {
		return ErrShort
	}
	end := len(b) - int(p.Pad)
	if end < n {
		return ErrPad
	}
	if !op.payload && len(b) != n {
		return ErrPayload
	}
	if op.ext != 0 {
		p.decodeExt(op.ext, b[BTHLen:n])
	}
	p.Payload = b[n:end:end]
	return nil
}

// decodeExt reads the extension headers in the order of the wire, which is that
// of the bits of Extensions.
func (p *Packet) decodeExt(ext Extensions, b []byte) {
	if ext&ExtDETH != 0 {
		p.DETH.decode(b)
		b = b[DETHLen:]
	}
	if ext&ExtFETH != 0 {
		p.FETH = FETH(binary.BigEndian.Uint32(b))
		b = b[FETHLen:]
	}
	if ext&ExtRETH != 0 {
		p.RETH.decode(b)
		b = b[RETHLen:]
	}
	if ext&ExtAETH != 0 {
		p.AETH.decode(b)
		b = b[AETHLen:]
	}
	if ext&ExtAtomic != 0 {
		p.Atomic.decode(b)
		b = b[AtomicETHLen:]
	}
	if ext&ExtAtomicAck != 0 {
		p.AtomicAck.Original = binary.BigEndian.Uint64(b)
		b = b[AtomicAckETHLen:]
	}
	if ext&ExtImm != 0 {
		p.Imm = binary.BigEndian.Uint32(b)
		b = b[ImmLen:]
	}
	if ext&ExtIETH != 0 {
		p.InvKey = binary.BigEndian.Uint32(b)
	}
}

// HeaderLen returns the length of the BTH and of the extension headers that the opcode has.
func (p *Packet) HeaderLen() int { return p.Opcode.HeaderLen() }

// PutHeaders encodes the BTH and the extension headers into b, which has at
// least HeaderLen bytes, and returns their length. Pad is the caller's to set.
func (p *Packet) PutHeaders(b []byte) int {
	op := &ops[p.Opcode]
	n := int(op.hdrLen)
	b = b[:n]
	p.BTH.Put(b)
	if op.ext != 0 {
		p.putExt(op.ext, b[BTHLen:])
	}
	return n
}

func (p *Packet) putExt(ext Extensions, b []byte) {
	if ext&ExtDETH != 0 {
		p.DETH.put(b)
		b = b[DETHLen:]
	}
	if ext&ExtFETH != 0 {
		binary.BigEndian.PutUint32(b, uint32(p.FETH))
		b = b[FETHLen:]
	}
	if ext&ExtRETH != 0 {
		p.RETH.put(b)
		b = b[RETHLen:]
	}
	if ext&ExtAETH != 0 {
		p.AETH.put(b)
		b = b[AETHLen:]
	}
	if ext&ExtAtomic != 0 {
		p.Atomic.put(b)
		b = b[AtomicETHLen:]
	}
	if ext&ExtAtomicAck != 0 {
		binary.BigEndian.PutUint64(b, p.AtomicAck.Original)
		b = b[AtomicAckETHLen:]
	}
	if ext&ExtImm != 0 {
		binary.BigEndian.PutUint32(b, p.Imm)
		b = b[ImmLen:]
	}
	if ext&ExtIETH != 0 {
		binary.BigEndian.PutUint32(b, p.InvKey)
	}
}

// PadFor returns the pad count of an n byte payload.
func PadFor(n int) uint8 { return uint8(-n) & 3 }
