package dgram

import (
	"net"
	"net/netip"
	"testing"

	"github.com/go-rdma/rdma/internal/verbs"
)

// fuzzID is the identifier of an endpoint that no device has.
type fuzzID struct{ verbs.UDCMID }

func (fuzzID) LocalAddr() netip.AddrPort { return netip.MustParseAddrPort("10.0.0.1:4000") }

// FuzzAccept gives the reader whatever a device may find in the network: it must not fail, nor show what was not received.
func FuzzAccept(f *testing.F) {
	v4 := make([]byte, 60)
	v4[20], v4[32], v4[36] = 0x45, 10, 239
	v6 := make([]byte, 60)
	v6[0], v6[8], v6[24] = 0x60, 0xfe, 0xff
	v6[9] = 0x80
	f.Add(v4, uint32(60), uint8(verbs.WCGRH|verbs.WCGRHv4), uint32(7), true)
	f.Add(v6, uint32(60), uint8(verbs.WCGRH|verbs.WCWithImm), uint32(1<<31), false)
	f.Add(v6, uint32(40), uint8(0), uint32(0), false)
	f.Add(v6, uint32(39), uint8(verbs.WCGRH), uint32(0), false)
	f.Add(v6, uint32(1<<31), uint8(verbs.WCGRH), uint32(0), false)
	f.Fuzz(func(t *testing.T, mem []byte, length uint32, flags uint8, qpn uint32, dialed bool) {
		s := New(&Config{Intern: func(a Addr) net.Addr { return &shown{a} }})
		s.noLoopback.Store(true)
		e := &endpoint{s: s, id: fuzzID{}, num: 7, mtu: 64}
		e.rx.slots = []recvSlot{{mem: mem}}
		eps := []*endpoint{e}
		s.eps.Store(&eps)
		if dialed {
			s.dialed.Store(&target{ip: netip.MustParseAddr("10.0.0.2"), qpn: 7, p: new(peer)})
		}
		for range 2 {
			wc := verbs.WC{ByteLen: length, Flags: verbs.WCFlags(flags), SrcQPN: qpn}
			d, ok := s.accept(e, &wc)
			if !ok {
				continue
			}
			if len(d.Payload) != int(length)-verbs.GRHLen || len(d.Payload) > len(mem) || d.From == nil {
				t.Fatalf("%d bytes of %v", len(d.Payload), d.From)
			}
			if from := d.From.(*shown).Addr; from.IP.IsValid() != (flags&uint8(verbs.WCGRH) != 0) || from.QPN != qpn {
				t.Fatalf("from %+v", from)
			}
		}
	})
}
