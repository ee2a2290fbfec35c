package packettable

import (
	"encoding/binary"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// Requests.

func request(op wire.Opcode, psn int, data []byte) Packet {
	return Packet{Packet: wire.Packet{BTH: wire.BTH{Opcode: op}, Payload: data}, PSN: psn}
}

// Ask sets AckReq.
func (p Packet) Ask() Packet { p.AckReq = true; return p }

// to names memory, length bytes of it if that counts.
func (p Packet) to(at Target, length uint32) Packet {
	p.At, p.RETH.Length = at, length
	return p
}

func (p Packet) imm(v uint32) Packet { p.Imm = v; return p }

func (p Packet) edit(f func(b []byte) []byte) Packet { p.Edit = f; return p }

func send(op wire.Opcode, psn int, n int) Packet { return request(op, psn, Payload(psn, n)) }

// write is a packet of an RDMA WRITE to Main of n bytes, the message having all.
func write(op wire.Opcode, psn, n int, all uint32) Packet {
	return request(op, psn, Payload(psn, n)).to(Target{Region: Main}, all)
}

func read(psn int, at Target, n uint32) Packet {
	return request(wire.RCReadRequest, psn, nil).to(at, n).Ask()
}

func compareSwap(psn int, at Target, compare, swap uint64) Packet {
	p := request(wire.RCCompareSwap, psn, nil).to(at, 0).Ask()
	p.Atomic.Compare, p.Atomic.SwapAdd = compare, swap
	return p
}

func fetchAdd(psn int, at Target, add uint64) Packet {
	p := request(wire.RCFetchAdd, psn, nil).to(at, 0).Ask()
	p.Atomic.SwapAdd = add
	return p
}

// writeNothing is a WRITE of no bytes, which needs neither memory nor a receive.
func writeNothing(psn int) Packet { return request(wire.RCWriteOnly, psn, nil).Ask() }

func datagram(n int) Packet { return request(wire.UDSendOnly, 0, Payload(0, n)) }

// Payload is what a request carries, n bytes that tell the PSN, and that are not zero and not Memory.
func Payload(psn, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(0x81 + psn*16 + i*3)
	}
	return b
}

// Memory is what a region holds when a row begins: n bytes from off.
func Memory(off, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((off+i)*7 + (off+i)>>8)
	}
	return b
}

// largeMemory is what Large holds: zeros but for its beginning.
func largeMemory(n int) []byte { return append(Memory(0, RegionSize), make([]byte, n-RegionSize)...) }

// word is what memory holds as a number, which is in the byte order of its machine for atomics.
func word(off int) uint64 { return binary.NativeEndian.Uint64(Memory(off, 8)) }

func bytesOf(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// Answers.

func ack(psn int, msn uint32) Answer { return Answer{Op: wire.RCAck, PSN: psn, AETH: wire.ACK(msn)} }

func nak(syndrome uint8, psn int, msn uint32) Answer {
	return Answer{Op: wire.RCAck, PSN: psn, AETH: wire.NAK(syndrome, msn)}
}

func notReady(code uint8, psn int, msn uint32) Answer {
	return Answer{Op: wire.RCAck, PSN: psn, AETH: wire.RNRNAK(code, msn)}
}

const (
	seq   = wire.SyndromePSNSequence
	inv   = wire.SyndromeInvalidReq
	acc   = wire.SyndromeRemoteAccess
	remOp = wire.SyndromeRemoteOp
)

// reply is all that answers a READ.
func reply(psn int, msn uint32, data []byte) (as []Answer) {
	for i := 0; i == 0 || i*mtu < len(data); i++ {
		part := data[i*mtu : min((i+1)*mtu, len(data))]
		a := Answer{Op: wire.RCReadResponseMid, PSN: psn + i, Data: string(part)}
		first, last := i == 0, (i+1)*mtu >= len(data)
		switch {
		case first && last:
			a.Op = wire.RCReadResponseOnly
		case first:
			a.Op = wire.RCReadResponseFirst
		case last:
			a.Op = wire.RCReadResponseLast
		}
		if a.Op.HasAETH() {
			a.AETH = wire.ACK(msn)
		}
		as = append(as, a)
	}
	return as
}

func atomicAck(psn int, msn uint32, original uint64) Answer {
	return Answer{Op: wire.RCAtomicAck, PSN: psn, AETH: wire.ACK(msn), Original: original}
}

// steps makes answers of lists of them, one for each step.
func steps(as ...[]Answer) [][]Answer { return as }

func one(as ...Answer) []Answer { return as }

// Outcomes.

const recvWithImm = verbs.WCRecvWithImm

func received(id uint64, n int) WC { return WC{ID: id, Op: verbs.WCRecv, Len: uint32(n)} }

func flushed(id uint64) WC { return WC{ID: id, Status: verbs.WRFlushErr} }

// failed is a receive that a message has met which was at fault.
func failed(id uint64, s verbs.Status) WC { return WC{ID: id, Status: s} }

// refused is the outcome of a fault that ends the connection, when the packet with this PSN comes.
func refused(syndrome uint8, psn int, msn uint32, wcs ...WC) Outcome {
	return Outcome{Answers: steps(one(nak(syndrome, psn, msn))), WCs: wcs, Dead: true, Next: psn}
}

// fine is the outcome of a single step.
func fine(next int, msn uint32, as ...Answer) Outcome {
	return Outcome{Answers: steps(as), Next: next, MSN: msn}
}

// with adds completions.
func (o Outcome) with(wcs ...WC) Outcome { o.WCs = wcs; return o }

// holds adds what memory holds.
func (o Outcome) holds(m ...Mem) Outcome { o.Mem = m; return o }

func inMain(off int, data []byte) Mem { return Mem{Region: Main, Off: off, Data: data} }

func inRecv(i, off int, data []byte) Mem { return Mem{Recv: i, Off: off, Data: data} }

func linux(why string, o Outcome) *Deviation { return &Deviation{Outcome: o, Why: why} }

// panics is for what the kernel does not survive.
func panics(why string) *Deviation { return &Deviation{Why: why, Panic: true} }

// open says that a message has begun and not ended.
func (o Outcome) open() Outcome { o.Open = true; return o }

// answering replaces the answers.
func (o Outcome) answering(as ...[]Answer) Outcome { o.Answers = as; return o }

// cat is one list of several.
func cat[T any](lists ...[]T) (all []T) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
