package ibcm

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestREQFields reads the REQ of an rping (roce-rping-v4) field by field.
func TestREQFields(t *testing.T) {
	c := capturedMAD(t, "roce-rping-v4:3")
	h, m, err := Decode(c.mad)
	require.NoError(t, err)
	require.Equal(t, Header{
		BaseVersion: 1, ManagementClass: 7, ClassVersion: 2, Method: 3,
		TransactionID: 0x0000000234f1f53f, AttributeID: AttrREQ,
	}, h)
	q := *m.(*REQ)
	ip, err := ParseIPHeader(q.PrivateData[:])
	require.NoError(t, err)
	require.Equal(t, IPHeader{
		Source:      netip.AddrPortFrom(c.src, 33232),
		Destination: c.dst,
	}, ip)
	require.Equal(t, make([]byte, 56), q.PrivateData[IPHeaderSize:])
	q.PrivateData = [92]byte{}
	require.Equal(t, REQ{
		LocalCommID: 0x3ff5f134, ServiceID: ServiceID(0x0106, 7174), LocalCAGUID: 0x505400fffe070001,
		LocalQPN: 0x11, ResponderResources: 1, InitiatorDepth: 1,
		RemoteCMResponseTimeout: 20, StartingPSN: 0xd4b49a, LocalCMResponseTimeout: 20,
		RetryCount: 7, PKey: 0xffff, PathMTU: 3, RNRRetryCount: 7, MaxCMRetries: 15,
		Primary: PathRecord{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: GID(c.src), RemoteGID: GID(c.dst),
			FlowLabel: 0xfd436, HopLimit: 64, LocalACKTimeout: 19,
		},
	}, q)
}

func TestREPFields(t *testing.T) {
	_, m, err := Decode(capturedMAD(t, "roce-rping-v4:4").mad)
	require.NoError(t, err)
	require.Equal(t, &REP{
		LocalCommID: 0xb2621965, RemoteCommID: 0x3ff5f134, LocalQPN: 0x11, StartingPSN: 0xde86ce,
		ResponderResources: 1, InitiatorDepth: 1, TargetACKDelay: 15, RNRRetryCount: 7,
		LocalCAGUID: 0x505400fffe070002,
	}, m)
	_, m, err = Decode(capturedMAD(t, "rsockets-five:16").mad)
	require.NoError(t, err)
	require.True(t, m.(*REP).EndToEndFlowControl)
	require.EqualValues(t, 1, m.(*REP).PrivateData[0], "version of rsockets")
}

func TestOtherFields(t *testing.T) {
	get := func(name string) Message {
		_, m, err := Decode(capturedMAD(t, name).mad)
		require.NoError(t, err)
		return m
	}
	require.Equal(t, &MRA{LocalCommID: 0x82621965, RemoteCommID: 0x76f5f134, ServiceTimeout: 24}, get("roce-vt-slow-mra-v4:5"))
	require.Equal(t, &REJ{RemoteCommID: 0x31f5f134, Reason: 8}, get("roce-rej-no-listener-v4:4"))

	rej := get("roce-vt-reject-v4:2").(*REJ)
	require.EqualValues(t, 28, rej.Reason)
	require.True(t, bytes.HasPrefix(rej.PrivateData[:], []byte("no thanks")))

	giveUp := &REJ{LocalCommID: 0x140989a6, MessageRejected: AboutOther, RejectedInfoLength: 8, Reason: 4}
	copy(giveUp.ARI[:], "\x50\x54\x00\xff\xfe\x07\x01\x01")
	require.Equal(t, giveUp, get("librpma-rxe-6.1:91"))

	require.Equal(t, &DREQ{LocalCommID: 0x3ff5f134, RemoteCommID: 0xb2621965, RemoteQPN: 0x11}, get("roce-rping-v4:30"))
	require.Equal(t, &DREP{LocalCommID: 0xb2621965, RemoteCommID: 0x3ff5f134}, get("roce-rping-v4:31"))
	require.Equal(t, &SIDRREP{RequestID: 0x3df5f134, QPN: 0x13, ServiceID: ServiceID(0x0111, 7174), QKey: 0x01234567}, get("roce-udaddy-v4:6"))

	q := get("roce-rping-vlan-v4:5").(*REQ)
	require.EqualValues(t, 3, q.Primary.SL)
	q = get("roce-vt-tos-v4:1").(*REQ)
	require.EqualValues(t, 0x68, q.Primary.TrafficClass)
	s := get("roce-udaddy-v6:1").(*SIDRREQ)
	ip, err := ParseIPHeader(s.PrivateData[:])
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("fd00:7::2"), ip.Destination)
	require.Equal(t, netip.MustParseAddrPort("[fd00:7::1]:40367"), ip.Source)
}

// TestFieldPlaces sets each field to all ones and looks which bits of the
// message change, against the tables of IBTA 12.6: no field may spill into another.
func TestFieldPlaces(t *testing.T) {
	ones := func(m Message) []byte {
		b := make([]byte, dataSize)
		m.encode(b)
		return b
	}
	type place struct {
		m         Message
		from, len int // bits
	}
	path := func(set func(*PathRecord)) (q REQ) {
		set(&q.Primary)
		return q
	}
	alt := func(set func(*PathRecord)) (q REQ) {
		set(&q.Alternate)
		return q
	}
	req := func(set func(*PathRecord), off, n int) []place {
		p, a := path(set), alt(set)
		return []place{{&p, off, n}, {&a, off + 44*8, n}}
	}
	at := func(byt, b int) int { return 8*byt + b }
	all := []place{
		{&REQ{LocalCommID: 1<<32 - 1}, 0, 32},
		{&REQ{VendorID: 1<<24 - 1}, at(5, 0), 24},
		{&REQ{ServiceID: 1<<64 - 1}, at(8, 0), 64},
		{&REQ{LocalCAGUID: 1<<64 - 1}, at(16, 0), 64},
		{&REQ{LocalQKey: 1<<32 - 1}, at(28, 0), 32},
		{&REQ{LocalQPN: 1<<24 - 1}, at(32, 0), 24},
		{&REQ{ResponderResources: 255}, at(35, 0), 8},
		{&REQ{LocalEECN: 1<<24 - 1}, at(36, 0), 24},
		{&REQ{InitiatorDepth: 255}, at(39, 0), 8},
		{&REQ{RemoteEECN: 1<<24 - 1}, at(40, 0), 24},
		{&REQ{RemoteCMResponseTimeout: 255}, at(43, 0), 5},
		{&REQ{TransportServiceType: 255}, at(43, 5), 2},
		{&REQ{EndToEndFlowControl: true}, at(43, 7), 1},
		{&REQ{StartingPSN: 1<<24 - 1}, at(44, 0), 24},
		{&REQ{LocalCMResponseTimeout: 255}, at(47, 0), 5},
		{&REQ{RetryCount: 255}, at(47, 5), 3},
		{&REQ{PKey: 1<<16 - 1}, at(48, 0), 16},
		{&REQ{PathMTU: 255}, at(50, 0), 4},
		{&REQ{RDCExists: true}, at(50, 4), 1},
		{&REQ{RNRRetryCount: 255}, at(50, 5), 3},
		{&REQ{MaxCMRetries: 255}, at(51, 0), 4},
		{&REQ{SRQ: true}, at(51, 4), 1},
		{&REQ{ExtendedTransportType: 255}, at(51, 5), 3},
		{&MRA{LocalCommID: 1<<32 - 1}, 0, 32},
		{&MRA{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&MRA{MessageMRAed: 255}, at(8, 0), 2},
		{&MRA{ServiceTimeout: 255}, at(9, 0), 5},
		{&REJ{LocalCommID: 1<<32 - 1}, 0, 32},
		{&REJ{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&REJ{MessageRejected: 255}, at(8, 0), 2},
		{&REJ{RejectedInfoLength: 255}, at(9, 0), 7},
		{&REJ{Reason: 1<<16 - 1}, at(10, 0), 16},
		{&REP{LocalCommID: 1<<32 - 1}, 0, 32},
		{&REP{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&REP{LocalQKey: 1<<32 - 1}, at(8, 0), 32},
		{&REP{LocalQPN: 1<<24 - 1}, at(12, 0), 24},
		{&REP{LocalEECN: 1<<24 - 1}, at(16, 0), 24},
		{&REP{StartingPSN: 1<<24 - 1}, at(20, 0), 24},
		{&REP{ResponderResources: 255}, at(24, 0), 8},
		{&REP{InitiatorDepth: 255}, at(25, 0), 8},
		{&REP{TargetACKDelay: 255}, at(26, 0), 5},
		{&REP{FailoverAccepted: 255}, at(26, 5), 2},
		{&REP{EndToEndFlowControl: true}, at(26, 7), 1},
		{&REP{RNRRetryCount: 255}, at(27, 0), 3},
		{&REP{SRQ: true}, at(27, 3), 1},
		{&REP{LocalCAGUID: 1<<64 - 1}, at(28, 0), 64},
		{&RTU{LocalCommID: 1<<32 - 1}, 0, 32},
		{&RTU{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&DREQ{LocalCommID: 1<<32 - 1}, 0, 32},
		{&DREQ{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&DREQ{RemoteQPN: 1<<24 - 1}, at(8, 0), 24},
		{&DREP{LocalCommID: 1<<32 - 1}, 0, 32},
		{&DREP{RemoteCommID: 1<<32 - 1}, 32, 32},
		{&SIDRREQ{RequestID: 1<<32 - 1}, 0, 32},
		{&SIDRREQ{PKey: 1<<16 - 1}, at(4, 0), 16},
		{&SIDRREQ{ServiceID: 1<<64 - 1}, at(8, 0), 64},
		{&SIDRREP{RequestID: 1<<32 - 1}, 0, 32},
		{&SIDRREP{Status: 255}, at(4, 0), 8},
		{&SIDRREP{AdditionalInfoLength: 255}, at(5, 0), 8},
		{&SIDRREP{QPN: 1<<24 - 1}, at(8, 0), 24},
		{&SIDRREP{ServiceID: 1<<64 - 1}, at(12, 0), 64},
		{&SIDRREP{QKey: 1<<32 - 1}, at(20, 0), 32},
	}
	for _, p := range [][]place{
		req(func(p *PathRecord) { p.LocalLID = 1<<16 - 1 }, at(52, 0), 16),
		req(func(p *PathRecord) { p.RemoteLID = 1<<16 - 1 }, at(54, 0), 16),
		req(func(p *PathRecord) { fill(p.LocalGID[:]) }, at(56, 0), 128),
		req(func(p *PathRecord) { fill(p.RemoteGID[:]) }, at(72, 0), 128),
		req(func(p *PathRecord) { p.FlowLabel = 1<<20 - 1 }, at(88, 0), 20),
		req(func(p *PathRecord) { p.PacketRate = 255 }, at(91, 2), 6),
		req(func(p *PathRecord) { p.TrafficClass = 255 }, at(92, 0), 8),
		req(func(p *PathRecord) { p.HopLimit = 255 }, at(93, 0), 8),
		req(func(p *PathRecord) { p.SL = 255 }, at(94, 0), 4),
		req(func(p *PathRecord) { p.SubnetLocal = true }, at(94, 4), 1),
		req(func(p *PathRecord) { p.LocalACKTimeout = 255 }, at(95, 0), 5),
	} {
		all = append(all, p...)
	}
	priv := func(n int, m Message, data []byte) { fill(data); all = append(all, place{m, 8 * n, 8 * len(data)}) }
	q, mra, rej, rej2, rep, rtu, dreq, drep, sq, sp, sp2 := new(REQ), new(MRA), new(REJ), new(REJ), new(REP), new(RTU), new(DREQ),
		new(DREP), new(SIDRREQ), new(SIDRREP), new(SIDRREP)
	priv(140, q, q.PrivateData[:])
	priv(10, mra, mra.PrivateData[:])
	priv(12, rej, rej.ARI[:])
	priv(84, rej2, rej2.PrivateData[:])
	priv(36, rep, rep.PrivateData[:])
	priv(8, rtu, rtu.PrivateData[:])
	priv(12, dreq, dreq.PrivateData[:])
	priv(8, drep, drep.PrivateData[:])
	priv(16, sq, sq.PrivateData[:])
	priv(24, sp, sp.AdditionalInfo[:])
	priv(96, sp2, sp2.PrivateData[:])

	for _, p := range all {
		want := make([]byte, dataSize)
		for i := p.from; i < p.from+p.len; i++ {
			want[i/8] |= 0x80 >> (i % 8)
		}
		require.Equal(t, want, ones(p.m), "%T %+v", p.m, p.m)
	}
	// The vendor ID of REP and SIDR_REP lies in pieces.
	want := make([]byte, dataSize)
	want[15], want[19], want[23] = 0x12, 0x34, 0x56
	require.Equal(t, want, ones(&REP{VendorID: 0x123456}))
	want = make([]byte, dataSize)
	want[6], want[7], want[11] = 0x12, 0x34, 0x56
	require.Equal(t, want, ones(&SIDRREP{VendorID: 0x123456}))
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := capturedMAD(t, "roce-rping-v4:3").mad
	for name, change := range map[string]func(b []byte) []byte{
		"short":         func(b []byte) []byte { return b[:MADSize-1] },
		"empty":         func(b []byte) []byte { return nil },
		"long":          func(b []byte) []byte { return append(b, 0) },
		"base version":  func(b []byte) []byte { b[0] = 2; return b },
		"class":         func(b []byte) []byte { b[1] = 3; return b },
		"class version": func(b []byte) []byte { b[2] = 1; return b },
		"method":        func(b []byte) []byte { b[3] = 1; return b },
		"attribute":     func(b []byte) []byte { b[17] = 0x1b; return b },
	} {
		_, m, err := Decode(change(bytes.Clone(good)))
		require.ErrorIs(t, err, ErrMalformed, name)
		require.Nil(t, m, name)
	}
	for _, a := range []Attr{AttrLAP, AttrAPR} {
		b := bytes.Clone(good)
		b[17] = byte(a)
		h, m, err := Decode(b)
		require.ErrorIs(t, err, ErrIgnored)
		require.Nil(t, m)
		require.Equal(t, a, h.AttributeID)
	}
}

func TestIPHeader(t *testing.T) {
	for _, h := range []IPHeader{
		{netip.MustParseAddrPort("10.7.0.1:33232"), netip.MustParseAddr("10.7.0.2")},
		{netip.MustParseAddrPort("[fd00:7::1]:1"), netip.MustParseAddr("fd00:7::2")},
	} {
		b := bytes.Repeat([]byte{0xaa}, 40)
		h.Put(b)
		got, err := ParseIPHeader(b)
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.Equal(t, bytes.Repeat([]byte{0xaa}, 4), b[36:])
	}
	good := capturedMAD(t, "roce-rping-v4:3").mad[headerSize+140:]
	v6 := capturedMAD(t, "roce-rping-v6:3").mad[headerSize+140:]
	for name, b := range map[string][]byte{
		"major version": change(good, 0, 0x10),
		"minor version": change(good, 0, 0x01),
		"IP version":    change(good, 1, 0x50),
		"mapped": change(v6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1,
			0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2),
		"short": good[:35],
	} {
		_, err := ParseIPHeader(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

// change returns b with bytes replaced from off on.
func change(b []byte, off int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[off:], with)
	return b
}

func TestServiceID(t *testing.T) {
	require.EqualValues(t, 0x1061c06, ServiceID(0x0106, 7174))
	space, port, ok := SplitServiceID(0x13f1d2f)
	require.True(t, ok)
	require.EqualValues(t, 0x13f, space)
	require.EqualValues(t, 0x1d2f, port)
	for _, id := range []uint64{0x1d2f, 1<<32 | 0x1061c06, 1 << 63} {
		_, _, ok = SplitServiceID(id)
		require.False(t, ok, "%#x", id)
	}
}

func TestTimes(t *testing.T) {
	require.Equal(t, 4096*time.Millisecond, Duration(20))
	require.Equal(t, 2048*time.Millisecond, Duration(19))
	require.Equal(t, 65536*time.Millisecond, Duration(24))
	require.Equal(t, time.Millisecond, Duration(8))
	require.Equal(t, time.Millisecond, Duration(0))
	require.Equal(t, 1<<23*time.Millisecond, Duration(31))

	// Delay and lifetime as rdma_rxe and rdma_cm have them give 19.
	require.EqualValues(t, 19, ACKTimeout(15, 18))
	for _, c := range []struct{ delay, lifetime, want uint8 }{
		{0, 0, 2}, {0, 18, 19}, {18, 18, 20}, {19, 18, 20}, {20, 18, 21}, {21, 18, 21}, {31, 31, 31}, {0, 31, 31},
	} {
		require.Equal(t, c.want, ACKTimeout(c.delay, c.lifetime), "%+v", c)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range capturedMADs(f) {
		f.Add(c.mad)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, m, err := Decode(b)
		if err != nil {
			if m != nil {
				t.Fatal("message beside an error")
			}
			return
		}
		d, ok := ParseDest(b)
		if !ok || d.Attr != h.AttributeID {
			t.Fatal("decoded, but for nobody")
		}
		// What is read is written, and read again the same.
		w := Encode(h, m)
		h2, m2, err := Decode(w[:])
		require.NoError(t, err)
		require.Equal(t, h, h2)
		require.Equal(t, m, m2)
		require.Equal(t, w, Encode(h2, m2))
	})
}

func FuzzIPHeader(f *testing.F) {
	for _, c := range capturedMADs(f) {
		if _, m, _ := Decode(c.mad); m.Attr() == AttrREQ {
			f.Add(m.(*REQ).PrivateData[:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseIPHeader(b)
		if err != nil {
			return
		}
		w := make([]byte, IPHeaderSize)
		h.Put(w)
		h2, err := ParseIPHeader(w)
		require.NoError(t, err)
		require.Equal(t, h, h2)
	})
}
