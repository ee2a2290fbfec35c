package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	addr4a, addr4b = netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.7.0.2")
	addr6a, addr6b = netip.MustParseAddr("fd00:7::1"), netip.MustParseAddr("fd00:7::2")
)

// plainICRC computes the ICRC the long way: one pseudo packet, one CRC.
func plainICRC(src, dst netip.Addr, srcPort uint16, body []byte, id, flags uint16) uint32 {
	b := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	udpLen := 8 + len(body) + 4
	if src.Is4() {
		b = append(b, 0x45, 255)
		b = binary.BigEndian.AppendUint16(b, uint16(20+udpLen))
		b = binary.BigEndian.AppendUint16(b, id)
		b = binary.BigEndian.AppendUint16(b, flags)
		b = append(b, 255, 17, 255, 255)
	} else {
		b = append(b, 0x6F, 255, 255, 255)
		b = binary.BigEndian.AppendUint16(b, uint16(udpLen))
		b = append(b, 17, 255)
	}
	b = append(b, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, srcPort)
	b = binary.BigEndian.AppendUint16(b, 4791)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen))
	b = append(b, 255, 255)
	n := len(b)
	b = append(b, body...)
	b[n+4] = 255
	return crc32.ChecksumIEEE(b)
}

// seal appends the ICRC to body as the long way computes it.
func seal(src, dst netip.Addr, srcPort uint16, body []byte, id, flags uint16) []byte {
	return binary.LittleEndian.AppendUint32(body[:len(body):len(body)], plainICRC(src, dst, srcPort, body, id, flags))
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestCRCShort(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 200 {
		p, c := randomBytes(r, n), r.Uint32()
		require.Equal(t, crc32.Update(c, crc32.IEEETable, p), crcShort(c, p), "length %d", n)
		require.Equal(t, crc32.Update(c, crc32.IEEETable, p), ICRCBytes(c, p), "length %d", n)
	}
}

func TestICRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := addr4a, addr4b
		if rapid.Bool().Draw(t, "v6") {
			src, dst = addr6a, addr6b
		}
		port, id := rapid.Uint16().Draw(t, "port"), rapid.Uint16().Draw(t, "id")
		body := rapid.SliceOfN(rapid.Byte(), 12, 300).Draw(t, "body")
		want := plainICRC(src, dst, port, body, id, 0x4000)

		hdr := rapid.IntRange(12, len(body)).Draw(t, "header length")
		cut := rapid.IntRange(hdr, len(body)).Draw(t, "cut")
		c := ICRCStart(src, dst, port, 8+len(body)+4, id)
		c = ICRCHeader(c, body[:hdr])
		c = ICRCBytes(c, body[hdr:cut])
		c = ICRCBytes(c, body[cut:])
		require.Equal(t, want, c)
	})
}

// TestFlow: what is remembered of one datagram is used for those that it holds of, and no others.
func TestFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f Flow
		src, dst := addr4a, addr4b
		port, length := uint16(4791), 60
		for range rapid.IntRange(1, 20).Draw(t, "datagrams") {
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				src, dst = dst, src
			case 1:
				src, dst = addr6a, addr6b
			case 2:
				src, dst = addr4a, addr4b
			case 3:
				port = rapid.Uint16().Draw(t, "port")
			case 4:
				length = rapid.IntRange(24, 65515).Draw(t, "length")
			}
			id := rapid.Uint16().Draw(t, "id")
			require.Equal(t, ICRCStart(src, dst, port, length, id), f.ICRCStart(src, dst, port, length, id))
		}
	})
}

func TestVerify(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	lengths := []int{12, 16, 20, 28, 40, 44, 48, 256, 1040, 4096 + 28, 4*tableWords - 4, 4 * tableWords, 8192, 65504}
	for _, n := range lengths {
		for range 20 {
			body := randomBytes(r, n)
			id, port := uint16(r.Uint32()), uint16(r.Uint32())

			d := seal(addr4a, addr4b, port, body, id, 0x4000)
			for _, guess := range []uint16{id, 0, 0xFFFF, id + 1, uint16(r.Uint32())} {
				got, ok := Verify(addr4a, addr4b, port, d, guess)
				require.True(t, ok, "length %d, id %#x, guess %#x", n, id, guess)
				require.Equal(t, id, got, "length %d", n)
			}
			d = seal(addr4a, addr4b, port, body, id, 0)
			for _, guess := range []uint16{id, 0, uint16(r.Uint32())} {
				got, ok := Verify(addr4a, addr4b, port, d, guess)
				require.True(t, ok, "DF clear, length %d", n)
				require.Equal(t, id, got, "DF clear, length %d", n)
			}
			// A fragment is no RoCE packet.
			_, ok := Verify(addr4a, addr4b, port, seal(addr4a, addr4b, port, body, id, 0x2000), id)
			require.False(t, ok)
			_, ok = Verify(addr4a, addr4b, port, seal(addr4a, addr4b, port, body, id, 0x0001), id)
			require.False(t, ok)

			d = seal(addr6a, addr6b, port, body, 0, 0)
			got, ok := Verify(addr6a, addr6b, port, d, id)
			require.True(t, ok)
			require.Zero(t, got)
			d[len(d)-1] ^= 1
			_, ok = Verify(addr6a, addr6b, port, d, 0)
			require.False(t, ok)
		}
	}
}

func TestVerifyOddLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for n := 12; n < 100; n++ {
		d := seal(addr4a, addr4b, 4791, randomBytes(r, n), 0x1234, 0x4000)
		id, ok := Verify(addr4a, addr4b, 4791, d, 0)
		require.True(t, ok, "length %d", n)
		require.Equal(t, uint16(0x1234), id)
	}
}

// TestVerifyRefuses changes what the ICRC covers, and what it does not.
func TestVerifyRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	body := randomBytes(r, 60)
	d4 := seal(addr4a, addr4b, 4791, body, 0, 0x4000)
	d6 := seal(addr6a, addr6b, 4791, body, 0, 0)

	for _, d := range [][]byte{nil, d4[:4], d4[:15]} {
		_, ok := Verify(addr4a, addr4b, 4791, d, 0)
		require.False(t, ok)
	}
	for _, c := range []struct{ src, dst netip.Addr }{
		{addr4a, addr6b}, {addr6a, addr4b}, {netip.Addr{}, addr4b}, {addr4a, netip.Addr{}}, {netip.Addr{}, netip.Addr{}},
	} {
		_, ok := Verify(c.src, c.dst, 4791, d4, 0)
		require.False(t, ok)
	}
	_, ok := Verify(addr6a, addr6b, 4792, d6, 0)
	require.False(t, ok)
	_, ok = Verify(addr6b, addr6b, 4791, d6, 0)
	require.False(t, ok)

	// Over IPv6 every bit counts but those of the masked byte.
	for i := range d6 {
		for bit := range 8 {
			d := append([]byte(nil), d6...)
			d[i] ^= 1 << bit
			_, ok := Verify(addr6a, addr6b, 4791, d, 0)
			require.Equal(t, i == 4, ok, "byte %d bit %d", i, bit)
		}
	}

	// Over IPv4 with the identification unknown one corruption in 2^15 passes,
	// and then as another identification.
	const tries = 1 << 18
	passed := 0
	for range tries {
		d := append([]byte(nil), d4...)
		for range 1 + r.IntN(4) {
			i := r.IntN(len(d))
			for i == 4 {
				i = r.IntN(len(d))
			}
			d[i] ^= byte(1 + r.IntN(255))
		}
		id, ok := Verify(addr4a, addr4b, 4791, d, 0)
		if ok && string(d) != string(d4) {
			passed++
			require.NotZero(t, id)
		}
	}
	t.Logf("%d of %d corruptions passed", passed, tries)
	require.Less(t, passed, 4*tries>>15)
}

func TestInversePower(t *testing.T) {
	// Feeding k zero bytes into a register multiplies by x^(8k).
	r := rand.New(rand.NewPCG(11, 12))
	for _, k := range []int{0, 1, 2, 3, 24, 25, 40, 64, 1000, 4000, 4500, 9000, 65535} {
		w := r.Uint32()
		c := w
		for range k {
			c = crc32.IEEETable[byte(c)] ^ c>>8
		}
		require.Equal(t, w, mulmod(c, inversePower(k)), "k %d", k)
	}
}

// TestAllocs holds the data path to no allocations.
func TestAllocs(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	body := randomBytes(r, 1040)
	body[0], body[1] = byte(RCWriteOnly), 0
	d4 := seal(addr4a, addr4b, 4791, body, 7, 0x4000)
	d6 := seal(addr6a, addr6b, 4791, body, 0, 0)
	bad := append([]byte(nil), d4...)
	bad[50] ^= 1
	out := make([]byte, MaxHeaderLen+ICRCLen)
	var p Packet
	var err error
	var sum uint32
	var flow Flow
	for name, f := range map[string]func(){
		"Decode":        func() { err = p.Decode(body) },
		"Decode error":  func() { err = p.Decode(body[:20]) },
		"PutHeaders":    func() { sum += uint32(p.PutHeaders(out)) },
		"ICRC":          func() { sum += ICRCBytes(ICRCHeader(ICRCStart(addr4a, addr4b, 4791, 60, 0), out[:28]), body) },
		"ICRC v6":       func() { sum += ICRCHeader(ICRCStart(addr6a, addr6b, 4791, 60, 0), out[:28]) },
		"PutICRC":       func() { PutICRC(out, sum) },
		"Flow":          func() { sum += flow.ICRCStart(addr4a, addr4b, 4791, 60, uint16(sum)) },
		"Flow.Verify":   func() { flow.Verify(addr4a, addr4b, 4791, d4, 7) },
		"Verify":        func() { Verify(addr4a, addr4b, 4791, d4, 7) },
		"Verify solved": func() { Verify(addr4a, addr4b, 4791, d4, 8) },
		"Verify refused": func() {
			Verify(addr4a, addr4b, 4791, bad, 8)
		},
		"Verify v6": func() { Verify(addr6a, addr6b, 4791, d6, 0) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
	require.ErrorIs(t, func() error { p.Decode(body[:20]); return p.Decode(body[:20]) }(), ErrShort)
	_ = err
}

func FuzzVerify(f *testing.F) {
	body := make([]byte, 16)
	f.Add(seal(addr4a, addr4b, 4791, body, 1, 0x4000), uint16(4791), uint16(0), false)
	f.Add(seal(addr6a, addr6b, 4791, body, 1, 0), uint16(4791), uint16(0), true)
	for _, v := range vectors {
		f.Add(append(unhex(f, v.data), unhex(f, v.icrc)...), uint16(0xD409), uint16(0x2F34), false)
	}
	f.Fuzz(func(t *testing.T, d []byte, port, guess uint16, v6 bool) {
		src, dst := addr4a, addr4b
		if v6 {
			src, dst = addr6a, addr6b
		}
		id, ok := Verify(src, dst, port, d, guess)
		if len(d) < 16 || len(d) > 65507 {
			if len(d) < 16 {
				require.False(t, ok)
			}
			return
		}
		// What Verify says of the identification, the long way must confirm.
		body, icrc := d[:len(d)-4], binary.LittleEndian.Uint32(d[len(d)-4:])
		right := func(flags uint16) bool { return plainICRC(src, dst, port, body, id, flags) == icrc }
		if ok {
			require.True(t, right(0x4000) || !v6 && right(0))
		} else {
			id = guess
			require.False(t, right(0x4000) || !v6 && right(0))
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, n := range []int{16, 1040, 4124} {
		d := seal(addr4a, addr4b, 4791, randomBytes(r, n), 7, 0x4000)
		for name, guess := range map[string]uint16{"expected": 7, "solved": 8} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					if _, ok := Verify(addr4a, addr4b, 4791, d, guess); !ok {
						b.Fatal("refused")
					}
				}
			})
		}
	}
}

func BenchmarkICRCHeaders(b *testing.B) {
	hdr := make([]byte, 28)
	b.ReportAllocs()
	var c uint32
	for b.Loop() {
		c += ICRCHeader(ICRCStart(addr4a, addr4b, 4791, 60, 0), hdr)
	}
	_ = c
}

func BenchmarkDecode(b *testing.B) {
	body := encode(&Packet{BTH: BTH{Opcode: RCWriteOnlyImm}, Payload: make([]byte, 64)})
	b.ReportAllocs()
	var p Packet
	for b.Loop() {
		if err := p.Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}
