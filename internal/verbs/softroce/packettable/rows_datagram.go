package packettable

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// datagramRows are for a queue pair of datagrams, which drops what is not right (IBTA 9.8.3.2). Each ends with one that is.
func datagramRows() []Row {
	const room = verbs.GRHLen + 64
	last := datagram(9)
	arrived := func(id uint64) Outcome {
		return Outcome{
			Answers: steps(nil, nil), WCs: []WC{received(id, verbs.GRHLen+9)}, Mem: []Mem{inRecv(int(id), verbs.GRHLen, Payload(0, 9))},
		}
	}
	row := func(name string, p Packet) Row {
		return Row{
			Name: "UD: " + name, UD: true, Recv: []int{room, room}, Steps: []Step{{Send: []Packet{p}}, {Send: []Packet{last}}},
			Want: arrived(0),
		}
	}
	good := datagram(4)
	imm := request(wire.UDSendOnlyImm, 0, Payload(0, 3)).imm(77)
	rows := []Row{
		{
			Name: "UD: SEND Only", UD: true, Recv: []int{room}, Steps: []Step{{Send: []Packet{last}}},
			Want: Outcome{
				Answers: steps(nil), WCs: []WC{received(0, verbs.GRHLen+9)}, Mem: []Mem{inRecv(0, verbs.GRHLen, Payload(0, 9))},
			},
		},
		{
			Name: "UD: SEND Only of no bytes", UD: true, Recv: []int{verbs.GRHLen}, Steps: []Step{{Send: []Packet{datagram(0)}}},
			Want: Outcome{Answers: steps(nil), WCs: []WC{received(0, verbs.GRHLen)}},
		},
		{
			Name: "UD: SEND Only with Immediate", UD: true, Recv: []int{room}, Steps: []Step{{Send: []Packet{imm}}},
			Want: Outcome{
				Answers: steps(nil), WCs: []WC{{Op: verbs.WCRecv, Len: verbs.GRHLen + 3, Imm: 77}},
				Mem: []Mem{inRecv(0, verbs.GRHLen, Payload(0, 3))},
			},
		},
		{
			Name: "UD: SEND Only with any PSN", UD: true, Recv: []int{room, room},
			Steps: []Step{{Send: []Packet{request(wire.UDSendOnly, 1<<23-1, Payload(0, 1))}}, {Send: []Packet{request(wire.UDSendOnly, 1<<23-1, Payload(0, 2))}}},
			Want: Outcome{
				Answers: steps(nil, nil), WCs: []WC{received(0, verbs.GRHLen+1), received(1, verbs.GRHLen+2)},
				Mem: []Mem{inRecv(0, verbs.GRHLen, Payload(0, 1)), inRecv(1, verbs.GRHLen, Payload(0, 2))},
			},
		},
		{
			Name: "UD: no receive", UD: true,
			Steps: []Step{{Send: []Packet{good}}, {Recv: []int{room}, Send: []Packet{last}}},
			Want:  arrived(0),
		},
		{
			Name: "UD: a byte more than the receive has", UD: true, Recv: []int{verbs.GRHLen + 9, room},
			Steps: []Step{{Send: []Packet{datagram(10)}}, {Send: []Packet{last}}},
			Want:  arrived(0),
			Linux: linux(roomError+". That ends the queue pair, so any host can do it (later kernels drop the datagram)", Outcome{
				Answers: steps(nil, nil), WCs: []WC{failed(0, verbs.LocQPOpErr), flushed(1)}, Dead: true, Header: true,
			}),
		},
	}
	qkey := good
	qkey.QKey = 1
	privileged := good
	privileged.QKey = 1 << 31
	icrc := good
	icrc.BadICRC = true
	group := good
	group.QPN = func(uint32) uint32 { return wire.QPNMulticast }
	opcode := func(op wire.Opcode) func(b []byte) []byte {
		return func(b []byte) []byte { b[0] = uint8(op); return append(b, make([]byte, 32)...) }
	}
	odd := row("a length that is not a multiple of four", datagram(5).edit(pad(0)))
	odd.Linux = linux(anyLength, Outcome{
		Answers: steps(nil, nil), WCs: []WC{received(0, verbs.GRHLen+5), received(1, verbs.GRHLen+9)},
		Mem: []Mem{inRecv(0, verbs.GRHLen, Payload(0, 5)), inRecv(1, verbs.GRHLen, Payload(0, 9))},
	})
	return append(rows, odd,
		row("wrong Q_Key", qkey),
		row("Q_Key with the high bit", privileged),
		row("bad ICRC", icrc),
		row("P_Key of another partition", good.edit(func(b []byte) []byte { b[3] = 1; return b })),
		row("transport version 2", good.edit(func(b []byte) []byte { b[1] |= 2; return b })),
		row("to a group that nobody joined", group),
		row("RC SEND Only", good.edit(opcode(wire.RCSendOnly))),
		row("RC RDMA WRITE Only", good.edit(opcode(wire.RCWriteOnly))),
		row("opcode 0x60", good.edit(opcode(0x60))),
		row("opcode 0x66", good.edit(opcode(0x66))),
		row("half a DETH", good.edit(func(b []byte) []byte { return b[:16] })),
		row("no immediate data", imm.edit(func(b []byte) []byte { return b[:20] })),
		row("more padding than payload", datagram(0).edit(padCount(1))),
	)
}
