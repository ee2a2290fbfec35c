package softroce

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// newUDEnd is newEnd for datagrams.
func (n *node) newUDEnd(attr verbs.QPInitAttr, depth int) *end {
	cq, err := n.dev.CreateCQ(&verbs.CQAttr{Depth: depth})
	require.NoError(n.t, err)
	attr.Type, attr.SendCQ, attr.RecvCQ = verbs.UD, cq, cq
	q, err := n.dev.newUDQP(n.pd, &attr, udAttr{qkey: verbs.UDPQKey, mtu: 4096})
	require.NoError(n.t, err)
	e := &end{n, q, cq}
	n.ends = append(n.ends, e)
	return e
}

// to makes an address handle that is closed when the test ends.
func (n *node) to(addr netip.Addr) *ah {
	a, err := n.pd.CreateAH(&verbs.AHAttr{Local: n.addr, Remote: addr})
	require.NoError(n.t, err)
	n.closers = append(n.closers, a)
	return a.(*ah)
}

// TestGRH: what stands in front of a datagram is what rdma_rxe of Linux 6.1 was seen to put there.
func TestGRH(t *testing.T) {
	const datagram = wire.BTHLen + wire.DETHLen + 8 // 5 bytes and their pad
	for _, c := range []struct {
		src, dst, want string
		tclass, hops   uint8
		flags          verbs.WCFlags
	}{
		{"10.7.0.3", "10.7.0.1", strings.Repeat("00", 20) + "4522003c000040002111457e0a0700030a070001", 0x22, 33, verbs.WCGRH | verbs.WCGRHv4},
		// Its flow label, which a socket does not tell, was 0xdf878.
		{"fd00:7::3", "fd00:7::1", "6000000000281140" + "fd000007000000000000000000000003" + "fd000007000000000000000000000001", 0, 64, verbs.WCGRH},
	} {
		var b [verbs.GRHLen]byte
		for i := range b {
			b[i] = 0xEE
		}
		flags := putGRH(&b, &netio.Packet{
			Local: netip.MustParseAddr(c.dst), Remote: netip.AddrPortFrom(netip.MustParseAddr(c.src), 1),
			TrafficClass: c.tclass, HopLimit: c.hops, Data: make([]byte, datagram),
		})
		require.Equal(t, c.want, hex.EncodeToString(b[:]))
		require.Equal(t, c.flags, flags)
	}
}

// TestSameDatagramsAsRXE sends what a side of a capture sent: the same packets come out.
func TestSameDatagramsAsRXE(t *testing.T) {
	for _, c := range []struct{ name, us, them string }{
		{"roce-udaddy-v6", "fd00:7::1", "fd00:7::2"}, {"roce-udaddy-v6", "fd00:7::2", "fd00:7::1"}, {"roce-mckey-v4", "10.7.0.1", "239.1.1.1"},
	} {
		t.Run(c.name+"/"+c.us, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				us, them := netip.MustParseAddr(c.us), netip.MustParseAddr(c.them)
				net := simnet.New(1, simnet.Options{})
				n := newNode(t, nil, net.Host(us), us)
				e := n.newUDEnd(verbs.QPInitAttr{}, 64)
				var sent [][]byte
				look := net.Host(netip.MustParseAddr("10.7.0.9"), netip.MustParseAddr("fd00:7::9"))
				watcher, err := look.Open(&collector{})
				require.NoError(t, err)
				defer watcher.Close()
				if them.IsMulticast() {
					_, err := watcher.JoinGroup(them, 1)
					require.NoError(t, err)
				}
				net.Filter(func(f *simnet.Frame) bool {
					sent = append(sent, slices.Clone(f.Data))
					return false
				})
				a := n.to(them)
				i := 0
				for _, p := range readPackets(t, c.name, wire.ServiceUD) {
					if p.src != us || p.DestQP == wire.QPNGSI {
						continue
					}
					copy(n.mem, p.Payload)
					op := verbs.OpSend
					if p.Opcode.HasImm() {
						op = verbs.OpSendWithImm
					}
					e.send(verbs.SendWR{
						Op: op, Imm: p.Imm, SGL: n.sgl(0, len(p.Payload)), AH: a, RemoteQPN: p.DestQP, RemoteQKey: p.QKey,
					})
					want := slices.Clone(p.raw)
					want[17], want[18], want[19] = byte(e.q.num>>16), byte(e.q.num>>8), byte(e.q.num) // source queue pair
					require.Len(t, sent, i+1)
					require.Equal(t, want, sent[i])
					i++
				}
				require.Positive(t, i)
			})
		})
	}
}

type collector struct{ n int }

func (c *collector) HandlePackets(ps []netio.Packet) { c.n += len(ps) }

// TestDatagramsOnBadNetwork: what arrives is what was sent, in pieces neither lost nor mixed up; members of a group lose
// each their own.
func TestDatagramsOnBadNetwork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n, size = 400, 900
		opts := simnet.Options{Loss: 0.1, Dup: 0.05, Reorder: 0.05, Corrupt: 0.05, Delay: time.Millisecond, Jitter: time.Millisecond, MTU: 1500}
		net, a, b := pair(t, 7, opts)
		x := a.newUDEnd(verbs.QPInitAttr{MaxSendWR: 512}, 1024)
		group := netip.MustParseAddr("239.1.2.3")
		ends := []*end{b.newUDEnd(verbs.QPInitAttr{MaxRecvWR: 512}, 1024), b.newUDEnd(verbs.QPInitAttr{MaxRecvWR: 512}, 1024), a.newUDEnd(verbs.QPInitAttr{MaxRecvWR: 512}, 1024)}
		for i, e := range ends {
			if i > 0 {
				require.NoError(t, e.dev.groups.join(e.dev.conn, groupKey{group, 1}, e.q))
			}
		}
		for _, e := range ends[:2] {
			for i := range 500 {
				e.recv(verbs.RecvWR{ID: uint64(i), SGL: e.sgl((i%250)*2048+nodeMem/2, 1024)})
			}
		}
		for i := range 500 {
			ends[2].recv(verbs.RecvWR{ID: uint64(i), SGL: a.sgl(nodeMem/2, 1024)})
		}
		unicast, multicast := a.to(addrB), a.to(group)
		for i := range n {
			wr := verbs.SendWR{
				ID: uint64(i), Op: verbs.OpSendWithImm, Imm: uint32(i), SGL: a.sgl(i, size), AH: unicast, RemoteQPN: ends[0].q.num, RemoteQKey: verbs.UDPQKey,
			}
			x.send(wr)
			wr.AH, wr.RemoteQPN = multicast, verbs.MulticastQPN
			x.send(wr)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		var seen [3][n]int
		for k, e := range ends {
			for _, wc := range e.completions() {
				require.Zero(t, wc.Status)
				require.EqualValues(t, size+verbs.GRHLen, wc.ByteLen)
				require.Equal(t, x.q.num, wc.SrcQPN)
				seen[k][wc.Imm]++
			}
		}
		lost := func(s [n]int) (lost, twice int) {
			for _, c := range s {
				if c == 0 {
					lost++
				}
				if c > 1 {
					twice++
				}
			}
			return lost, twice
		}
		for k := range seen {
			l, d := lost(seen[k])
			require.InDelta(t, n*0.15, l, n*0.06, "member %d", k)
			require.InDelta(t, n*0.045, d, n*0.035, "member %d", k)
		}
		require.NotEqual(t, seen[1], seen[2], "other hosts lose others")
		require.Positive(t, net.Stats().BadICRC)
	})
}

// TestDatagramMTU: an interface whose MTU shrinks makes the limit smaller, as soon as that is known.
func TestDatagramMTU(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net, a, _ := pair(t, 1, simnet.Options{MTU: 4200})
		x := a.newUDEnd(verbs.QPInitAttr{}, 64)
		wr := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: a.sgl(0, 4096), AH: a.to(addrB), RemoteQPN: 77}
		x.send(wr)
		net.SetOptions(simnet.Options{MTU: 1500})
		x.send(wr) // lost
		require.Len(t, x.completions(), 2)
		_, err := x.q.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		require.ErrorContains(t, err, "1024")
		wr.SGL = a.sgl(0, 1024)
		x.send(wr)
		require.Len(t, x.completions(), 1)
		require.EqualValues(t, 1, a.dev.stats.sendErrors.Load())
	})
}

// hostile packets to a member of a group.
func udPacket(qpn uint32, change func(h *wire.Packet)) []byte {
	h := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: qpn},
		DETH: wire.DETH{QKey: verbs.UDPQKey, SrcQP: 5}, Payload: []byte("datagram"),
	}
	if change != nil {
		change(&h)
	}
	h.Pad = wire.PadFor(len(h.Payload))
	b := make([]byte, h.HeaderLen(), h.HeaderLen()+len(h.Payload)+3)
	h.PutHeaders(b)
	return append(append(b, h.Payload...), make([]byte, h.Pad)...)
}

// TestDatagramDrops: what is dropped, and how it is counted.
func TestDatagramDrops(t *testing.T) {
	group := netip.MustParseAddr("239.1.2.3")
	pa, _ := newPipes()
	n := newNode(t, nil, pa, addrA)
	e := n.newUDEnd(verbs.QPInitAttr{}, 64)
	pa.groups = true
	require.NoError(t, n.dev.groups.join(n.dev.conn, groupKey{group, 3}, e.q))
	e.recv(verbs.RecvWR{ID: 1, SGL: n.sgl(0, verbs.GRHLen+4096)})
	s := &n.dev.stats
	from := netip.AddrPortFrom(addrB, 1)
	for _, c := range []struct {
		name    string
		to      netip.Addr
		ifi     int
		data    []byte
		counter func() uint64
	}{
		{"service", addrA, 0, udPacket(e.q.num, func(h *wire.Packet) { h.Opcode = wire.RCSendOnly }), s.wrongType.Load},
		{"P_Key", addrA, 0, udPacket(e.q.num, func(h *wire.Packet) { h.PKey = 5 }), s.wrongPKey.Load},
		{"Q_Key", addrA, 0, udPacket(e.q.num, func(h *wire.Packet) { h.QKey++ }), s.wrongQKey.Load},
		{"version", addrA, 0, udPacket(e.q.num, func(h *wire.Packet) { h.TVer = 1 }), s.malformed.Load},
		{"longer than any MTU", addrA, 0, udPacket(e.q.num, func(h *wire.Packet) { h.Payload = make([]byte, 4100) }), s.malformed.Load},
		{"cut", addrA, 0, udPacket(e.q.num, nil)[:16], s.malformed.Load},
		{"queue pair at a group", group, 3, udPacket(e.q.num, nil), s.wrongAddr.Load},
		{"group at an address", addrA, 0, udPacket(wire.QPNMulticast, nil), s.unknownQP.Load},
		{"group on another interface", group, 4, udPacket(wire.QPNMulticast, nil), s.unknownQP.Load},
		{"another group", group.Next(), 3, udPacket(wire.QPNMulticast, nil), s.unknownQP.Load},
		{"Q_Key of a group", group, 3, udPacket(wire.QPNMulticast, func(h *wire.Packet) { h.QKey++ }), s.wrongQKey.Load},
		{"services at a group", group, 3, udPacket(wire.QPNGSI, func(h *wire.Packet) { h.QKey = wire.QKeyGSI }), s.wrongAddr.Load},
		{"no queue pair", addrA, 0, udPacket(e.q.num^1, nil), s.unknownQP.Load},
	} {
		before := c.counter()
		n.dev.HandlePackets([]netio.Packet{{Local: c.to, Remote: from, Interface: c.ifi, Data: c.data}})
		require.Equal(t, before+1, c.counter(), c.name)
		require.Empty(t, e.completions(), c.name)
	}
	// A run of them around good ones.
	good := netio.Packet{Local: group, Remote: from, Interface: 3, Data: udPacket(wire.QPNMulticast, nil)}
	other := good
	other.Interface = 4
	n.dev.HandlePackets([]netio.Packet{other, good, good, other})
	require.Len(t, e.completions(), 1)
	require.EqualValues(t, 1, s.noReceive.Load())
	e.recv(verbs.RecvWR{ID: 2, SGL: n.sgl(0, verbs.GRHLen+7)})
	n.dev.HandlePackets([]netio.Packet{good})
	require.EqualValues(t, 1, s.shortReceive.Load())
	require.EqualValues(t, 2, e.q.Stats().Dropped)
	require.NoError(t, e.q.ToError())
	n.dev.HandlePackets([]netio.Packet{good})
	require.EqualValues(t, 1, s.wrongState.Load())
	require.Len(t, e.completions(), 1)
	require.False(t, n.dev.groups.drop(groupKey{group, 4}, e.q))
	require.True(t, n.dev.groups.drop(groupKey{group, 3}, e.q))
	require.Zero(t, pa.joined)
}

// FuzzDatagrams lets anybody send anything to a queue pair for datagrams and to a group: it goes on to work, and
// nothing is written but into its receives.
func FuzzDatagrams(f *testing.F) {
	f.Add(false, true, udPacket(0, nil))
	f.Add(true, true, udPacket(0, func(h *wire.Packet) { h.Opcode, h.Imm = wire.UDSendOnlyImm, 9 }))
	f.Add(false, false, udPacket(0, func(h *wire.Packet) { h.Payload = make([]byte, 4096) }))
	f.Add(true, false, udPacket(0, func(h *wire.Packet) { h.Payload = nil }))
	f.Add(false, false, udPacket(0, func(h *wire.Packet) { h.Opcode = wire.RCReadRequest }))
	group := netip.MustParseAddr("ff15::77")
	f.Fuzz(func(t *testing.T, toGroup, fix bool, b []byte) {
		pa, _ := newPipes()
		pa.groups = true
		n := newNode(t, nil, pa, addrA6)
		e := n.newUDEnd(verbs.QPInitAttr{}, 64)
		require.NoError(t, n.dev.groups.join(n.dev.conn, groupKey{group, 3}, e.q))
		e.recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{n.sge(100, 50), n.sge(200, 30)}}, verbs.RecvWR{ID: 2, SGL: n.sgl(1000, verbs.GRHLen+4096)})
		b = bytes.Clone(b)
		if fix && len(b) >= wire.BTHLen {
			qpn := e.q.num
			if toGroup {
				qpn = wire.QPNMulticast
			}
			b[5], b[6], b[7] = byte(qpn>>16), byte(qpn>>8), byte(qpn)
		}
		p := netio.Packet{Local: addrA6, Remote: netip.AddrPortFrom(addrB6, 9), Data: b}
		if toGroup {
			p.Local, p.Interface = group, 3
		}
		n.dev.HandlePackets([]netio.Packet{p, p})
		for _, wc := range e.completions() {
			require.Zero(t, wc.Status)
			require.GreaterOrEqual(t, wc.ByteLen, uint32(verbs.GRHLen))
			require.LessOrEqual(t, wc.ByteLen, uint32(verbs.GRHLen+len(b)))
			require.Less(t, wc.SrcQPN, uint32(1<<24))
		}
		for _, gap := range [][2]int{{0, 100}, {150, 200}, {230, 1000}, {1000 + verbs.GRHLen + 4096, 8192}} {
			require.Equal(t, make([]byte, gap[1]-gap[0]), n.mem[gap[0]:gap[1]])
		}
		require.Equal(t, stateRTS, e.q.state)
		// The rest is there for good ones.
		left := e.q.rq.len()
		for range left {
			n.dev.HandlePackets([]netio.Packet{{Local: addrA6, Remote: p.Remote, Data: udPacket(e.q.num, nil)}})
		}
		require.Len(t, e.completions(), left)
	})
}
