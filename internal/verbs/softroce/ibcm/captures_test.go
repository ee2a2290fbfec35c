package ibcm

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

// captured is a datagram that a kernel sent.
type captured struct {
	name     string // capture:frame
	src, dst netip.Addr
	mad      []byte
}

// capturedMADs reads testdata/mads.txt.
func capturedMADs(t testing.TB) []captured {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "mads.txt"))
	require.NoError(t, err)
	defer f.Close()
	var cs []captured
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		require.Len(t, w, 4)
		mad, err := hex.DecodeString(w[3])
		require.NoError(t, err)
		require.Len(t, mad, MADSize)
		cs = append(cs, captured{w[0], netip.MustParseAddr(w[1]), netip.MustParseAddr(w[2]), mad})
	}
	require.NoError(t, sc.Err())
	require.NotEmpty(t, cs)
	return cs
}

// capturedMAD returns the one of the given name.
func capturedMAD(t testing.TB, name string) captured {
	t.Helper()
	for _, c := range capturedMADs(t) {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("no %s in testdata", name)
	return captured{}
}

// checkSame decodes and encodes a datagram.
func checkSame(t *testing.T, c captured) Message {
	t.Helper()
	h, m, err := Decode(c.mad)
	require.NoError(t, err, c.name)
	require.Equal(t, c.mad, Encode(h, m)[:], "%s: %s", c.name, m.Attr())
	return m
}

func TestCapturedMADs(t *testing.T) {
	n := map[Attr]int{}
	for _, c := range capturedMADs(t) {
		n[checkSame(t, c).Attr()]++
	}
	require.Equal(t, map[Attr]int{
		AttrREQ: 11, AttrREP: 6, AttrRTU: 4, AttrREJ: 4, AttrMRA: 1,
		AttrDREQ: 4, AttrDREP: 4, AttrSIDRREQ: 2, AttrSIDRREP: 2,
	}, n)
}

// TestAllCaptures checks the whole collection of captures, where it is at hand.
func TestAllCaptures(t *testing.T) {
	dir, ok := capturesDir()
	if !ok {
		t.Skip("no shared/captures above this directory, and RDMA_CAPTURES not set; TestCapturedMADs checks a selection")
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	require.NoError(t, err)
	n := map[Attr]int{}
	for _, name := range names {
		for _, c := range readCapture(t, name) {
			n[checkSame(t, c).Attr()]++
		}
	}
	require.Equal(t, map[Attr]int{
		AttrREQ: 115, AttrREP: 72, AttrRTU: 72, AttrREJ: 9, AttrMRA: 2,
		AttrDREQ: 86, AttrDREP: 71, AttrSIDRREQ: 19, AttrSIDRREP: 3,
	}, n)
}

// capturesDir finds the collection of captures: named by RDMA_CAPTURES, or the
// directory shared/captures beside the module or above it.
func capturesDir() (string, bool) {
	if dir := os.Getenv("RDMA_CAPTURES"); dir != "" {
		return dir, true
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		c := filepath.Join(dir, "shared", "captures")
		if _, err := os.Stat(c); err == nil {
			return c, true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false
		}
		dir = up
	}
}

// readCapture returns the datagrams to queue pair 1 of a capture.
func readCapture(t *testing.T, name string) []captured {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	var cs []captured
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return cs
		}
		require.NoError(t, err)
		if c, ok := madOfFrame(frame); ok {
			c.name = filepath.Base(name)
			cs = append(cs, c)
		}
	}
}

// madOfFrame returns the datagram in an Ethernet frame: UD SEND Only to queue
// pair 1 at UDP port 4791.
func madOfFrame(b []byte) (c captured, ok bool) {
	typ, b := binary.BigEndian.Uint16(b[12:]), b[14:]
	if typ == 0x8100 {
		typ, b = binary.BigEndian.Uint16(b[2:]), b[4:]
	}
	var proto byte
	switch typ {
	case 0x0800:
		proto = b[9]
		c.src, c.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[20:]
	case 0x86dd:
		proto = b[6]
		c.src, c.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	}
	const udp, bth, deth, icrc = 8, 12, 8, 4
	if proto != 17 || binary.BigEndian.Uint16(b[2:]) != 4791 {
		return c, false
	}
	b = b[udp:binary.BigEndian.Uint16(b[4:])]
	if b[0] != 0x64 || u24(b[5:]) != GSIQPN {
		return c, false
	}
	c.mad = b[bth+deth : len(b)-icrc]
	return c, true
}
