package packettable

import (
	"fmt"
	"math"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// unknown is a row with a request that the kernel does not know, and what it makes of it.
func unknown(r Row, o Outcome) Row {
	r.Linux = linux("rxe_rcv drops opcodes that rxe_opcode does not have: FLUSH and ATOMIC WRITE came with later kernels", o)
	return r
}

// placementRows are FLUSH and ATOMIC WRITE (IBTA annex A19), which are answered by an RDMA READ Response Only without data.
func placementRows() []Row { return cat(atomicWriteRows(), flushRows(), persistenceRows()) }

func atomicWrite(psn int, at Target, n int) Packet {
	return request(wire.RCAtomicWrite, psn, Payload(psn, n)).to(at, uint32(n)).Ask()
}

func done(psn int, msn uint32) []Answer { return reply(psn, msn, nil) }

func atomicWriteRows() []Row {
	good := Target{Region: Main, Off: 40}
	rows := []Row{
		unknown(Row{
			Name: "ATOMIC WRITE", Depth: 1,
			Steps: []Step{{Send: []Packet{atomicWrite(0, good, 8)}}},
			Want:  fine(1, 1, done(0, 1)...).holds(inMain(40, Payload(0, 8))),
		}, fine(0, 0)),
		unknown(Row{
			Name: "ATOMIC WRITE again is not executed", Depth: 1,
			Steps: []Step{
				{Send: []Packet{atomicWrite(0, good, 8)}},
				{Send: []Packet{write(wire.RCWriteOnly, 1, 4, 4).to(good, 4).Ask()}},
				{Send: []Packet{atomicWrite(0, good, 8)}},
			},
			Want: Outcome{
				Answers: steps(done(0, 1), one(ack(1, 2)), done(0, 1)), Next: 2, MSN: 2,
				Mem: []Mem{inMain(40, Payload(1, 4)), inMain(44, Payload(0, 8)[4:])},
			},
		}, fine(0, 0).answering(nil, one(nak(seq, 0, 0)), nil)),
		{
			Name: "an ATOMIC WRITE where there was a FetchAdd", Depth: 1,
			Steps: []Step{{Send: []Packet{fetchAdd(0, good, 1)}}, {Send: []Packet{atomicWrite(0, good, 8)}}},
			Want: Outcome{
				Answers: steps(one(atomicAck(0, 1, word(40))), nil), Next: 1, MSN: 1, Mem: []Mem{inMain(40, bytesOf(word(40)+1))},
			},
		},
		unknown(Row{
			Name: "an ATOMIC WRITE ahead", Depth: 1,
			Steps: []Step{{Send: []Packet{atomicWrite(1, good, 8)}}},
			Want:  fine(0, 0, nak(seq, 0, 0)),
		}, fine(0, 0)),
	}
	refuse := func(name string, syndrome uint8, depth uint8, p Packet) {
		rows = append(rows, unknown(Row{
			Name: "ATOMIC WRITE, " + name, Depth: depth, Recv: []int{8},
			Steps: []Step{{Send: []Packet{p}}},
			Want:  refused(syndrome, 0, 0, flushed(0)),
		}, fine(0, 0)))
	}
	refuse("none granted", inv, 0, atomicWrite(0, good, 8))
	for _, n := range []int{0, 4, 7, 12, 16} {
		refuse(fmt.Sprintf("%d bytes", n), inv, 1, atomicWrite(0, good, n))
		p := atomicWrite(0, good, 8)
		p.RETH.Length = uint32(n)
		refuse(fmt.Sprintf("8 bytes, %d of them in the RETH", n), inv, 1, p)
	}
	refuse("address that is not a multiple of 8", inv, 1, atomicWrite(0, Target{Region: Main, Off: 4}, 8))
	for _, b := range badTargets(8, ReadOnly) {
		refuse(b.name, acc, 1, atomicWrite(0, b.at, 8))
	}
	return rows
}

// badTarget is a way to name memory that is not the peer's.
type badTarget struct {
	name string
	at   Target
}

// badTargets are such ways for n bytes, in steps of 8. wrong has not the access that it takes.
func badTargets(n int64, wrong Region) []badTarget {
	return []badTarget{
		{"another key", Target{Region: Main, KeyXor: 1}},
		{"a region that is closed", Target{Region: Closed}},
		{"another domain", Target{Region: Foreign}},
		{"no access", Target{Region: wrong}},
		{"begins before the region", Target{Region: Flushable, Off: -8}},
		{"ends behind the region", Target{Region: Flushable, Off: RegionSize - n + 8}},
		{"wraps around", Target{Region: Flushable, VA: math.MaxUint64 &^ 7}},
	}
}

func flush(psn int, at Target, n uint32, placement, level uint8) Packet {
	p := request(wire.RCFlush, psn, nil).to(at, n).Ask()
	p.FETH = wire.NewFETH(placement, level)
	return p
}

func flushRows() []Row {
	good := Target{Region: Flushable}
	var rows []Row
	taken := func(name string, p Packet) {
		rows = append(rows, unknown(Row{
			Name: "FLUSH, " + name, Depth: 1, Steps: []Step{{Send: []Packet{p}}}, Want: fine(1, 1, done(0, 1)...),
		}, fine(0, 0)))
	}
	taken("global visibility of a range", flush(0, good, RegionSize, wire.PlacementGlobal, wire.FlushRange))
	taken("global visibility of a region", flush(0, good, 0, wire.PlacementGlobal, wire.FlushMR))
	taken("reserved bits", flush(0, good, 8, wire.PlacementGlobal, wire.FlushRange).edit(func(b []byte) []byte {
		b[12], b[13], b[14], b[15] = 0xff, 0xff, 0xff, b[15]|0xc0
		return b
	}))
	taken("without AckReq", func() Packet {
		p := flush(0, good, 8, wire.PlacementGlobal, wire.FlushRange)
		p.AckReq = false
		return p
	}())
	taken("no bytes, whatever the address", flush(0, Target{Region: Flushable, VA: 8}, 0, wire.PlacementGlobal, wire.FlushMR))
	taken("a region, whatever the range", flush(0, Target{Region: Flushable, VA: 8}, math.MaxUint32, wire.PlacementGlobal, wire.FlushMR))
	rows = append(rows, unknown(Row{
		Name: "FLUSH of what was written before", Depth: 1,
		Steps: []Step{
			{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(good, 4), flush(1, good, 4, wire.PlacementGlobal, wire.FlushRange)}},
			{Send: []Packet{flush(1, good, 4, wire.PlacementGlobal, wire.FlushRange)}},
		},
		Want: Outcome{
			Answers: steps(done(1, 2), done(1, 2)), Next: 2, MSN: 2, Mem: []Mem{{Region: Flushable, Data: Payload(0, 4)}},
		},
	}, fine(1, 1).answering(nil, nil).holds(Mem{Region: Flushable, Data: Payload(0, 4)})))
	refuse := func(name string, syndrome uint8, depth uint8, p Packet) {
		rows = append(rows, unknown(Row{
			Name: "FLUSH, " + name, Depth: depth, Recv: []int{8},
			Steps: []Step{{Send: []Packet{p}}},
			Want:  refused(syndrome, 0, 0, flushed(0)),
		}, fine(0, 0)))
	}
	refuse("none granted", inv, 0, flush(0, good, 8, wire.PlacementGlobal, wire.FlushRange))
	refuse("no placement", inv, 1, flush(0, good, 8, 0, wire.FlushRange))
	refuse("placement that is reserved", inv, 1, flush(0, good, 8, wire.PlacementGlobal|4, wire.FlushRange))
	refuse("level that is reserved", inv, 1, flush(0, good, 8, wire.PlacementGlobal, 2))
	refuse("another level that is reserved", inv, 1, flush(0, good, 8, wire.PlacementGlobal, 3))
	refuse("more than a message has", inv, 1, flush(0, good, 1<<31+1, wire.PlacementGlobal, wire.FlushRange))
	refuse("persistence of memory that has none", acc, 1, flush(0, good, 8, wire.PlacementPersistent, wire.FlushRange))
	refuse("both", acc, 1, flush(0, good, 8, wire.PlacementGlobal|wire.PlacementPersistent, wire.FlushRange))
	for _, b := range badTargets(16, Main) {
		refuse(b.name, acc, 1, flush(0, b.at, 16, wire.PlacementGlobal, wire.FlushRange))
		if b.at.Off == 0 && b.at.VA == 0 {
			refuse("a region, "+b.name, acc, 1, flush(0, b.at, 0, wire.PlacementGlobal, wire.FlushMR))
		}
	}
	return rows
}

// persistenceRows are FLUSHes for persistence, and what is no FLUSH or ATOMIC WRITE.
func persistenceRows() []Row {
	region := Target{Region: Persistent}
	at := func(off int64) Target { return Target{Region: Persistent, Off: off} }
	const both = wire.PlacementGlobal | wire.PlacementPersistent
	var rows []Row
	synced := func(name string, p Packet, spans ...Span) {
		o := fine(1, 1, done(0, 1)...)
		o.Synced = spans
		rows = append(rows, unknown(Row{Name: "FLUSH, " + name, Depth: 1, Steps: []Step{{Send: []Packet{p}}}, Want: o}, fine(0, 0)))
	}
	synced("persistence of a range", flush(0, at(8), 16, wire.PlacementPersistent, wire.FlushRange), Span{8, 16})
	synced("persistence of the last byte", flush(0, at(RegionSize-1), 1, wire.PlacementPersistent, wire.FlushRange), Span{RegionSize - 1, 1})
	synced("persistence of a region", flush(0, at(8), 16, wire.PlacementPersistent, wire.FlushMR), Span{0, RegionSize})
	synced("visibility and persistence", flush(0, region, 3, both, wire.FlushRange), Span{0, 3})
	synced("only visibility where there is persistence", flush(0, region, 3, wire.PlacementGlobal, wire.FlushRange))
	synced("persistence of no bytes", flush(0, region, 0, wire.PlacementPersistent, wire.FlushRange))
	rows = append(rows, unknown(Row{
		Name: "FLUSH, persistence of what was written, and again", Depth: 1,
		Steps: []Step{
			{Send: []Packet{write(wire.RCWriteOnly, 0, 4, 4).to(region, 4).Ask()}},
			{Send: []Packet{flush(1, region, 4, wire.PlacementPersistent, wire.FlushRange)}},
			{Send: []Packet{flush(1, region, 4, wire.PlacementPersistent, wire.FlushRange)}},
			{Send: []Packet{read(2, region, 4)}},
		},
		Want: Outcome{
			Answers: steps(one(ack(0, 1)), done(1, 2), done(1, 2), reply(2, 3, Payload(0, 4))), Next: 3, MSN: 3,
			Mem: []Mem{{Region: Persistent, Data: Payload(0, 4)}}, Synced: []Span{{0, 4}},
		},
	}, Outcome{
		Answers: steps(one(ack(0, 1)), nil, nil, one(nak(seq, 1, 1))), Next: 1, MSN: 1, Mem: []Mem{{Region: Persistent, Data: Payload(0, 4)}},
	}))
	failed := refused(remOp, 0, 1, flushed(0)) // it counts when it begins, as a READ does
	failed.Synced = []Span{{unpersistent, 8}}
	rows = append(rows, unknown(Row{
		Name: "FLUSH, persistence that fails", Depth: 1, Recv: []int{8},
		Steps: []Step{{Send: []Packet{flush(0, at(unpersistent), 8, wire.PlacementPersistent, wire.FlushRange)}}},
		Want:  failed,
	}, fine(0, 0)))
	for _, b := range []badTarget{
		{"ends behind the region", at(RegionSize - 8)}, {"begins before it", at(-8)}, {"wraps around", Target{Region: Persistent, VA: math.MaxUint64 &^ 7}},
		{"another key", Target{Region: Persistent, KeyXor: 1}},
	} {
		rows = append(rows, unknown(Row{
			Name: "FLUSH, persistence, " + b.name, Depth: 1, Recv: []int{8},
			Steps: []Step{{Send: []Packet{flush(0, b.at, 16, both, wire.FlushRange)}}},
			Want:  refused(acc, 0, 0, flushed(0)),
		}, fine(0, 0)))
	}
	dropped := func(name string, p Packet) {
		rows = append(rows, Row{Name: name, Depth: 1, Recv: []int{8}, Steps: []Step{{Send: []Packet{p}}}, Want: fine(0, 0)})
	}
	good := flush(0, Target{Region: Flushable}, 8, wire.PlacementGlobal, wire.FlushRange)
	dropped("FLUSH, half a FETH", good.edit(func(b []byte) []byte { return b[:14] }))
	dropped("FLUSH, no RETH", good.edit(func(b []byte) []byte { return b[:16] }))
	dropped("FLUSH, half a RETH", good.edit(func(b []byte) []byte { return b[:24] }))
	dropped("FLUSH with payload", good.edit(func(b []byte) []byte { return append(b, 1, 2, 3, 4) }))
	dropped("ATOMIC WRITE, half a RETH", atomicWrite(0, Target{Region: Main}, 8).edit(func(b []byte) []byte { return b[:20] }))
	return rows
}
