package packettable

import (
	"fmt"
	"math"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// way is a way to reach memory.
type way struct {
	name string
	n    int // bytes
	make func(at Target) Packet
}

func ways() []way {
	return []way{
		{"RDMA WRITE Only", 1, func(at Target) Packet { return write(wire.RCWriteOnly, 0, 1, 1).to(at, 1).Ask() }},
		{"RDMA WRITE First", 2 * mtu, func(at Target) Packet { return write(wire.RCWriteFirst, 0, mtu, 0).to(at, 2*mtu).Ask() }},
		{"RDMA WRITE Only with Immediate", 4, func(at Target) Packet { return write(wire.RCWriteOnlyImm, 0, 4, 4).to(at, 4).Ask() }},
		{"RDMA READ", 1, func(at Target) Packet { return read(0, at, 1) }},
		{"RDMA READ of two packets", 2 * mtu, func(at Target) Packet { return read(0, at, 2*mtu) }},
		{"CmpSwap", 8, func(at Target) Packet { return compareSwap(0, at, word(0), 1) }},
		{"FetchAdd", 8, func(at Target) Packet { return fetchAdd(0, at, 1) }},
	}
}

// accessRows are requests for memory that is not the peer's (IBTA 9.7.4.1.5), or that it may not ask so for.
func accessRows() []Row {
	var rows []Row
	for _, w := range ways() {
		refuse := func(name string, at Target) {
			rows = append(rows, immediate(Row{
				Name: w.name + ", " + name, Depth: 1, Recv: []int{8},
				Steps: []Step{{Send: []Packet{w.make(at)}}},
				Want:  refused(acc, 0, 0, flushed(0)),
			}, verbs.RemAccessErr))
		}
		refuse("another key", Target{Region: Main, KeyXor: 1})
		refuse("a key of nothing", Target{Region: Main, KeyXor: 0x00a50000})
		refuse("key of a region that is closed", Target{Region: Closed})
		refuse("another domain", Target{Region: Foreign})
		refuse("only local access", Target{Region: Local})
		step := int64(1)
		switch p := w.make(Target{}); {
		case p.Opcode.IsAtomic():
			step = 8 // they are aligned
			refuse("no atomic access", Target{Region: NoAtomic})
			refuse("only remote reads", Target{Region: ReadOnly})
		case p.Opcode.IsWrite():
			refuse("only remote reads", Target{Region: ReadOnly})
		default:
			refuse("only remote writes", Target{Region: WriteOnly})
		}
		refuse("begins before the region", Target{Region: Main, Off: -step})
		refuse("ends behind the region", Target{Region: Main, Off: RegionSize - int64(w.n) + step})
		refuse("behind the region", Target{Region: Main, Off: RegionSize})
		refuse("address 0", Target{Region: Main, VA: 8})
		refuse("ends at the end of all addresses", Target{Region: Main, VA: -uint64(w.n)})
		if w.n > 1 {
			refuse("wraps around", Target{Region: Main, VA: math.MaxUint64 &^ 7})
		}
	}
	rows = append(rows, edgeRows()...)
	for _, w := range ways()[3:] {
		rows = append(rows, Row{
			Name: w.name + ", none granted", Recv: []int{8},
			Steps: []Step{{Send: []Packet{w.make(Target{Region: Main})}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		})
	}
	for _, w := range ways()[5:] {
		rows = append(rows, Row{
			Name: w.name + ", address that is not a multiple of 8", Depth: 1, Recv: []int{8},
			Steps: []Step{{Send: []Packet{w.make(Target{Region: Main, Off: 4})}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		}, Row{
			Name: w.name + ", first bytes of a region that is not aligned", Depth: 1, Recv: []int{8},
			Steps: []Step{{Send: []Packet{w.make(Target{Region: Odd})}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		})
	}
	return rows
}

// edgeRows are requests that are just within bounds.
func edgeRows() []Row {
	bad := Target{Region: Main, KeyXor: 1}
	return []Row{
		{
			Name:  "RDMA WRITE to the last byte",
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnly, 0, 1, 1).to(Target{Region: WriteOnly, Off: RegionSize - 1}, 1).Ask()}}},
			Want: fine(1, 1, ack(0, 1)).
				holds(Mem{Region: WriteOnly, Off: RegionSize - 1, Data: Payload(0, 1)}),
		},
		{
			Name: "RDMA READ of the last byte", Depth: 1,
			Steps: []Step{{Send: []Packet{read(0, Target{Region: ReadOnly, Off: RegionSize - 1}, 1)}}},
			Want:  fine(1, 1, reply(0, 1, Memory(RegionSize-1, 1))...),
		},
		{
			Name:  "RDMA WRITE of no bytes may name any key",
			Steps: []Step{{Send: []Packet{request(wire.RCWriteOnly, 0, nil).to(bad, 0).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)),
		},
		{
			Name: "RDMA READ of no bytes may name any key", Depth: 1,
			Steps: []Step{{Send: []Packet{read(0, bad, 0)}}},
			Want:  fine(1, 1, reply(0, 1, nil)...),
		},
		{
			Name:  "RDMA WRITE of no bytes may name any address",
			Steps: []Step{{Send: []Packet{request(wire.RCWriteOnly, 0, nil).to(Target{Region: Main, VA: math.MaxUint64}, 0).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)),
		},
		{
			Name: "a refusal behind what was right", Recv: []int{8, 8}, Depth: 1,
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{read(1, Target{Region: Main}, 2*mtu)}},
				{Send: []Packet{write(wire.RCWriteOnly, 3, 4, 4).to(bad, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), reply(1, 2, Memory(0, 2*mtu)), one(nak(acc, 3, 2))), WCs: []WC{received(0, 4), flushed(1)},
				Mem: []Mem{inRecv(0, 0, Payload(0, 4))}, Dead: true, Next: 3,
			},
		},
		{
			// softroce deviates: in the error state requests are dropped (IBTA 10.3.1), but the NAK may have been lost, and a peer
			// that asks once more would wait for its retries to run out, and not learn why.
			Name: "what was refused again", Recv: []int{8},
			Steps: []Step{
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(bad, 4).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(bad, 4).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(nak(acc, 0, 0)), one(nak(acc, 0, 0)), one(nak(acc, 0, 0))), WCs: []WC{flushed(0)}, Dead: true,
			},
			Linux: linux("check_type_state drops requests for a queue pair in the error state", Outcome{
				Answers: steps(one(nak(acc, 0, 0)), nil, nil), WCs: []WC{flushed(0)}, Dead: true,
			}),
		},
		{
			Name: "more READs than were granted", Recv: []int{8}, Depth: 1,
			Steps: []Step{{
				Send: []Packet{read(0, Target{Region: Main}, 2*mtu), read(2, Target{Region: Main}, 1)}, Together: true,
			}},
			Want: Outcome{
				Answers: steps(cat(reply(0, 1, Memory(0, 2*mtu)), one(nak(inv, 2, 1)))), WCs: []WC{flushed(0)}, Dead: true, Next: 2,
			},
			Linux: linux("check_resource leaves it to the requester not to ask for too many, and forgets the oldest",
				fine(3, 2, cat(reply(0, 1, Memory(0, 2*mtu)), reply(2, 2, Memory(0, 1)))...)),
		},
	}
}

const morePayload = "rxe_rcv drops packets that are shorter than their headers, and takes longer ones"

// headerRows are packets that are for nobody (IBTA 9.6), and bits that do not matter.
func headerRows() []Row {
	var rows []Row
	dropped := func(name string, p Packet) {
		rows = append(rows, Row{
			Name: name, Depth: 1, Recv: []int{8}, Steps: []Step{{Send: []Packet{p}}}, Want: fine(0, 0),
		})
	}
	good := send(wire.RCSendOnly, 0, 4).Ask()
	taken := func(name string, p Packet) {
		rows = append(rows, Row{
			Name: name, Recv: []int{8}, Steps: []Step{{Send: []Packet{p}}},
			Want: fine(1, 1, ack(0, 1)).with(received(0, 4)).holds(inRecv(0, 0, Payload(0, 4))),
		})
	}
	bits := func(i int, set byte) func(b []byte) []byte {
		return func(b []byte) []byte { b[i] |= set; return b }
	}
	p := good
	p.BadICRC = true
	dropped("bad ICRC", p)
	p = good
	p.Other = true
	dropped("from a host that is not the peer's", p)
	dropped("transport version 1", good.edit(bits(1, 1)))
	dropped("P_Key of another partition", good.edit(func(b []byte) []byte { b[3] = 0xfe; return b }))
	dropped("P_Key 0", good.edit(func(b []byte) []byte { b[2], b[3] = 0, 0; return b }))
	taken("P_Key of a limited member", good.edit(func(b []byte) []byte { b[2] = 0x7f; return b }))
	for _, c := range []struct {
		name string
		qpn  func(uint32) uint32
	}{
		{"of nobody", func(n uint32) uint32 { return n ^ 0x4000 }},
		{"0", func(uint32) uint32 { return 0 }},
		{"of groups", func(uint32) uint32 { return wire.QPNMulticast }},
		{"of the general services", func(uint32) uint32 { return wire.QPNGSI }},
	} {
		p := good
		p.QPN = c.qpn
		dropped("queue pair number "+c.name, p)
	}
	for _, op := range []wire.Opcode{0x15, 0x18, 0x1b, 0x1e, 0x1f, 0x24, 0x2a, 0x44, 0x64, 0x65, 0x80, 0x81, 0xa4, 0xc0, 0xff} {
		dropped(fmt.Sprintf("opcode %#x", uint8(op)), good.edit(func(b []byte) []byte {
			b[0] = uint8(op)
			return append(b, make([]byte, 32)...)
		}))
	}
	for _, op := range []wire.Opcode{
		wire.RCReadResponseFirst, wire.RCReadResponseMid, wire.RCReadResponseLast, wire.RCReadResponseOnly, wire.RCAck, wire.RCAtomicAck,
	} {
		p := request(op, 0, nil)
		p.AETH = wire.ACK(0)
		dropped(fmt.Sprintf("%v to nothing", op), p)
	}
	dropped("half a BTH", good.edit(func(b []byte) []byte { return b[:8] }))
	dropped("half a RETH", write(wire.RCWriteOnly, 0, 0, 0).edit(func(b []byte) []byte { return b[:20] }))
	dropped("half an AtomicETH", fetchAdd(0, Target{Region: Main}, 1).edit(func(b []byte) []byte { return b[:24] }))
	dropped("no immediate data", send(wire.RCSendOnlyImm, 0, 0).edit(func(b []byte) []byte { return b[:12] }))
	more := func(b []byte) []byte { return append(b, 1, 2, 3, 4) }
	dropped("an RDMA READ request with payload", read(0, Target{Region: Main}, 1).edit(more))
	rows[len(rows)-1].Linux = linux(morePayload, fine(1, 1, reply(0, 1, Memory(0, 1))...))
	dropped("an atomic with payload", fetchAdd(0, Target{Region: Main}, 1).edit(more))
	rows[len(rows)-1].Linux = linux(morePayload, fine(1, 1, atomicAck(0, 1, word(0))).holds(inMain(0, bytesOf(word(0)+1))))
	taken("solicited event", good.edit(bits(1, 0x80)))
	taken("MigReq", good.edit(bits(1, 0x40)))
	taken("FECN, BECN and reserved bits", good.edit(bits(4, 0xff)))
	taken("reserved bits beside AckReq", good.edit(bits(8, 0x7f)))
	return rows
}
