package rdmacore

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

const echoPkg = "github.com/go-rdma/rdma/test/rdmacore/cmd/echo"

// TestTrafficClass looks at the wire: all packets of a connection have the class that its active side asked for, those of the
// passive side and of the connection manager too, but for data from a passive side that has a class of its own.
func TestTrafficClass(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.Build(t.Context(), echoPkg)
	require.NoError(t, err)
	// rdmacore is at the near end, softroce at the far one.
	for i, c := range []struct {
		name            string
		near, far       netip.Addr
		accepts         bool
		active, passive uint8
	}{
		{"rdmacore dials", p.Near.V4, p.Far.V4, false, 0x68, 0},
		{"rdmacore accepts", p.Near.V6, p.Far.V6, true, 0xb8, 0},
		{"both", p.Near.V4, p.Far.V4, true, 0x20, 0x48},
		{"none", p.Near.V6, p.Far.V6, false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			in := "ip netns exec " + p.Netns + " "
			listen, dial, at := in+prog+" -device softroce", prog+" -device rdmacore", c.far
			if c.accepts {
				listen, dial, at = prog+" -device rdmacore", in+prog+" -device softroce", c.near
			}
			file := fmt.Sprintf("class%d.pcap", i)
			out, err := g.Script(ctx, fmt.Sprintf(`
set -e
cd $(mktemp -d)
tcpdump -i %[1]s --immediate-mode -U -Z root -w %[2]s udp port 4791 2>dump & dump=$!
mkfifo in
%[3]s -listen '%[4]s' -class %[5]d <in >out 2>&1 & server=$!
exec 3>in
until grep -q 'listening on' dump && grep -q 'listening at' out; do sleep 0.1; done
%[6]s -dial '%[4]s' -class %[7]d
exec 3>&-
wait $server || { cat out; exit 1; }
sleep 1
kill -INT $dump
wait $dump || true
`, p.Near.Interface, g.SharePath(file), listen, netip.AddrPortFrom(at, 7901), c.passive, dial, c.active))
			require.NoError(t, err, "%s", out)
			b, err := os.ReadFile(filepath.Join(g.Share, file))
			require.NoError(t, err)
			seen := make(map[string]int)
			for _, k := range packets(t, b) {
				side := "far "
				if k.src == c.near {
					side = "near "
				}
				seen[side+k.what]++
				if k.what != "data" && seen[side+k.what] > 1 {
					continue // what the kernel answers to a repetition goes back as that came, over IPv4 without the class
				}
				want := c.active
				if c.passive != 0 && k.what == "data" && (side == "near ") == c.accepts {
					want = c.passive
				}
				assert.Equal(t, want, k.class, side+k.what)
			}
			t.Log(seen)
			for _, what := range []string{"near data", "far data"} {
				assert.Positive(t, seen[what], what)
			}
		})
	}
}

// messages are the attribute IDs of the connection manager's messages (IBTA volume 1, 16.7.2).
var messages = map[uint16]string{0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP"}

// packet is what a RoCE packet says of itself.
type packet struct {
	src   netip.Addr
	class uint8
	what  string // data, or the message of the connection manager
}

// packets reads a file of tcpdump's, of RoCE over Ethernet.
func packets(t *testing.T, b []byte) (ps []packet) {
	t.Helper()
	require.GreaterOrEqual(t, len(b), 24)
	require.EqualValues(t, 0xa1b2c3d4, binary.LittleEndian.Uint32(b), "of this machine's byte order")
	for b = b[24:]; len(b) >= 16; {
		n := binary.LittleEndian.Uint32(b[8:])
		f := b[16 : 16+n]
		b = b[16+n:]
		var p packet
		var bth []byte
		switch binary.BigEndian.Uint16(f[12:]) {
		case 0x0800:
			p = packet{src: netip.AddrFrom4([4]byte(f[26:30])), class: f[15]}
			bth = f[14+20+8:]
		case 0x86dd:
			p = packet{src: netip.AddrFrom16([16]byte(f[22:38])), class: f[14]<<4 | f[15]>>4}
			bth = f[14+40+8:]
		default:
			require.Fail(t, "neither IPv4 nor IPv6")
		}
		p.what = "data"
		if binary.BigEndian.Uint32(bth[4:])&0xffffff == 1 { // the queue pair of the connection manager
			p.what = messages[binary.BigEndian.Uint16(bth[12+8+16:])]
		}
		ps = append(ps, p)
	}
	return ps
}
