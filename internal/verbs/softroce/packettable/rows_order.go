package packettable

import (
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// beginning are all requests that may begin a message, with PSN 1.
func beginning() []Packet {
	main := Target{Region: Main}
	return []Packet{
		send(wire.RCSendFirst, 1, mtu), send(wire.RCSendOnly, 1, 4), send(wire.RCSendOnlyImm, 1, 4), send(wire.RCSendOnlyInv, 1, 4),
		write(wire.RCWriteFirst, 1, mtu, mtu+1), write(wire.RCWriteOnly, 1, 4, 4), write(wire.RCWriteOnlyImm, 1, 4, 4),
		read(1, main, 4), compareSwap(1, main, word(0), 1), fetchAdd(1, main, 1),
	}
}

// continuing are all requests that may not, with this PSN.
func continuing(psn int) (sends, writes []Packet) {
	sends = []Packet{
		send(wire.RCSendMiddle, psn, mtu), send(wire.RCSendLast, psn, 4), send(wire.RCSendLastImm, psn, 4), send(wire.RCSendLastInv, psn, 4),
	}
	return sends, []Packet{write(wire.RCWriteMiddle, psn, mtu, 0), write(wire.RCWriteLast, psn, 4, 0), write(wire.RCWriteLastImm, psn, 4, 0)}
}

const givesStatus = "do_complete gives the receive that a message has met the status that belongs to the NAK, REM_INV_REQ_ERR, " +
	"instead of flushing it. That status is one of requesters (IBTA 10.10.3.2)"

// orderRows are packets out of the order of messages (IBTA 9.7.4.1.2).
func orderRows() (rows []Row) {
	sends, writes := continuing(0)
	for _, p := range cat(sends, writes) {
		rows = append(rows, Row{
			Name: fmt.Sprintf("%v begins", p.Opcode), Recv: []int{4 * mtu},
			Steps: []Step{{Send: []Packet{p}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		})
	}
	inSend := func(p Packet) {
		o := Outcome{
			Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0), flushed(1)},
			Mem: []Mem{inRecv(0, 0, Payload(0, mtu))}, Dead: true, Next: 1,
		}
		rows = append(rows, Row{
			Name: fmt.Sprintf("%v within a SEND", p.Opcode), Depth: 1, Recv: []int{4 * mtu, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}, {Send: []Packet{p}}},
			Want:  o,
			Linux: linux(givesStatus, o.with(failed(0, verbs.RemInvReqErr), flushed(1))),
		})
	}
	inWrite := func(p Packet) {
		rows = append(rows, Row{
			Name: fmt.Sprintf("%v within an RDMA WRITE", p.Opcode), Depth: 1, Recv: []int{4 * mtu, 8},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, 2*mtu).Ask()}}, {Send: []Packet{p}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0), flushed(1)},
				Mem: []Mem{inMain(0, Payload(0, mtu))}, Dead: true, Next: 1,
			},
		})
	}
	sends, writes = continuing(1)
	for _, p := range cat(beginning(), writes) {
		inSend(p)
	}
	for _, p := range cat(beginning(), sends) {
		inWrite(p)
	}
	main := Target{Region: Main}
	for _, p := range []Packet{atomicWrite(1, main, 8), flush(1, Target{Region: Flushable}, 8, wire.PlacementGlobal, wire.FlushRange)} {
		inWrite(p)
		r := &rows[len(rows)-1]
		*r = unknown(*r, Outcome{
			Answers: steps(one(ack(0, 0)), nil), WCs: []WC{flushed(0), flushed(1)}, Mem: r.Want.Mem, Open: true, Next: 1,
		})
	}
	after := func(name string, first Packet, answers []Answer, mem ...Mem) {
		rows = append(rows, Row{
			Name: "RC SEND Last after " + name, Depth: 1, Recv: []int{2 * mtu},
			Steps: []Step{{Send: []Packet{first}}, {Send: []Packet{send(wire.RCSendLast, 1, 4)}}},
			Want: Outcome{
				Answers: steps(answers, one(nak(inv, 1, 1))), WCs: []WC{flushed(0)}, Mem: mem, Dead: true, Next: 1,
			},
		})
	}
	after("a WRITE", write(wire.RCWriteOnly, 0, 4, 4).Ask(), one(ack(0, 1)), inMain(0, Payload(0, 4)))
	after("a READ", read(0, Target{Region: Main}, 4), reply(0, 1, Memory(0, 4)))
	after("an atomic", fetchAdd(0, Target{Region: Main}, 0), one(atomicAck(0, 1, word(0))))
	return rows
}
