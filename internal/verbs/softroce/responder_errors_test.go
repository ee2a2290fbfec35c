package softroce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// refusal is a request that must end the connection.
type refusal struct {
	name     string
	packets  func(p *peer) []wire.Packet
	syndrome uint8
	msn      uint32
	at       uint32       // PSN of the NAK
	recv     verbs.Status // outcome of the first receive; 0: it is flushed like the others
}

func runRefusals(t *testing.T, refusals []refusal) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256})
				p.end.recv(verbs.RecvWR{ID: 1, SGL: p.end.sgl(0, 300)}, verbs.RecvWR{ID: 2, SGL: p.end.sgl(0, 300)})
				p.end.send(verbs.SendWR{ID: 3, Op: verbs.OpSend}, verbs.SendWR{ID: 4, Op: verbs.OpSend})
				p.take()
				p.send(c.packets(p)...)
				require.Equal(t, []answer{{peerPSN + c.at, c.syndrome, c.msn}}, p.answers())
				want := []outcome{{3, verbs.WRFlushErr}, {4, verbs.WRFlushErr}, {1, verbs.WRFlushErr}, {2, verbs.WRFlushErr}}
				if c.recv != 0 {
					want = []outcome{{1, c.recv}, {3, verbs.WRFlushErr}, {4, verbs.WRFlushErr}, {2, verbs.WRFlushErr}}
				}
				require.Equal(t, want, p.end.outcomes())

				// The dead queue pair executes nothing. It repeats the refusal, should
				// the first have been lost, and says nothing to what came behind.
				again := ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+c.at, []byte{1}), 9000, 1))
				p.send(again, again)
				require.Equal(t, []answer{{peerPSN + c.at, c.syndrome, c.msn}}, p.answers())
				p.send(ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN+c.at+1, []byte{1}), 9000, 1)))
				require.Empty(t, p.take())
				require.Zero(t, p.end.mem[9000])
				p.end.send(verbs.SendWR{ID: 5, Op: verbs.OpSend})
				p.end.recv(verbs.RecvWR{ID: 6})
				require.Equal(t, []outcome{{5, verbs.WRFlushErr}, {6, verbs.WRFlushErr}}, p.end.outcomes())
			})
		})
	}
}

func TestInvalidRequestsEndTheConnection(t *testing.T) {
	full := make([]byte, 256)
	one := func(op wire.Opcode, n int) func(*peer) []wire.Packet {
		return func(p *peer) []wire.Packet {
			return []wire.Packet{p.writeTo(packet(op, peerPSN, make([]byte, n)), 0, n)}
		}
	}
	after := func(first, second wire.Opcode, n int) func(*peer) []wire.Packet {
		return func(p *peer) []wire.Packet {
			return []wire.Packet{
				p.writeTo(packet(first, peerPSN, full), 0, 300),
				p.writeTo(packet(second, peerPSN+1, make([]byte, n)), 0, n),
			}
		}
	}
	write := func(op wire.Opcode, n, length int) func(*peer) []wire.Packet {
		return func(p *peer) []wire.Packet {
			return []wire.Packet{p.writeTo(packet(op, peerPSN, make([]byte, n)), 0, length)}
		}
	}
	inv := wire.SyndromeInvalidReq
	runRefusals(t, []refusal{
		{"send middle first", one(wire.RCSendMiddle, 256), inv, 0, 0, 0},
		{"send last first", one(wire.RCSendLast, 4), inv, 0, 0, 0},
		{"send last imm first", one(wire.RCSendLastImm, 4), inv, 0, 0, 0},
		{"write middle first", one(wire.RCWriteMiddle, 256), inv, 0, 0, 0},
		{"write last first", one(wire.RCWriteLast, 4), inv, 0, 0, 0},
		{"send first twice", after(wire.RCSendFirst, wire.RCSendFirst, 256), inv, 0, 1, 0},
		{"send only in a send", after(wire.RCSendFirst, wire.RCSendOnly, 4), inv, 0, 1, 0},
		{"write only in a send", after(wire.RCSendFirst, wire.RCWriteOnly, 4), inv, 0, 1, 0},
		{"write last in a send", after(wire.RCSendFirst, wire.RCWriteLast, 44), inv, 0, 1, 0},
		{"send last in a write", after(wire.RCWriteFirst, wire.RCSendLast, 44), inv, 0, 1, 0},
		{"send middle in a write", after(wire.RCWriteFirst, wire.RCSendMiddle, 256), inv, 0, 1, 0},
		{"write first twice", after(wire.RCWriteFirst, wire.RCWriteFirst, 256), inv, 0, 1, 0},

		{"send first short", one(wire.RCSendFirst, 255), inv, 0, 0, 0},
		{"send first empty", one(wire.RCSendFirst, 0), inv, 0, 0, 0},
		{"send only beyond the MTU", one(wire.RCSendOnly, 257), inv, 0, 0, 0},
		{"send middle long", after(wire.RCSendFirst, wire.RCSendMiddle, 260), inv, 0, 1, 0},
		{"send last empty", after(wire.RCSendFirst, wire.RCSendLast, 0), inv, 0, 1, 0},
		{"write last empty", after(wire.RCWriteFirst, wire.RCWriteLast, 0), inv, 0, 1, 0},
		{"write last short", after(wire.RCWriteFirst, wire.RCWriteLast, 43), inv, 0, 1, 0},
		{"write last long", after(wire.RCWriteFirst, wire.RCWriteLast, 45), inv, 0, 1, 0},
		{"write middle where last is due", after(wire.RCWriteFirst, wire.RCWriteMiddle, 256), inv, 0, 1, 0},
		{"write only shorter than it says", write(wire.RCWriteOnly, 7, 8), inv, 0, 0, 0},
		{"write only longer than it says", write(wire.RCWriteOnly, 9, 8), inv, 0, 0, 0},
		{"write only of nothing that says more", write(wire.RCWriteOnly, 0, 8), inv, 0, 0, 0},
		{"write first of one packet", write(wire.RCWriteFirst, 256, 256), inv, 0, 0, 0},
		{"write of more than two gigabytes", func(p *peer) []wire.Packet {
			h := p.writeTo(packet(wire.RCWriteFirst, peerPSN, make([]byte, 256)), 0, 0)
			h.RETH.Length = maxMsgSize + 1
			return []wire.Packet{h}
		}, inv, 0, 0, 0},

		{"read", one(wire.RCReadRequest, 0), inv, 0, 0, 0},
		{"compare and swap", one(wire.RCCompareSwap, 0), inv, 0, 0, 0},
		{"fetch and add", one(wire.RCFetchAdd, 0), inv, 0, 0, 0},
		{"flush", one(wire.RCFlush, 0), inv, 0, 0, 0},
		{"atomic write", one(wire.RCAtomicWrite, 8), inv, 0, 0, 0},
		{"send last with invalidate first", one(wire.RCSendLastInv, 8), inv, 0, 0, 0},
		{"send only with invalidate in a send", after(wire.RCSendFirst, wire.RCSendOnlyInv, 8), inv, 0, 1, 0},
		{"send last with invalidate in a write", after(wire.RCWriteFirst, wire.RCSendLastInv, 44), inv, 0, 1, 0},

		{"send longer than its receive", func(p *peer) []wire.Packet {
			return []wire.Packet{packet(wire.RCSendFirst, peerPSN, full), packet(wire.RCSendLast, peerPSN+1, full[:45])}
		}, inv, 0, 1, verbs.LocLenErr},
		{"after good ones in the batch", func(p *peer) []wire.Packet {
			return []wire.Packet{
				ask(p.writeTo(packet(wire.RCWriteOnly, peerPSN, []byte{1}), 0, 1)),
				packet(wire.RCSendMiddle, peerPSN+1, full),
				p.writeTo(packet(wire.RCWriteOnly, peerPSN+2, []byte{1}), 9000, 1),
			}
		}, inv, 1, 1, 0},
		{"pad in a first", func(p *peer) []wire.Packet {
			h := packet(wire.RCSendFirst, peerPSN, full[:253]) // and 3 bytes of pad
			return []wire.Packet{h}
		}, inv, 0, 0, 0},
	})
}

func TestRemoteAccessErrorsEndTheConnection(t *testing.T) {
	reth := func(op wire.Opcode, n int, f func(p *peer, r *wire.RETH)) func(*peer) []wire.Packet {
		return func(p *peer) []wire.Packet {
			h := p.writeTo(packet(op, peerPSN, make([]byte, min(n, 256))), 0, n)
			f(p, &h.RETH)
			return []wire.Packet{h}
		}
	}
	acc := wire.SyndromeRemoteAccess
	runRefusals(t, []refusal{
		{"unknown key", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) { r.RKey ^= 1 }), acc, 0, 0, 0},
		{"key 0", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) { r.RKey = 0 }), acc, 0, 0, 0},
		{"one byte before", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) { r.VA-- }), acc, 0, 0, 0},
		{"one byte behind", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) { r.VA += nodeMem }), acc, 0, 0, 0},
		{"last byte outside", reth(wire.RCWriteOnly, 2, func(p *peer, r *wire.RETH) { r.VA += nodeMem - 1 }), acc, 0, 0, 0},
		{"message ends outside", reth(wire.RCWriteFirst, 1000, func(p *peer, r *wire.RETH) { r.VA += nodeMem - 999 }), acc, 0, 0, 0},
		{"address 0", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) { r.VA = 0 }), acc, 0, 0, 0},
		{"wraps around", reth(wire.RCWriteOnly, 256, func(p *peer, r *wire.RETH) { r.VA = ^uint64(0) - 100 }), acc, 0, 0, 0},
		{"longer than the region", reth(wire.RCWriteFirst, nodeMem+1, func(p *peer, r *wire.RETH) {}), acc, 0, 0, 0},
		{"no remote write right", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) {
			m := p.end.reg(p.end.mem[:4096], verbs.LocalWrite|verbs.RemoteRead)
			p.t.Cleanup(func() { _ = m.Close() })
			r.VA, r.RKey = m.Addr(), m.RKey()
		}), acc, 0, 0, 0},
		{"another domain", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) {
			d, err := p.end.dev.AllocPD()
			require.NoError(p.t, err)
			m, err := d.RegMR(p.end.mem[:4096], verbs.LocalWrite|verbs.RemoteWrite)
			require.NoError(p.t, err)
			p.t.Cleanup(func() { _, _ = m.Close(), d.Close() })
			r.VA, r.RKey = m.Addr(), m.RKey()
		}), acc, 0, 0, 0},
		{"closed region", reth(wire.RCWriteOnly, 1, func(p *peer, r *wire.RETH) {
			m := p.end.reg(p.end.mem[:4096], verbs.LocalWrite|verbs.RemoteWrite)
			r.VA, r.RKey = m.Addr(), m.RKey()
			require.NoError(p.t, m.Close())
		}), acc, 0, 0, 0},
		{"with immediate, which consumes no receive",
			reth(wire.RCWriteOnlyImm, 1, func(p *peer, r *wire.RETH) { r.RKey ^= 1 }), acc, 0, 0, 0},
	})
}

func TestRegionEdgesCanBeWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		m := p.end.reg(p.end.mem[1000:1300], verbs.LocalWrite|verbs.RemoteWrite)
		defer m.Close()
		at := func(psn uint32, off, n int) wire.Packet {
			h := packet(wire.RCWriteOnly, psn, pattern(9, n))
			h.RETH = wire.RETH{VA: m.Addr() + uint64(off), RKey: m.RKey(), Length: uint32(n)}
			return h
		}
		p.send(at(peerPSN, 0, 1), at(peerPSN+1, 299, 1), at(peerPSN+2, 44, 256), ask(at(peerPSN+3, 300, 0)))
		require.Equal(t, []answer{{peerPSN + 3, 31, 4}}, p.answers())
		require.Zero(t, p.end.mem[999])
		require.Zero(t, p.end.mem[1300])
		require.Equal(t, pattern(9, 256), p.end.mem[1044:1300])
	})
}

func TestStaleKeyIsRefusedWithinAMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{mtu: 256})
		m := p.end.reg(p.end.mem[:1024], verbs.LocalWrite|verbs.RemoteWrite)
		h := packet(wire.RCWriteFirst, peerPSN, make([]byte, 256))
		h.RETH = wire.RETH{VA: m.Addr(), RKey: m.RKey(), Length: 600}
		p.send(h)
		require.NoError(t, m.Close())
		p.send(packet(wire.RCWriteMiddle, peerPSN+1, pattern(1, 256)))
		require.Equal(t, []answer{{peerPSN + 1, wire.SyndromeRemoteAccess, 0}}, p.answers())
		require.Equal(t, make([]byte, 1024), p.end.mem[:1024])
	})
}

func TestReceiveIntoForbiddenMemoryFails(t *testing.T) {
	for name, sge := range map[string]func(n *node) verbs.SGE{
		"unknown key":     func(n *node) verbs.SGE { s := n.sge(0, 8); s.LKey ^= 1; return s },
		"out of range":    func(n *node) verbs.SGE { return n.sge(nodeMem-7, 8) },
		"before":          func(n *node) verbs.SGE { return n.sge(-1, 8) },
		"closed since":    func(n *node) verbs.SGE { return verbs.SGE{} },
		"no local writes": func(n *node) verbs.SGE { return verbs.SGE{} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{})
				s := sge(p.end.node)
				if s == (verbs.SGE{}) {
					access := verbs.LocalWrite
					if name == "no local writes" {
						access = verbs.RemoteRead
					}
					m := p.end.reg(p.end.mem[:4096], access)
					s = verbs.SGE{Addr: m.Addr(), Length: 8, LKey: m.LKey()}
					defer m.Close()
					p.end.recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s}})
					if name == "closed since" {
						require.NoError(t, m.Close())
					}
				} else {
					p.end.recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{s}})
				}
				p.end.recv(verbs.RecvWR{ID: 2})
				p.send(packet(wire.RCSendOnly, peerPSN, []byte("abc")))
				require.Equal(t, []answer{{peerPSN, wire.SyndromeRemoteOp, 0}}, p.answers())
				require.Equal(t, []outcome{{1, verbs.LocProtErr}, {2, verbs.WRFlushErr}}, p.end.outcomes())
			})
		})
	}
}
