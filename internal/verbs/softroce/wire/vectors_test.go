package wire

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectors are packets of rdma_rxe and of a ConnectX-4 Lx, header by header.
var vectors = []struct {
	name string
	ip   string
	udp  string
	data string // BTH to pad
	icrc string
	op   Opcode
}{
	{"RC ACK v4", "450000302f3440004011f7780a0700020a070001", "d40912b7001c0000",
		"1100ffff0000001100de86ce1f000001", "243631b5", RCAck},
	{"RC SEND Only v4", "4500003cf4dc4000401131c40a0700010a070002", "d40912b700280000",
		"0400ffff0000001180de86ce000055b2e3dd65c00000051c00000040", "ded10a02", RCSendOnly},
	{"RC ACK v6", "60000000001c1140fd000007000000000000000000000002fd000007000000000000000000000001",
		"e98b12b7001c0000", "1100ffff00000016005080321f000001", "d0220a84", RCAck},
	{"SEND of 1 byte", "450000305b2e40004011cb7e0a0700010a070002", "de5012b7001c0000",
		"0430ffff0000002180caee3707000000", "7ccf2388", RCSendOnly},
	{"CmpSwap", "450000485b4240004011cb520a0700010a070002", "de5012b700340000",
		"1300ffff0000002180caee5100005587736de0180000164300000000000033440000000000001122", "18cd8fdb", RCCompareSwap},
	{"ConnectX-4 Lx CNP", "45c2003c718c4000401191610a0011010a001201", "000012b700280000",
		"8100ffff4000011800000000" + strings.Repeat("00", 16), "82fd002a", CNP},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			ip, udp, data, icrc := unhex(t, v.ip), unhex(t, v.udp), unhex(t, v.data), unhex(t, v.icrc)
			d := datagram{
				srcPort: binary.BigEndian.Uint16(udp),
				data:    append(data, icrc...),
			}
			if len(ip) == 20 {
				d.src, d.dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
				d.id = binary.BigEndian.Uint16(ip[4:])
			} else {
				d.src, d.dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
			}
			p := checkDatagram(t, d)
			require.Equal(t, v.op, p.Opcode)
		})
	}
}

// datagram is a packet of a capture: addresses, UDP source port and UDP payload.
type datagram struct {
	src, dst netip.Addr
	srcPort  uint16
	id       uint16
	data     []byte // BTH to ICRC
}

// checkDatagram decodes d, encodes it to the same bytes and ICRC, and verifies
// it with a right and with wrong guesses of its identification.
func checkDatagram(t testing.TB, d datagram) *Packet {
	t.Helper()
	body := d.data[:len(d.data)-ICRCLen]
	var p Packet
	require.NoError(t, p.Decode(body))

	out := make([]byte, len(d.data))
	n := p.PutHeaders(out)
	require.Equal(t, p.HeaderLen(), n)
	n += copy(out[n:], p.Payload)
	n += int(PadFor(len(p.Payload))) // the pad is zero
	crc := ICRCStart(d.src, d.dst, d.srcPort, 8+len(d.data), d.id)
	crc = ICRCHeader(crc, out[:p.HeaderLen()])
	crc = ICRCBytes(crc, out[p.HeaderLen():n])
	PutICRC(out[n:], crc)
	require.Equal(t, d.data, out)

	for _, guess := range []uint16{d.id, d.id + 1, 0, 0xFFFF, d.id ^ 0x8001} {
		id, ok := Verify(d.src, d.dst, d.srcPort, d.data, guess)
		require.True(t, ok, "guess %#x", guess)
		require.Equal(t, d.id, id, "guess %#x", guess)
	}
	return &p
}
