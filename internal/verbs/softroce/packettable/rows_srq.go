package packettable

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// sharedRows are for a queue pair that takes from a shared receive queue (IBTA 10.2.9). What has been taken goes with the queue pair, all
// else stays in the queue when it fails.
func sharedRows() []Row {
	main := Target{Region: Main}
	bad := Target{Region: Main, KeyXor: 1}
	begun := fine(1, 0, ack(0, 0)).with(flushed(0)).holds(inRecv(0, 0, Payload(0, mtu))).open()
	begun.Low = true
	within := Outcome{
		Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0)}, Dead: true, Next: 1,
		Mem: []Mem{inRecv(0, 0, Payload(0, mtu))},
	}
	rows := []Row{
		{
			Name: "takes receives in order", Recv: []int{8, mtu + 4, 8, 8}, Depth: 1,
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnly, 1, 4, 4).Ask()}},
				{Send: []Packet{read(2, main, 4)}},
				{Send: []Packet{send(wire.RCSendFirst, 3, mtu), send(wire.RCSendLastImm, 4, 4).imm(7).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnlyImm, 5, 8, 8).imm(9).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(1, 2)), reply(2, 3, Payload(1, 4)), one(ack(4, 4)), one(ack(5, 5))), Next: 6, MSN: 5,
				WCs: []WC{received(0, 4), {ID: 1, Op: verbs.WCRecv, Len: mtu + 4, Imm: 7}, {ID: 2, Op: recvWithImm, Len: 8, Imm: 9}},
				Mem: []Mem{
					inRecv(0, 0, Payload(0, 4)), inRecv(1, 0, Payload(3, mtu)), inRecv(1, mtu, Payload(4, 4)), inMain(0, Payload(5, 8)),
				},
			},
		},
		{
			Name: "what is dropped, ahead or a duplicate takes none", Recv: []int{8, 8}, Limit: 1,
			Steps: []Step{
				{Send: []Packet{func() Packet { p := send(wire.RCSendOnly, 0, 4).Ask(); p.BadICRC = true; return p }(), send(wire.RCSendOnly, 1, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(nak(seq, 0, 0)), one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
		},
		{
			Name: "no receive, and later one",
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Recv: []int{8}, Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnlyImm, 1, 4, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(notReady(anyTimer, 0, 0)), one(ack(0, 1)), one(notReady(anyTimer, 1, 1))), Next: 1, MSN: 1,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
		},
		{
			Name: "the limit", Recv: []int{8, 8, 8, 8}, Limit: 3,
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 1, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 2, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(1, 2)), one(ack(2, 3))), Next: 3, MSN: 3, Low: true,
				WCs: []WC{received(0, 4), received(1, 4), received(2, 4)},
				Mem: []Mem{inRecv(0, 0, Payload(0, 4)), inRecv(1, 0, Payload(1, 4)), inRecv(2, 0, Payload(2, 4))},
			},
		},
		{
			Name: "the limit is not reached", Recv: []int{8, 8, 8}, Limit: 2,
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(received(0, 4)).holds(inRecv(0, 0, Payload(0, 4))),
		},
		{
			Name: "a message that has begun has taken its receive", Recv: []int{2 * mtu, 8}, Limit: 2,
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}},
			Want:  begun,
			Linux: linux(givesStatus, begun.with(failed(0, verbs.RemInvReqErr))),
		},
		{
			Name: "a refusal leaves the receives", Recv: []int{8, 8},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(bad, 4).Ask()}}},
			Want:  refused(acc, 0, 0),
		},
		{
			Name: "a fault within a SEND flushes its receive, and no other", Recv: []int{2 * mtu, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}, {Send: []Packet{write(wire.RCWriteOnly, 1, 4, 4).Ask()}}},
			Want:  within,
			Linux: linux(givesStatus, within.with(failed(0, verbs.RemInvReqErr))),
		},
		{
			Name: "SEND Only of a byte more than its receive has", Recv: []int{7, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 8).Ask()}}},
			Want:  refused(inv, 0, 0, failed(0, verbs.LocLenErr)).holds(inRecv(0, 0, Payload(0, 7))),
			Linux: linux(roomError, refused(remOp, 0, 0, failed(0, verbs.LocQPOpErr))),
		},
	}
	for i := range rows {
		rows[i].Name, rows[i].SRQ = "SRQ: "+rows[i].Name, true
	}
	return rows
}

// closedRows are for a region that is closed while it is used.
func closedRows() []Row {
	return []Row{{
		Name: "a region that is closed within an RDMA WRITE",
		Steps: []Step{
			{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, 3*mtu).to(Target{Region: Revocable}, 3*mtu).Ask()}},
			{Close: true, Send: []Packet{write(wire.RCWriteMiddle, 1, mtu, 0).Ask()}},
		},
		Want: Outcome{
			Answers: steps(one(ack(0, 0)), one(nak(acc, 1, 0))), Mem: []Mem{{Region: Revocable, Data: Payload(0, mtu)}}, Dead: true, Next: 1,
		},
	}, {
		// softroce deviates: the request may be a copy that was late, and its requester have what it asked for. Who still waits for it ends
		// the connection.
		Name: "a region that is closed after a READ, which comes again", Depth: 1,
		Steps: []Step{
			{Send: []Packet{read(0, Target{Region: Revocable}, 2*mtu)}},
			{Close: true, Send: []Packet{read(0, Target{Region: Revocable}, 2*mtu)}},
		},
		Want: Outcome{
			Answers: steps(reply(0, 1, Memory(0, 2*mtu)), one(nak(acc, 0, 1))), Next: 2, MSN: 1,
		},
		Linux: linux("read_reply ends the connection, as it does when the region of a request that is new is not there", Outcome{
			Answers: steps(reply(0, 1, Memory(0, 2*mtu)), one(nak(acc, 0, 1))), Dead: true, Next: 2,
		}),
	}}
}
