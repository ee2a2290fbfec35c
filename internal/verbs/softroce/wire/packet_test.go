package wire

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// knownOps lists every opcode with its headers as tables of IBTA 9.2 have them.
var knownOps = map[Opcode]struct {
	hdr     int
	payload bool
}{
	0x00: {12, true}, 0x01: {12, true}, 0x02: {12, true}, 0x03: {16, true}, 0x04: {12, true}, 0x05: {16, true},
	0x06: {28, true}, 0x07: {12, true}, 0x08: {12, true}, 0x09: {16, true}, 0x0A: {28, true}, 0x0B: {32, true},
	0x0C: {28, false}, 0x0D: {16, true}, 0x0E: {12, true}, 0x0F: {16, true}, 0x10: {16, true}, 0x11: {16, false},
	0x12: {24, false}, 0x13: {40, false}, 0x14: {40, false}, 0x16: {16, true}, 0x17: {16, true},
	0x1C: {32, false}, 0x1D: {28, true}, 0x64: {20, true}, 0x65: {24, true}, 0x81: {12, true},
}

func TestOpcodes(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		want, known := knownOps[op]
		require.Equal(t, known, op.Known(), op)
		if !known {
			require.Equal(t, ServiceNone, op.Service())
			require.Equal(t, BTHLen, op.HeaderLen())
			require.False(t, op.IsRequest() || op.IsResponse() || op.HasPayload() || op.IsSend() || op.IsWrite())
			continue
		}
		require.Equal(t, want.hdr, op.HeaderLen(), op)
		require.LessOrEqual(t, op.HeaderLen(), MaxHeaderLen)
		require.Equal(t, want.payload, op.HasPayload(), op)
		require.NotEmpty(t, op.String())
		if op == CNP {
			require.False(t, op.IsRequest() || op.IsResponse())
		} else {
			require.NotEqual(t, op.IsRequest(), op.IsResponse(), op)
		}
		require.Equal(t, op.IsFirst() || op.IsOnly(), op.Begins(), op)
		require.Equal(t, op.IsLast() || op.IsOnly(), op.Ends(), op)
	}
	for _, op := range []Opcode{RCSendLastImm, RCSendOnlyImm, RCWriteLastImm, RCWriteOnlyImm, UDSendOnlyImm} {
		require.True(t, op.HasImm(), op)
	}
	for _, op := range []Opcode{RCSendFirst, RCWriteFirst, RCReadResponseFirst} {
		require.True(t, op.IsFirst(), op)
	}
	for _, op := range []Opcode{RCSendMiddle, RCWriteMiddle, RCReadResponseMid} {
		require.True(t, op.IsMiddle() && !op.Begins() && !op.Ends(), op)
	}
	for _, op := range []Opcode{RCSendLast, RCSendLastImm, RCSendLastInv, RCWriteLast, RCWriteLastImm, RCReadResponseLast} {
		require.True(t, op.IsLast(), op)
	}
	require.True(t, RCSendOnlyInv.HasInv() && RCSendLastInv.HasInv() && !RCSendOnlyImm.HasInv())
	require.True(t, RCWriteOnly.HasRETH() && !RCWriteLast.HasRETH() && RCFlush.HasRETH())
	require.True(t, RCAck.HasAETH() && RCAtomicAck.HasAETH() && !RCReadResponseMid.HasAETH())
	require.True(t, RCFetchAdd.IsAtomic() && RCCompareSwap.IsAtomic() && !RCAtomicWrite.IsAtomic())
	require.Equal(t, "opcode 0xff", Opcode(0xFF).String())
}

// genPacket draws a packet of any opcode with every bit of its headers free.
func genPacket(t *rapid.T) *Packet {
	ops := make([]Opcode, 0, len(knownOps))
	for i := range 256 {
		if Opcode(i).Known() {
			ops = append(ops, Opcode(i))
		}
	}
	u24 := rapid.Uint32Range(0, 1<<24-1)
	p := &Packet{BTH: BTH{
		Opcode:    rapid.SampledFrom(ops).Draw(t, "opcode"),
		Solicited: rapid.Bool().Draw(t, "solicited"),
		MigReq:    rapid.Bool().Draw(t, "migreq"),
		PKey:      rapid.Uint16().Draw(t, "pkey"),
		FECN:      rapid.Bool().Draw(t, "fecn"),
		BECN:      rapid.Bool().Draw(t, "becn"),
		Reserved6: rapid.Uint8Range(0, 63).Draw(t, "reserved6"),
		DestQP:    u24.Draw(t, "destqp"),
		AckReq:    rapid.Bool().Draw(t, "ackreq"),
		Reserved7: rapid.Uint8Range(0, 127).Draw(t, "reserved7"),
		PSN:       u24.Draw(t, "psn"),
	}}
	ext := p.Opcode.Extensions()
	u64, u32 := rapid.Uint64(), rapid.Uint32()
	if ext&ExtDETH != 0 {
		p.DETH = DETH{u32.Draw(t, "qkey"), rapid.Uint8().Draw(t, "deth reserved"), u24.Draw(t, "srcqp")}
	}
	if ext&ExtFETH != 0 {
		p.FETH = FETH(u32.Draw(t, "feth"))
	}
	if ext&ExtRETH != 0 {
		p.RETH = RETH{u64.Draw(t, "va"), u32.Draw(t, "rkey"), u32.Draw(t, "length")}
	}
	if ext&ExtAETH != 0 {
		p.AETH = AETH{rapid.Uint8().Draw(t, "syndrome"), u24.Draw(t, "msn")}
	}
	if ext&ExtAtomic != 0 {
		p.Atomic = AtomicETH{u64.Draw(t, "va"), u32.Draw(t, "rkey"), u64.Draw(t, "swap"), u64.Draw(t, "compare")}
	}
	if ext&ExtAtomicAck != 0 {
		p.AtomicAck.Original = u64.Draw(t, "original")
	}
	if ext&ExtImm != 0 {
		p.Imm = u32.Draw(t, "imm")
	}
	if ext&ExtIETH != 0 {
		p.InvKey = u32.Draw(t, "invkey")
	}
	p.Payload = []byte{}
	if p.Opcode.HasPayload() {
		p.Payload = rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "payload")
	}
	p.Pad = PadFor(len(p.Payload))
	return p
}

// encode returns the packet's bytes, BTH to pad.
func encode(p *Packet) []byte {
	b := make([]byte, p.HeaderLen())
	p.PutHeaders(b)
	b = append(b, p.Payload...)
	return append(b, make([]byte, p.Pad)...)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPacket(t)
		b := encode(p)
		if len(b)&3 != 0 {
			t.Fatalf("length %d", len(b))
		}
		got := Packet{Imm: 1, InvKey: 2, FETH: 3, Payload: []byte("of the packet before")}
		if err := got.Decode(b); err != nil {
			t.Fatal(err)
		}
		require.Equal(t, p, &got)
	})
}

func TestDecodeErrors(t *testing.T) {
	ok := encode(&Packet{BTH: BTH{Opcode: RCSendOnly, Pad: 3}, Payload: []byte{1}})
	require.NoError(t, new(Packet).Decode(ok))
	with := func(f func(b []byte) []byte) []byte { return f(append([]byte(nil), ok...)) }
	set := func(i int, v byte) []byte { return with(func(b []byte) []byte { b[i] = v; return b }) }
	for _, c := range []struct {
		name string
		b    []byte
		want DecodeError
	}{
		{"empty", nil, ErrShort},
		{"half a BTH", ok[:8], ErrShort},
		{"odd length", ok[:15], ErrLength},
		{"version", set(1, 0x31), ErrVersion},
		{"UC opcode", set(0, 0x24), ErrOpcode},
		{"reserved opcode", set(0, 0x15), ErrOpcode},
		{"RETH missing", set(0, byte(RCWriteOnly)), ErrShort},
		{"pad without payload", ok[:12], ErrPad},
		{"ACK with payload", append(encode(&Packet{BTH: BTH{Opcode: RCAck}}), 0, 0, 0, 0), ErrPayload},
		{"READ request with pad", encode(&Packet{BTH: BTH{Opcode: RCReadRequest, Pad: 1}})[:28], ErrPad},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := new(Packet).Decode(c.b)
			require.ErrorIs(t, err, c.want)
			var de DecodeError
			require.True(t, errors.As(err, &de))
			require.NotEqual(t, DecodeError(0).Error(), err.Error())
		})
	}
}

// TestDecodeKeepsToBounds decodes every prefix of packets of every opcode; the
// payload never reaches beyond what was given.
func TestDecodeKeepsToBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	full := make([]byte, 64)
	for i := range 256 {
		for range 8 {
			for j := range full {
				full[j] = byte(r.Uint32())
			}
			full[0], full[1] = byte(i), full[1]&0xF0
			for n := range full {
				var p Packet
				if err := p.Decode(full[:n:n]); err != nil {
					continue
				}
				require.Equal(t, n, p.HeaderLen()+len(p.Payload)+int(p.Pad))
				require.Equal(t, len(p.Payload), cap(p.Payload))
				require.True(t, p.Opcode.Known())
			}
		}
	}
}

func TestAETH(t *testing.T) {
	for _, c := range []struct {
		h    AETH
		kind AckKind
		code uint8
	}{
		{ACK(1), KindACK, 31},
		{AETH{0x00, 1}, KindACK, 0},
		{RNRNAK(12, 1), KindRNR, 12},
		{RNRNAK(0xFF, 1), KindRNR, 31},
		{AETH{0x40, 1}, KindReserved, 0},
		{NAK(SyndromePSNSequence, 1), KindNAK, 0},
		{NAK(SyndromeRemoteOp, 1), KindNAK, 3},
		{AETH{0x9F, 1}, KindReserved, 31},
		{AETH{0xE0, 1}, KindReserved, 0},
	} {
		require.Equal(t, c.kind, c.h.Kind(), "%#x", c.h.Syndrome)
		require.Equal(t, c.code, c.h.Code(), "%#x", c.h.Syndrome)
		require.Equal(t, uint32(1), c.h.MSN)
	}
	require.Equal(t, uint32(0), ACK(1<<24).MSN, "24 bits")
	require.Equal(t, uint8(0x1F), ACK(0).Syndrome)
	require.Equal(t, uint8(0x2C), RNRNAK(12, 0).Syndrome)
}

func TestFETH(t *testing.T) {
	f := NewFETH(PlacementGlobal|PlacementPersistent, FlushMR)
	require.Equal(t, FETH(0x13), f)
	require.Equal(t, uint8(3), f.Placement())
	require.Equal(t, uint8(FlushMR), f.Level())
}

func TestPSN(t *testing.T) {
	require.Equal(t, int32(1), PSNDiff(0, PSNMask))
	require.Equal(t, int32(-1), PSNDiff(PSNMask, 0))
	require.Equal(t, int32(-1<<23), PSNDiff(1<<23, 0))
	require.Equal(t, int32(1<<23-1), PSNDiff(1<<23-1, 0))
	require.Equal(t, uint32(0), PSNAdd(PSNMask, 1))
	require.Equal(t, PSNMask, PSNAdd(0, ^uint32(0)))
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint32Range(0, PSNMask).Draw(t, "a")
		d := rapid.Int32Range(-1<<23, 1<<23-1).Draw(t, "d")
		b := PSNAdd(a, uint32(d))
		if b > PSNMask || PSNDiff(b, a) != d {
			t.Fatalf("%#x + %d = %#x, whose distance is %d", a, d, b, PSNDiff(b, a))
		}
	})
}

func TestPadFor(t *testing.T) {
	for n, want := range []uint8{0, 3, 2, 1, 0, 3} {
		require.Equal(t, want, PadFor(n))
	}
}

func FuzzDecode(f *testing.F) {
	for op := range knownOps {
		f.Add(encode(&Packet{BTH: BTH{Opcode: op, PSN: 7}}))
		f.Add(encode(&Packet{BTH: BTH{Opcode: op, PSN: 7, Pad: 2}, Payload: []byte("ab")}))
	}
	for _, v := range vectors {
		f.Add(unhex(f, v.data))
	}
	for s := range placementPackets {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		if err := p.Decode(b); err != nil {
			var de DecodeError
			require.True(t, errors.As(err, &de))
			return
		}
		// All but the contents of the pad comes back.
		end := len(b) - int(p.Pad)
		require.Equal(t, b[:end], encode(&p)[:end])
	})
}
