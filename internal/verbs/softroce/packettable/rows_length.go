package packettable

import (
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// lengthRows are packets and messages that are too short or too long (IBTA 9.7.4.1.6).
func lengthRows() []Row {
	rows := packetLengthRows()
	rows = append(rows, messageLengthRows()...)
	return append(rows, padRows()...)
}

// packetLengthRows: First and Middle have the path MTU, Last at least a byte, and none has more.
func packetLengthRows() (rows []Row) {
	type bad struct {
		op wire.Opcode
		n  int
	}
	for _, c := range []bad{
		{wire.RCSendFirst, 0}, {wire.RCSendFirst, mtu - 4}, {wire.RCSendFirst, mtu + 4}, {wire.RCSendOnly, mtu + 1}, {wire.RCSendOnlyImm, mtu + 4},
	} {
		takes := fine(1, 0, ack(0, 0)).with(failed(0, verbs.RemInvReqErr)).open()
		if c.op.IsOnly() {
			takes = fine(1, 1, ack(0, 1)).with(received(0, c.n))
		}
		rows = append(rows, Row{
			Name: fmt.Sprintf("%v of %d bytes", c.op, c.n), Recv: []int{4 * mtu},
			Steps: []Step{{Send: []Packet{send(c.op, 0, c.n).Ask()}}},
			Want:  refused(inv, 0, 0, flushed(0)),
			Linux: linux(checksNothing, takes.holds(inRecv(0, 0, Payload(0, c.n)))),
		})
	}
	for _, c := range []bad{
		{wire.RCSendMiddle, 0}, {wire.RCSendMiddle, mtu - 4}, {wire.RCSendMiddle, mtu + 4}, {wire.RCSendLast, 0}, {wire.RCSendLast, mtu + 4},
		{wire.RCSendLastImm, 0}, {wire.RCSendLastImm, mtu + 1},
	} {
		takes := fine(2, 0).with(failed(0, verbs.RemInvReqErr)).open()
		if c.op.Ends() {
			takes = fine(2, 1).with(received(0, mtu+c.n))
		}
		takes = takes.answering(one(ack(0, 0)), one(ack(1, takes.MSN))).
			holds(inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, c.n)))
		rows = append(rows, Row{
			Name: fmt.Sprintf("%v of %d bytes", c.op, c.n), Recv: []int{4 * mtu}, Linux: linux(checksNothing, takes),
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}, {Send: []Packet{send(c.op, 1, c.n).Ask()}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0)}, Dead: true, Next: 1,
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu))},
			},
		})
	}
	for _, c := range []bad{
		{wire.RCWriteFirst, 0}, {wire.RCWriteFirst, mtu - 4}, {wire.RCWriteFirst, mtu + 4}, {wire.RCWriteOnly, mtu + 1}, {wire.RCWriteOnlyImm, mtu + 4},
	} {
		all := uint32(c.n)
		if c.op.IsFirst() {
			all = 2 * mtu
		}
		rows = append(rows, immediate(Row{
			Name: fmt.Sprintf("%v of %d bytes", c.op, c.n), Recv: []int{0},
			Steps: []Step{{Send: []Packet{write(c.op, 0, c.n, all).Ask()}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		}, verbs.RemInvReqErr))
	}
	for _, c := range []bad{
		{wire.RCWriteMiddle, 0}, {wire.RCWriteMiddle, mtu - 4}, {wire.RCWriteMiddle, mtu + 4}, {wire.RCWriteLast, 0}, {wire.RCWriteLast, mtu + 4},
		{wire.RCWriteLastImm, 0}, {wire.RCWriteLastImm, mtu + 1},
	} {
		rows = append(rows, immediate(Row{
			Name: fmt.Sprintf("%v of %d bytes", c.op, c.n), Recv: []int{0},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, 3*mtu).Ask()}}, {Send: []Packet{write(c.op, 1, c.n, 0).Ask()}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0)}, Dead: true, Next: 1,
				Mem: []Mem{inMain(0, Payload(0, mtu))},
			},
		}, verbs.RemInvReqErr))
	}
	return rows
}

const (
	checksNothing = "check_length checks nothing, so a SEND takes packets of any length, as long as they fit into the receive (later kernels check)"
	roomError     = "copy_data has EINVAL for a receive that is too small, which send_data_in takes for a malformed request of its own side"
	anyLength     = "rxe_rcv does not look whether packets are a multiple of four bytes"
	byRange       = "check_rkey looks at the range before the length"
)

// immediate says what the kernel makes of a row whose last packet is a WRITE with Immediate that is refused: the packet has met
// the first receive.
func immediate(r Row, status verbs.Status) Row {
	last := r.Steps[len(r.Steps)-1].Send
	if last[len(last)-1].Opcode.HasImm() {
		r.Linux = linux(givesStatus, r.Want.with(cat([]WC{failed(0, status)}, r.Want.WCs[1:])...))
	}
	return r
}

// messageLengthRows: a WRITE brings what its RETH says, and a SEND what its receive has room for.
func messageLengthRows() []Row {
	rows := []Row{
		{
			Name: "SEND Only of a byte more than its receive has", Recv: []int{7, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 8).Ask()}}},
			Want:  refused(inv, 0, 0, failed(0, verbs.LocLenErr), flushed(1)).holds(inRecv(0, 0, Payload(0, 7))),
			Linux: linux(roomError, refused(remOp, 0, 0, failed(0, verbs.LocQPOpErr), flushed(1))),
		},
		{
			Name: "SEND Only of a byte to a receive of none", Recv: []int{0, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 1).Ask()}}},
			Want:  refused(inv, 0, 0, failed(0, verbs.LocLenErr), flushed(1)),
			Linux: linux(roomError, refused(remOp, 0, 0, failed(0, verbs.LocQPOpErr), flushed(1))),
		},
		{
			Name: "SEND Last of a byte more than its receive has", Recv: []int{mtu + 3, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}, {Send: []Packet{send(wire.RCSendLast, 1, 4).Ask()}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{failed(0, verbs.LocLenErr), flushed(1)}, Dead: true, Next: 1,
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, 3))},
			},
			Linux: linux(roomError, Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(remOp, 1, 0))), WCs: []WC{failed(0, verbs.LocQPOpErr), flushed(1)}, Dead: true, Next: 1,
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu))},
			}),
		},
		{
			Name: "SEND Middle of more than its receive has", Recv: []int{mtu + 3, 8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}}, {Send: []Packet{send(wire.RCSendMiddle, 1, mtu).Ask()}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{failed(0, verbs.LocLenErr), flushed(1)}, Dead: true, Next: 1,
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, 3))},
			},
			Linux: linux(roomError, Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(remOp, 1, 0))), WCs: []WC{failed(0, verbs.LocQPOpErr), flushed(1)}, Dead: true, Next: 1,
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu))},
			}),
		},
		{
			Name: "RDMA WRITE Last with Immediate to a receive that is smaller", Recv: []int{3},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteOnlyImm, 0, 8, 8).imm(1).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(WC{Op: recvWithImm, Len: 8, Imm: 1}).holds(inMain(0, Payload(0, 8))),
		},
	}
	for _, c := range []struct {
		op  wire.Opcode
		n   int
		all uint32
	}{
		{wire.RCWriteOnly, 4, 3}, {wire.RCWriteOnly, 4, 5}, {wire.RCWriteOnly, 0, 1}, {wire.RCWriteOnly, mtu, mtu + 1}, {wire.RCWriteOnly, 1, 2 * mtu},
		{wire.RCWriteOnly, 4, 1 << 30}, {wire.RCWriteOnlyImm, 4, 3}, {wire.RCWriteOnlyImm, 4, 5},
		{wire.RCWriteFirst, mtu, 1}, {wire.RCWriteFirst, mtu, mtu}, {wire.RCWriteFirst, mtu, 1<<31 + 1},
		{wire.RCWriteOnly, 4, 0}, {wire.RCWriteOnlyImm, 4, 0}, {wire.RCWriteFirst, mtu, 0},
	} {
		r := Row{
			Name: fmt.Sprintf("%v of %d bytes, %d of them in the RETH", c.op, c.n, c.all), Recv: []int{8},
			Steps: []Step{{Send: []Packet{write(c.op, 0, c.n, c.all).Ask()}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		}
		switch {
		case c.op == wire.RCWriteOnly && c.n == mtu && c.all == mtu+1:
			r.Linux = linux("check_rkey knows the place of a packet in its message by the length that is left, not by its opcode",
				fine(1, 1, ack(0, 1)).holds(inMain(0, Payload(0, mtu))))
		case c.op == wire.RCWriteFirst && c.all == mtu:
			r.Linux = linux("check_rkey knows the place of a packet in its message by the length that is left, not by its opcode",
				fine(1, 0, ack(0, 0)).holds(inMain(0, Payload(0, mtu))).with(flushed(0)).open())
		case c.all > RegionSize:
			r.Linux = linux(byRange, refused(acc, 0, 0, flushed(0)))
		case c.op.HasImm() && c.all != 0:
			r = immediate(r, verbs.RemInvReqErr)
		case c.all == 0:
			r.Linux = panics("check_rkey looks no region up for a RETH of no bytes, and write_data_in copies what has come all the same: " +
				"rxe_mr_copy reads through a pointer that is nil, and any peer of a connection can bring the host down so")
		}
		rows = append(rows, r)
	}
	for _, c := range []struct {
		op wire.Opcode
		n  int
	}{
		{wire.RCWriteLast, 9}, {wire.RCWriteLast, 11}, {wire.RCWriteLastImm, 9}, {wire.RCWriteLastImm, 11}, {wire.RCWriteMiddle, mtu},
	} {
		rows = append(rows, immediate(Row{
			Name: fmt.Sprintf("%v of %d bytes where 10 are missing", c.op, c.n), Recv: []int{8},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, mtu+10).Ask()}}, {Send: []Packet{write(c.op, 1, c.n, 0)}}},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(inv, 1, 0))), WCs: []WC{flushed(0)}, Dead: true, Next: 1,
				Mem: []Mem{inMain(0, Payload(0, mtu))},
			},
		}, verbs.RemInvReqErr))
	}
	for _, n := range []uint32{1<<31 + 1, 1<<32 - 1} {
		rows = append(rows, Row{
			Name: fmt.Sprintf("RDMA READ of %d bytes", n), Depth: 1, Recv: []int{8},
			Steps: []Step{{Send: []Packet{read(0, Target{Region: Main}, n)}}},
			Want:  refused(inv, 0, 0, flushed(0)),
			Linux: linux(byRange+", and knows no other limit", refused(acc, 0, 0, flushed(0))),
		})
	}
	return rows
}

// pad makes the pad count n, and the padding n bytes more or fewer than there were.
func pad(n uint8) func(b []byte) []byte {
	return func(b []byte) []byte {
		was := b[1] >> 4 & 3
		b[1] = b[1]&^0x30 | n<<4
		if n > was {
			return append(b, make([]byte, n-was)...)
		}
		return b[:len(b)-int(was-n)]
	}
}

// padCount changes nothing but the count.
func padCount(n uint8) func(b []byte) []byte {
	return func(b []byte) []byte {
		b[1] = b[1]&^0x30 | n<<4
		return b
	}
}

// padRows: the payload is padded to a multiple of four bytes (IBTA 9.2.3).
func padRows() []Row {
	return []Row{
		{
			Name: "the pad count is what tells the length", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 4).edit(padCount(1)).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(received(0, 3)).holds(inRecv(0, 0, Payload(0, 3))),
		},
		{
			Name: "padding that is not zero", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 8).edit(padCount(3)).Ask()}}},
			Want:  fine(1, 1, ack(0, 1)).with(received(0, 5)).holds(inRecv(0, 0, Payload(0, 5))),
		},
		{
			Name: "padding in a SEND First", Recv: []int{4 * mtu},
			Steps: []Step{{Send: []Packet{send(wire.RCSendFirst, 0, mtu).edit(padCount(3)).Ask()}}},
			Want:  refused(inv, 0, 0, flushed(0)),
			Linux: linux(checksNothing, fine(1, 0, ack(0, 0)).with(failed(0, verbs.RemInvReqErr)).holds(inRecv(0, 0, Payload(0, mtu-3))).open()),
		},
		{
			Name: "padding in an RDMA WRITE First", Recv: []int{0},
			Steps: []Step{{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, 2*mtu).edit(padCount(1)).Ask()}}},
			Want:  refused(inv, 0, 0, flushed(0)),
		},
		{
			Name: "more padding than payload", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 0).edit(padCount(2)).Ask()}}},
			Want:  fine(0, 0),
		},
		{
			Name: "a length that is not a multiple of four", Recv: []int{8},
			Steps: []Step{{Send: []Packet{send(wire.RCSendOnly, 0, 5).edit(pad(0)).Ask()}}},
			Want:  fine(0, 0),
			Linux: linux(anyLength, fine(1, 1, ack(0, 1)).with(received(0, 5)).holds(inRecv(0, 0, Payload(0, 5)))),
		},
	}
}
