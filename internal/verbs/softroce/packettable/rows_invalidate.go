package packettable

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const noInvalidate = "rxe_invalidate_mr knows no region of a program's, only those that a work request registered. execute fails before it has " +
	"counted the message, so that the ACK has the old MSN"

// invalidateRows are SENDs that end a region's keys. That a key may not be named so is a fault of class J (IBTA 9.9.3): the responder's own
// error, which the peer does not hear of.
func invalidateRows() []Row {
	fault := func(name string, at Target) Row {
		o := Outcome{
			Answers: steps(one(ack(0, 1))), WCs: []WC{failed(0, verbs.RemInvReqErr), flushed(1)}, Mem: []Mem{inRecv(0, 0, Payload(0, 5))},
			Dead: true, Next: 1,
		}
		return Row{
			Name: "SEND Only with Invalidate, " + name, Recv: []int{8, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnlyInv, 0, 5).to(at, 0).Ask()}}},
			Want:  o, Linux: linux(noInvalidate, o.answering(one(ack(0, 0)))),
		}
	}
	region := Target{Region: Revocable}
	return []Row{
		fault("a key of nothing", Target{Region: Main, KeyXor: 0x00a50000}),
		fault("a region that is closed", Target{Region: Closed}),
		fault("a region that is not registered for it", Target{Region: Main}),
		fault("another domain", Target{Region: Foreign}),
		{
			Name: "SEND Only with Invalidate, and a WRITE to what is invalid", Recv: []int{8, 8},
			Steps: []Step{
				{Send: []Packet{write(wire.RCWriteOnly, 0, 3, 3).to(region, 3).Ask()}},
				{Send: []Packet{send(wire.RCSendOnlyInv, 1, 5).to(region, 0).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnly, 2, 4, 4).to(region, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(1, 2)), one(nak(acc, 2, 2))),
				WCs:     []WC{{Op: verbs.WCRecv, Len: 5, Inv: true}, flushed(1)},
				Mem:     []Mem{{Region: Revocable, Data: Payload(0, 3)}, inRecv(0, 0, Payload(1, 5))}, Dead: true, Next: 2,
			},
			Linux: linux(noInvalidate, Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(1, 1)), nil), WCs: []WC{failed(0, verbs.RemInvReqErr), flushed(1)},
				Mem: []Mem{{Region: Revocable, Data: Payload(0, 3)}, inRecv(0, 0, Payload(1, 5))}, Dead: true, Next: 2,
			}),
		},
		{
			Name: "SEND Only with Invalidate again", Recv: []int{8, 8},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnlyInv, 0, 5).to(region, 0).Ask()}},
				{Send: []Packet{send(wire.RCSendOnlyInv, 0, 5).to(region, 0).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1))), WCs: []WC{{Op: verbs.WCRecv, Len: 5, Inv: true}},
				Mem: []Mem{inRecv(0, 0, Payload(0, 5))}, Next: 1, MSN: 1,
			},
			Linux: linux(noInvalidate, Outcome{
				Answers: steps(one(ack(0, 0)), nil), WCs: []WC{failed(0, verbs.RemInvReqErr), flushed(1)},
				Mem: []Mem{inRecv(0, 0, Payload(0, 5))}, Dead: true, Next: 1,
			}),
		},
		{
			Name: "SEND First, Last with Invalidate", Recv: []int{2 * mtu, 8},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}},
				{Send: []Packet{send(wire.RCSendLastInv, 1, 5).to(region, 0).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(ack(1, 1))), WCs: []WC{{Op: verbs.WCRecv, Len: mtu + 5, Inv: true}},
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, 5))}, Next: 2, MSN: 1,
			},
			Linux: linux(noInvalidate, Outcome{
				Answers: steps(one(ack(0, 0)), one(ack(1, 0))), WCs: []WC{failed(0, verbs.RemInvReqErr), flushed(1)},
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, 5))}, Dead: true, Next: 2,
			}),
		},
	}
}
