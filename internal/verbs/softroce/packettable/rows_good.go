package packettable

import (
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// mtu is the path MTU of all connections.
const mtu = 256

// goodRows are each opcode as it should be.
func goodRows() []Row {
	rows := []Row{
		{
			Name: "SEND Only without AckReq", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 5)}}},
			Want:  fine(1, 1).with(received(0, 5)).holds(inRecv(0, 0, Payload(0, 5))),
		},
		{
			Name: "SEND Only with Immediate", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnlyImm, 0, 3).imm(0xfedcba98).Ask()}}},
			Want: fine(1, 1, ack(0, 1)).with(WC{Op: verbs.WCRecv, Len: 3, Imm: 0xfedcba98}).
				holds(inRecv(0, 0, Payload(0, 3))),
		},
		{
			Name: "SEND First, Middle, Last", Recv: []int{3 * mtu},
			Steps: []Step{{Send: []Packet{
				send(wire.RCSendFirst, 0, mtu), send(wire.RCSendMiddle, 1, mtu), send(wire.RCSendLast, 2, 7).Ask(),
			}}},
			Want: fine(3, 1, ack(2, 1)).with(received(0, 2*mtu+7)).
				holds(inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, mtu)), inRecv(0, 2*mtu, Payload(2, 7))),
		},
		{
			Name: "SEND First, Last with Immediate", Recv: []int{2 * mtu},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}},
				{Send: []Packet{send(wire.RCSendLastImm, 1, mtu).imm(7).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(ack(1, 1))), Next: 2, MSN: 1,
				WCs: []WC{{Op: verbs.WCRecv, Len: 2 * mtu, Imm: 7}},
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, mtu))},
			},
		},
		{
			Name: "a SEND fills its receive to the byte", Recv: []int{mtu + 3},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu), send(wire.RCSendLast, 1, 3).Ask()}}},
			Want: fine(2, 1, ack(1, 1)).with(received(0, mtu+3)).
				holds(inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, 3))),
		},
		{
			Name: "SENDs take receives in order", Recv: []int{4, 0, 4},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 1, 0).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 2, 1).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(1, 2)), one(ack(2, 3))), Next: 3, MSN: 3,
				WCs: []WC{received(0, 4), received(1, 0), received(2, 1)},
				Mem: []Mem{inRecv(0, 0, Payload(0, 4)), inRecv(2, 0, Payload(2, 1))},
			},
		},
		{
			Name:  "RDMA WRITE Only without AckReq",
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnly, 0, 5, 5)}}},
			Want:  fine(1, 1).holds(inMain(0, Payload(0, 5))),
		},
		{
			Name: "RDMA WRITE First, Middle, Last",
			Steps: []Step{{Send: []Packet{
				write(wire.RCWriteFirst, 0, mtu, 2*mtu+1), write(wire.RCWriteMiddle, 1, mtu, 0), write(wire.RCWriteLast, 2, 1, 0).Ask(),
			}}},
			Want: fine(3, 1, ack(2, 1)).
				holds(inMain(0, Payload(0, mtu)), inMain(mtu, Payload(1, mtu)), inMain(2*mtu, Payload(2, 1))),
		},
		{
			Name: "RDMA WRITE Only with Immediate", Recv: []int{8},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnlyImm, 0, 6, 6).imm(9).Ask()}}},
			Want: fine(1, 1, ack(0, 1)).with(WC{Op: verbs.WCRecvWithImm, Len: 6, Imm: 9}).
				holds(inMain(0, Payload(0, 6))),
		},
		{
			Name: "RDMA WRITE Only with Immediate of no bytes", Recv: []int{0},
			Steps: []Step{{Send: []Packet{request(wire.RCWriteOnlyImm, 0, nil).imm(9).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(WC{Op: verbs.WCRecvWithImm, Imm: 9}),
		},
		{
			Name: "RDMA WRITE First, Last with Immediate", Recv: []int{0},
			Steps: []Step{{Send: []Packet{
				write(wire.RCWriteFirst, 0, mtu, mtu+9), write(wire.RCWriteLastImm, 1, 9, 0).imm(11).Ask(),
			}}},
			Want: fine(2, 1, ack(1, 1)).with(WC{Op: verbs.WCRecvWithImm, Len: mtu + 9, Imm: 11}).
				holds(inMain(0, Payload(0, mtu)), inMain(mtu, Payload(1, 9))),
		},
		{
			Name: "CmpSwap that compares equal", Depth: 1,
			Steps: []Step{{Send: []Packet{compareSwap(0, Target{Region: Main, Off: 16}, word(16), 0x1122334455667788)}}},
			Want:  fine(1, 1, atomicAck(0, 1, word(16))).holds(inMain(16, bytesOf(0x1122334455667788))),
		},
		{
			Name: "CmpSwap that does not", Depth: 1,
			Steps: []Step{{Send: []Packet{compareSwap(0, Target{Region: Main, Off: 16}, word(16)+1, 5)}}},
			Want:  fine(1, 1, atomicAck(0, 1, word(16))),
		},
		{
			Name: "FetchAdd", Depth: 1,
			Steps: []Step{{Send: []Packet{fetchAdd(0, Target{Region: Main, Off: 24}, 1<<63+3)}}},
			Want:  fine(1, 1, atomicAck(0, 1, word(24))).holds(inMain(24, bytesOf(word(24)+1<<63+3))),
		},
		{
			Name: "FetchAdd that wraps around", Depth: 1,
			Steps: []Step{{Send: []Packet{fetchAdd(0, Target{Region: Main, Off: 24}, -word(24))}}},
			Want:  fine(1, 1, atomicAck(0, 1, word(24))).holds(inMain(24, bytesOf(0))),
		},
		{
			Name: "atomics at both ends of a region", Depth: 2,
			Steps: []Step{
				{Send: []Packet{fetchAdd(0, Target{Region: Main}, 1)}},
				{Send: []Packet{fetchAdd(1, Target{Region: Main, Off: RegionSize - 8}, 1)}},
			},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), one(atomicAck(1, 2, word(RegionSize-8)))), Next: 2, MSN: 2,
				Mem: []Mem{inMain(0, bytesOf(word(0)+1)), inMain(RegionSize-8, bytesOf(word(RegionSize-8)+1))},
			},
		},
		{
			Name: "an atomic is answered without AckReq", Depth: 1,
			Steps: []Step{{Send: []Packet{func() Packet {
				p := fetchAdd(0, Target{Region: Main}, 0)
				p.AckReq = false
				return p
			}()}}},
			Want: fine(1, 1, atomicAck(0, 1, word(0))),
		},
		{
			Name: "a READ sees the WRITE before it", Depth: 1,
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4), read(1, Target{Region: Main}, 8)}}},
			Want:  fine(2, 2, reply(1, 2, cat(Payload(0, 4), Memory(4, 4)))...).holds(inMain(0, Payload(0, 4))),
		},
		{
			Name: "one READ after another, each taking its PSNs", Depth: 1,
			Steps: []Step{
				{Send: []Packet{read(0, Target{Region: Main}, 3*mtu)}},
				{Send: []Packet{read(3, Target{Region: Main, Off: 1}, 1)}},
				{Send: []Packet{read(4, Target{Region: ReadOnly, Off: 7}, mtu+1)}},
			},
			Want: Outcome{
				Answers: steps(reply(0, 1, Memory(0, 3*mtu)), reply(3, 2, Memory(1, 1)), reply(4, 3, Memory(7, mtu+1))),
				Next:    6, MSN: 3,
			},
		},
		{
			Name: "a long READ", Depth: 1,
			Steps: []Step{{Send: []Packet{read(0, Target{Region: Large}, LargeSize/4-1)}}},
			Want:  fine(LargeSize/4/mtu, 1, reply(0, 1, largeMemory(LargeSize/4-1))...),
		},
	}
	for _, n := range []int{0, 1, 2, 3, 4, mtu - 1, mtu} {
		rows = append(rows, Row{
			Name: fmt.Sprintf("SEND Only of %d bytes", n), Recv: []int{mtu},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, n).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(received(0, n)).holds(inRecv(0, 0, Payload(0, n))),
		}, Row{
			Name:  fmt.Sprintf("RDMA WRITE Only of %d bytes", n),
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnly, 0, n, uint32(n)).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).holds(inMain(0, Payload(0, n))),
		})
	}
	for _, n := range []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu - 2, RegionSize} {
		rows = append(rows, Row{
			Name: fmt.Sprintf("RDMA READ of %d bytes", n), Depth: 1,
			Steps: []Step{{Send: []Packet{read(0, Target{Region: Main}, uint32(n))}}},
			Want:  fine(max(1, (n+mtu-1)/mtu), 1, reply(0, 1, Memory(0, n))...),
		})
	}
	return rows
}
