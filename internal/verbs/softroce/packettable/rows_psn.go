package packettable

import (
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// psnRows are packets that come at the wrong time (IBTA 9.7.4.1.1), and messages that meet no receive (9.7.5.2.8).
func psnRows() []Row {
	rows := []Row{
		{
			Name: "a gap is told once, until the packet that is missing comes",
			Steps: []Step{
				{Send: []Packet{writeNothing(2)}},
				{Send: []Packet{writeNothing(3)}},
				{Send: []Packet{writeNothing(0)}},
				{Send: []Packet{writeNothing(2)}},
				{Send: []Packet{writeNothing(1)}},
			},
			Want: Outcome{
				Answers: steps(one(nak(seq, 0, 0)), nil, one(ack(0, 1)), one(nak(seq, 1, 1)), one(ack(1, 2))), Next: 2, MSN: 2,
			},
		},
		{
			Name:  "as far ahead as can be",
			Steps: []Step{{Send: []Packet{writeNothing(1<<23 - 1)}}},
			Want:  fine(0, 0, nak(seq, 0, 0)),
		},
		{
			// Before the first request the kernel acknowledges PSN 0xffffff, wherever PSNs begin.
			Name:  "as far behind as can be",
			Steps: []Step{{Send: []Packet{writeNothing(0)}}, {Send: []Packet{writeNothing(1 - 1<<23)}}},
			Want:  Outcome{Answers: steps(one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1},
		},
		{
			Name: "a READ ahead", Depth: 1,
			Steps: []Step{{Send: []Packet{read(1, Target{Region: Main}, 1)}}},
			Want:  fine(0, 0, nak(seq, 0, 0)),
		},
		{
			Name: "an atomic ahead", Depth: 1,
			Steps: []Step{{Send: []Packet{fetchAdd(1, Target{Region: Main}, 1)}}},
			Want:  fine(0, 0, nak(seq, 0, 0)),
		},
		{
			Name:  "the PSN counts before anything else is looked at",
			Steps: []Step{{Send: []Packet{send(wire.RCSendMiddle, 1, 3)}}},
			Want:  fine(0, 0, nak(seq, 0, 0)),
		},
		{
			Name: "a gap in the middle of a message", Recv: []int{4 * mtu},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}},
				{Send: []Packet{send(wire.RCSendLast, 2, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendMiddle, 1, mtu), send(wire.RCSendLast, 2, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 0)), one(nak(seq, 1, 0)), one(ack(2, 1))), Next: 3, MSN: 1, WCs: []WC{received(0, 2*mtu+4)},
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, mtu)), inRecv(0, 2*mtu, Payload(2, 4))},
			},
		},
		{
			Name: "what follows a message that met no receive is not a gap",
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 1, 4).Ask()}},
				{Recv: []int{4, 4}, Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 1, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(notReady(anyTimer, 0, 0)), nil, one(ack(0, 1)), one(ack(1, 2))), Next: 2, MSN: 2,
				WCs: []WC{received(0, 4), received(1, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4)), inRecv(1, 0, Payload(1, 4))},
			},
			Linux: linux("an RNR NAK does not count as one for check_psn, which answers the next packet by a NAK of its own. Its requester must "+
				"ignore that, or go back at once; one NAK is enough to make it start over (IBTA 9.7.5.2.8)", Outcome{
				Answers: steps(one(notReady(anyTimer, 0, 0)), one(nak(seq, 0, 0)), one(ack(0, 1)), one(ack(1, 2))), Next: 2, MSN: 2,
				WCs: []WC{received(0, 4), received(1, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4)), inRecv(1, 0, Payload(1, 4))},
			}),
		},
		{
			Name: "a requester starts over without what is missing",
			Steps: []Step{
				{Send: []Packet{writeNothing(1)}},
				{Send: []Packet{writeNothing(2)}},
				{Send: []Packet{writeNothing(1)}},
				{Send: []Packet{writeNothing(0)}},
			},
			// softroce deviates: its NAK is repeated, which spares a requester whose packet is lost once more a timeout.
			Want: Outcome{
				Answers: steps(one(nak(seq, 0, 0)), nil, one(nak(seq, 0, 0)), one(ack(0, 1))), Next: 1, MSN: 1,
			},
			Linux: linux("check_psn sends one NAK until the expected packet comes, as the specification has it (IBTA 9.7.5.2.4)", Outcome{
				Answers: steps(one(nak(seq, 0, 0)), nil, nil, one(ack(0, 1))), Next: 1, MSN: 1,
			}),
		},
	}
	for _, code := range []uint8{1, 12, 31} {
		rows = append(rows, Row{
			Name: fmt.Sprintf("no receive, timer code %d", code), Timer: code,
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4)}},
				{Recv: []int{4}, Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(notReady(code, 0, 0)), one(notReady(code, 0, 0)), one(ack(0, 1))), Next: 1, MSN: 1,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
		})
	}
	for _, p := range []Packet{
		send(wire.RCSendOnly, 0, 0), send(wire.RCSendOnlyImm, 0, 5), send(wire.RCSendOnlyInv, 0, 5), send(wire.RCSendFirst, 0, mtu),
		write(wire.RCWriteOnlyImm, 0, 5, 5),
	} {
		rows = append(rows, Row{
			Name:  fmt.Sprintf("no receive for %v", p.Opcode),
			Steps: []Step{{Send: []Packet{p}}},
			Want:  fine(0, 0, notReady(anyTimer, 0, 0)),
		})
	}
	return append(rows, Row{
		Name: "no receive for RC RDMA WRITE Last with Immediate",
		Steps: []Step{
			{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, mtu+5).Ask()}},
			{Send: []Packet{write(wire.RCWriteLastImm, 1, 5, 0).imm(3)}},
			{Recv: []int{0}, Send: []Packet{write(wire.RCWriteLastImm, 1, 5, 0).imm(3).Ask()}},
		},
		Want: Outcome{
			Answers: steps(one(ack(0, 0)), one(notReady(anyTimer, 1, 0)), one(ack(1, 1))), Next: 2, MSN: 1,
			WCs: []WC{{Op: recvWithImm, Len: mtu + 5, Imm: 3}},
			Mem: []Mem{inMain(0, Payload(0, mtu)), inMain(mtu, Payload(1, 5))},
		},
	})
}

const (
	currentMSN = "prepare_ack_packet puts the MSN of now into repeated responses. Requesters that look at it only take the latest"
	goesOn     = "read_reply answers a part by the opcodes that the packets had the first time, not as a request of its own"
)

// duplicateRows are requests that come again (IBTA 9.7.5.1.4).
func duplicateRows() []Row {
	main := Target{Region: Main}
	return []Row{
		{
			Name: "SEND Only again", Recv: []int{8, 8},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4)}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
		},
		{
			Name: "SEND Only with Immediate again", Recv: []int{8, 8},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnlyImm, 0, 4).imm(5).Ask()}},
				{Send: []Packet{send(wire.RCSendOnlyImm, 0, 4).imm(6).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1,
				WCs: []WC{{Op: verbs.WCRecv, Len: 4, Imm: 5}}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
		},
		{
			Name: "all packets of an RDMA WRITE again",
			Steps: []Step{
				{Send: []Packet{
					write(wire.RCWriteFirst, 0, mtu, 2*mtu+4), write(wire.RCWriteMiddle, 1, mtu, 0), write(wire.RCWriteLast, 2, 4, 0).Ask(),
				}},
				{Send: []Packet{write(wire.RCWriteFirst, 0, mtu, 2*mtu+4).Ask()}},
				{Send: []Packet{write(wire.RCWriteMiddle, 1, mtu, 0).Ask()}},
				{Send: []Packet{write(wire.RCWriteLast, 2, 4, 0).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(2, 1)), one(ack(2, 1)), one(ack(2, 1)), one(ack(2, 1))), Next: 3, MSN: 1,
				Mem: []Mem{inMain(0, Payload(0, mtu)), inMain(mtu, Payload(1, mtu)), inMain(2*mtu, Payload(2, 4))},
			},
		},
		{
			Name: "a SEND's Middle again", Recv: []int{4 * mtu},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendFirst, 0, mtu), send(wire.RCSendMiddle, 1, mtu).Ask()}},
				{Send: []Packet{send(wire.RCSendMiddle, 1, mtu).Ask()}},
				{Send: []Packet{send(wire.RCSendLast, 2, 4).Ask()}},
				{Send: []Packet{send(wire.RCSendFirst, 0, mtu).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(1, 0)), one(ack(1, 0)), one(ack(2, 1)), one(ack(2, 1))), Next: 3, MSN: 1,
				WCs: []WC{received(0, 2*mtu+4)},
				Mem: []Mem{inRecv(0, 0, Payload(0, mtu)), inRecv(0, mtu, Payload(1, mtu)), inRecv(0, 2*mtu, Payload(2, 4))},
			},
		},
		{
			Name: "RDMA WRITE Only again is not executed",
			Steps: []Step{
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).Ask()}},
				{Send: []Packet{request(wire.RCWriteOnly, 0, []byte("evil")).to(main, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1, Mem: []Mem{inMain(0, Payload(0, 4))},
			},
		},
		{
			Name: "RDMA WRITE Only with Immediate again", Recv: []int{0, 0},
			Steps: []Step{
				{Send: []Packet{write(wire.RCWriteOnlyImm, 0, 4, 4).imm(1).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnlyImm, 0, 4, 4).imm(1).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1,
				WCs: []WC{{Op: recvWithImm, Len: 4, Imm: 1}}, Mem: []Mem{inMain(0, Payload(0, 4))},
			},
		},
		{
			Name: "what a duplicate says does not matter: its key is bad",
			Steps: []Step{
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).Ask()}},
				{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(Target{Region: Closed}, 4)}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), one(ack(0, 1))), Next: 1, MSN: 1, Mem: []Mem{inMain(0, Payload(0, 4))},
			},
		},
		{
			Name: "RDMA READ again is executed again", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 2*mtu+1)}},
				{Send: []Packet{write(wire.RCWriteOnly, 3, 4, 4).Ask()}},
				{Send: []Packet{read(0, main, 2*mtu+1)}},
			},
			Want: Outcome{
				Answers: steps(
					reply(0, 1, Memory(0, 2*mtu+1)), one(ack(3, 2)), reply(0, 1, cat(Payload(3, 4), Memory(4, 2*mtu-3))),
				),
				Next: 4, MSN: 2, Mem: []Mem{inMain(0, Payload(3, 4))},
			},
			Linux: linux(currentMSN, Outcome{
				Answers: steps(
					reply(0, 1, Memory(0, 2*mtu+1)), one(ack(3, 2)), reply(0, 2, cat(Payload(3, 4), Memory(4, 2*mtu-3))),
				),
				Next: 4, MSN: 2, Mem: []Mem{inMain(0, Payload(3, 4))},
			}),
		},
		{
			Name: "the rest of a READ again", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 3*mtu)}},
				{Send: []Packet{read(1, Target{Region: Main, Off: mtu}, 2*mtu)}},
			},
			Want: Outcome{
				Answers: steps(reply(0, 1, Memory(0, 3*mtu)), reply(1, 1, Memory(mtu, 2*mtu))), Next: 3, MSN: 1,
			},
			Linux: linux(goesOn, Outcome{
				Answers: steps(reply(0, 1, Memory(0, 3*mtu)), reply(0, 1, Memory(0, 3*mtu))[1:]), Next: 3, MSN: 1,
			}),
		},
		{
			Name: "the last packet of a READ again", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 2*mtu+5)}},
				{Send: []Packet{read(2, Target{Region: Main, Off: 2 * mtu}, 5)}},
			},
			Want: Outcome{
				Answers: steps(reply(0, 1, Memory(0, 2*mtu+5)), reply(2, 1, Memory(2*mtu, 5))), Next: 3, MSN: 1,
			},
			Linux: linux(goesOn, Outcome{
				Answers: steps(reply(0, 1, Memory(0, 2*mtu+5)), reply(0, 1, Memory(0, 2*mtu+5))[2:]), Next: 3, MSN: 1,
			}),
		},
		{
			Name: "a part of a READ again, and then all of it", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 3*mtu)}},
				{Send: []Packet{read(1, Target{Region: Main, Off: mtu}, 2*mtu)}},
				{Send: []Packet{read(0, main, 3*mtu)}},
			},
			Want: Outcome{
				Answers: steps(reply(0, 1, Memory(0, 3*mtu)), reply(1, 1, Memory(mtu, 2*mtu)), reply(0, 1, Memory(0, 3*mtu))),
				Next:    3, MSN: 1,
			},
			Linux: linux(goesOn+". It also moves what it remembers as the beginning, so that it does not know the whole READ any more", Outcome{
				Answers: steps(reply(0, 1, Memory(0, 3*mtu)), reply(0, 1, Memory(0, 3*mtu))[1:], nil), Next: 3, MSN: 1,
			}),
		},
		{
			Name: "a READ again with another key, address or length", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 2*mtu)}},
				{Send: []Packet{read(0, Target{Region: ReadOnly}, 2*mtu)}},
				{Send: []Packet{read(0, Target{Region: Main, KeyXor: 1}, 2*mtu)}},
				{Send: []Packet{read(0, Target{Region: Main, Off: -1}, 2*mtu)}},
				{Send: []Packet{read(0, main, 2*mtu+1)}},
				{Send: []Packet{read(1, Target{Region: Main, Off: mtu}, mtu+1)}},
			},
			Want: Outcome{Answers: steps(reply(0, 1, Memory(0, 2*mtu)), nil, nil, nil, nil, nil), Next: 2, MSN: 1},
		},
		{
			Name: "READs of which only the last are remembered", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 1)}},
				{Send: []Packet{read(1, main, 2)}},
				{Send: []Packet{read(2, main, 3)}},
				{Send: []Packet{read(0, main, 1)}},
				{Send: []Packet{read(1, main, 2)}},
			},
			Want: Outcome{
				Answers: steps(reply(0, 1, Memory(0, 1)), reply(1, 2, Memory(0, 2)), reply(2, 3, Memory(0, 3)), nil, reply(1, 2, Memory(0, 2))),
				Next:    3, MSN: 3,
			},
			Linux: linux(currentMSN, Outcome{
				Answers: steps(reply(0, 1, Memory(0, 1)), reply(1, 2, Memory(0, 2)), reply(2, 3, Memory(0, 3)), nil, reply(1, 3, Memory(0, 2))),
				Next:    3, MSN: 3,
			}),
		},
		{
			Name: "a READ where there was a WRITE", Depth: 1,
			Steps: []Step{
				{Send: []Packet{writeNothing(0)}},
				{Send: []Packet{read(0, main, 1)}},
			},
			Want: Outcome{Answers: steps(one(ack(0, 1)), nil), Next: 1, MSN: 1},
		},
		{
			Name: "CmpSwap again has the old result", Depth: 2,
			Steps: []Step{
				{Send: []Packet{compareSwap(0, main, word(0), 5)}},
				{Send: []Packet{compareSwap(0, main, word(0), 5)}},
				{Send: []Packet{compareSwap(1, main, 5, 6)}},
				{Send: []Packet{compareSwap(0, main, word(0), 5)}},
			},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), one(atomicAck(0, 1, word(0))), one(atomicAck(1, 2, 5)), one(atomicAck(0, 1, word(0)))),
				Next:    2, MSN: 2, Mem: []Mem{inMain(0, bytesOf(6))},
			},
			Linux: linux(currentMSN, Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), one(atomicAck(0, 1, word(0))), one(atomicAck(1, 2, 5)), one(atomicAck(0, 2, word(0)))),
				Next:    2, MSN: 2, Mem: []Mem{inMain(0, bytesOf(6))},
			}),
		},
		{
			Name: "FetchAdd again is not executed", Depth: 1,
			Steps: []Step{
				{Send: []Packet{fetchAdd(0, main, 3)}},
				{Send: []Packet{fetchAdd(0, main, 3)}},
			},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), one(atomicAck(0, 1, word(0)))), Next: 1, MSN: 1,
				Mem: []Mem{inMain(0, bytesOf(word(0)+3))},
			},
		},
		{
			Name: "an atomic that is forgotten", Depth: 1,
			Steps: []Step{
				{Send: []Packet{fetchAdd(0, main, 3)}},
				{Send: []Packet{fetchAdd(1, main, 4)}},
				{Send: []Packet{fetchAdd(0, main, 3)}},
			},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), one(atomicAck(1, 2, word(0)+3)), nil), Next: 2, MSN: 2,
				Mem: []Mem{inMain(0, bytesOf(word(0)+7))},
			},
		},
		{
			Name: "a READ where there was an atomic", Depth: 2,
			Steps: []Step{
				{Send: []Packet{fetchAdd(0, main, 3)}},
				{Send: []Packet{read(0, main, 8)}},
			},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(0))), nil), Next: 1, MSN: 1,
				Mem: []Mem{inMain(0, bytesOf(word(0)+3))},
			},
		},
		{
			Name: "an atomic where there was a READ", Depth: 2,
			Steps: []Step{
				{Send: []Packet{read(0, main, 8)}},
				{Send: []Packet{fetchAdd(0, main, 3)}},
			},
			Want: Outcome{Answers: steps(reply(0, 1, Memory(0, 8)), nil), Next: 1, MSN: 1},
			Linux: linux("duplicate_request does not look at what kind of request it has kept, and answers with what it keeps of READs in the same "+
				"place: an address", Outcome{
				Answers: steps(reply(0, 1, Memory(0, 8)), one(atomicAck(0, 1, anyOriginal))), Next: 1, MSN: 1,
			}),
		},
		{
			Name: "a SEND before a READ again", Depth: 1, Recv: []int{4},
			Steps: []Step{
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
				{Send: []Packet{read(1, main, 2*mtu)}},
				{Send: []Packet{send(wire.RCSendOnly, 0, 4).Ask()}},
			},
			Want: Outcome{
				Answers: steps(one(ack(0, 1)), reply(1, 2, Memory(0, 2*mtu)), one(ack(2, 2))), Next: 3, MSN: 2,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			},
			Linux: linux("duplicate_request acknowledges up to the last request that was no READ. Both say what has been done; "+
				"what lies behind a READ is acknowledged by its responses", Outcome{
				Answers: steps(one(ack(0, 1)), reply(1, 2, Memory(0, 2*mtu)), one(ack(0, 2))), Next: 3, MSN: 2,
				WCs: []WC{received(0, 4)}, Mem: []Mem{inRecv(0, 0, Payload(0, 4))},
			}),
		},
	}
}
