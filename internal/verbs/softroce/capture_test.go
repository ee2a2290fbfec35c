package softroce

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// captured is a packet of a connection in a capture.
type captured struct {
	src netip.Addr
	wire.Packet
	raw []byte // BTH to pad
}

// readConnection returns the packets of the one connection in a capture.
func readConnection(t *testing.T, name string) []captured {
	return readPackets(t, name, wire.ServiceRC)
}

// readPackets returns the packets of a transport service.
func readPackets(t *testing.T, name string, service wire.Service) (ps []captured) {
	f, err := os.Open("wire/testdata/" + name + ".pcap")
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	for {
		b, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return ps
		}
		require.NoError(t, err)
		var c captured
		switch binary.BigEndian.Uint16(b[12:]) {
		case 0x0800:
			if b[23] != 17 {
				continue
			}
			c.src = netip.AddrFrom4([4]byte(b[26:]))
			b = b[34:]
		case 0x86DD:
			if b[20] != 17 {
				continue
			}
			c.src = netip.AddrFrom16([16]byte(b[22:]))
			b = b[54:]
		default:
			continue
		}
		c.raw = b[8 : binary.BigEndian.Uint16(b[4:])-wire.ICRCLen]
		if c.Decode(c.raw) == nil && c.Opcode.Service() == service {
			ps = append(ps, c)
		}
	}
}

// replay takes the part of one side of a captured connection of rdma_rxe: the end posts what that side posted,
// and is sent what the other side sent. It must send the very same packets.
func replay(t *testing.T, name string, us netip.Addr) {
	all := readConnection(t, name)
	attr := rcAttr{path: newPath(addrA, addrB), mtu: 1024, ackTimeout: 19, retryCount: 7, rnrRetry: 7, maxRDAtomic: 2, maxDestRDAtomic: 4}
	lowest := ^uint64(0) // address that the peer names
	results := map[uint32]*captured{}
	begun := map[bool]bool{}
	for i := range all {
		c := &all[i]
		ours := c.src == us
		if ours {
			attr.destQPN = c.DestQP
			results[c.PSN] = c
		}
		if !c.Opcode.IsRequest() {
			continue
		}
		if !begun[ours] {
			begun[ours] = true
			if ours {
				attr.sqPSN = c.PSN
			} else {
				attr.rqPSN = c.PSN
			}
		}
		if va := c.RETH.VA | c.Atomic.VA; !ours && va != 0 {
			lowest = min(lowest, va)
		}
	}

	p := newPeer(t, link{})
	e := p.end.newEnd(verbs.QPInitAttr{MaxRecvWR: 64}, 1024, nil)
	require.NoError(t, e.q.connect(&attr))
	var sent [][]byte
	p.net.Filter(func(f *simnet.Frame) bool {
		if f.Src.Addr() == addrA {
			sent = append(sent, slices.Clone(f.Data))
		}
		return false
	})
	const scratch = nodeMem / 2 // below it is what the peer reaches
	for i := range uint64(32) {
		e.recv(verbs.RecvWR{ID: 1000 + i, SGL: e.sgl(scratch, 8192)})
	}
	at := func(va uint64) uint64 { return (va - lowest) % (scratch - 8192) }

	var want [][]byte
	var wr verbs.SendWR
	var message []byte
	next, into, posted := uint64(0), scratch+8192, 0
	var reads []int // where their data go
	for i := range all {
		c := &all[i]
		if c.src != us {
			h := c.Packet
			h.DestQP = e.q.num
			switch {
			case c.Opcode == wire.RCReadRequest:
				// What was in memory then.
				off := at(c.RETH.VA)
				for n := uint32(0); n < c.RETH.Length; n += 1024 {
					copy(e.mem[off+uint64(n):], results[c.PSN+n/1024].Payload)
				}
			case c.Opcode.IsAtomic():
				binary.NativeEndian.PutUint64(e.mem[at(c.Atomic.VA):], results[c.PSN].AtomicAck.Original)
			}
			if c.Opcode.HasRETH() && c.RETH.Length > 0 {
				h.RETH.VA, h.RETH.RKey = e.mr.Addr()+at(c.RETH.VA), e.mr.RKey()
			}
			if c.Opcode.IsAtomic() {
				h.Atomic.VA, h.Atomic.RKey = e.mr.Addr()+at(c.Atomic.VA), e.mr.RKey()
			}
			p.send(h)
			continue
		}
		want = append(want, c.raw)
		if !c.Opcode.IsRequest() {
			continue
		}
		if c.Opcode.Begins() {
			wr, message = verbs.SendWR{ID: next, Flags: verbs.Signaled, RemoteAddr: c.RETH.VA, RKey: c.RETH.RKey}, nil
			next++
		}
		message = append(message, c.Payload...)
		if !c.Opcode.Ends() {
			continue
		}
		wr.Imm = c.Imm
		if c.Solicited {
			wr.Flags |= verbs.Solicited
		}
		length := len(message)
		switch {
		case c.Opcode.IsSend():
			wr.Op = verbs.OpSend
		case c.Opcode.IsWrite():
			wr.Op = verbs.OpWrite
		case c.Opcode == wire.RCReadRequest:
			wr.Op, length = verbs.OpRead, int(c.RETH.Length)
			reads = append(reads, i, into)
		default:
			wr.Op, length = verbs.OpFetchAdd, 8
			wr.RemoteAddr, wr.RKey, wr.SwapAdd = c.Atomic.VA, c.Atomic.RKey, c.Atomic.SwapAdd
			if c.Opcode == wire.RCCompareSwap {
				wr.Op, wr.Compare = verbs.OpCompareSwap, c.Atomic.Compare
			}
		}
		if c.Opcode.HasImm() {
			wr.Op++ // with immediate
		}
		copy(e.mem[into:], message)
		wr.SGL = e.sgl(into, length)
		into += (length + 63) &^ 63
		e.send(wr)
		posted++
		p.take()
	}
	p.take()
	require.Len(t, sent, len(want))
	for i := range want {
		require.Equal(t, want[i], sent[i], "packet %d: %v, %v", i, wire.Opcode(want[i][0]), wire.Opcode(sent[i][0]))
	}
	require.NotEmpty(t, want)
	for _, wc := range e.completions() {
		require.Zero(t, wc.Status)
		if wc.ID < 1000 {
			posted--
		}
	}
	require.Zero(t, posted, "every request completes")
	for ; len(reads) > 0; reads = reads[2:] {
		q := &all[reads[0]]
		for n := uint32(0); n < q.RETH.Length; n += 1024 {
			i := slices.IndexFunc(all, func(c captured) bool {
				return c.src != us && c.Opcode.IsReadResponse() && c.PSN == q.PSN+n/1024
			})
			got := e.mem[reads[1]+int(n):]
			require.Equal(t, all[i].Payload, got[:len(all[i].Payload)])
		}
	}
}

// TestSamePacketsAsRXE takes both sides of connections between two of rdma_rxe: messages of all kinds,
// READs of several lengths and in flight together, atomics.
func TestSamePacketsAsRXE(t *testing.T) {
	for _, c := range []struct{ name, us string }{
		{"roce-vt-ops-v4", "10.7.0.1"}, {"roce-vt-ops-v4", "10.7.0.2"},
		{"roce-rping-v6", "fd00:7::1"}, {"roce-rping-v6", "fd00:7::2"},
	} {
		t.Run(c.name+"/"+c.us, func(t *testing.T) {
			bubble(t, func(t *testing.T) { replay(t, c.name, netip.MustParseAddr(c.us)) })
		})
	}
}
