package wire

import (
	"encoding/binary"
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

// readCapture returns the datagrams to UDP port 4791 of a capture.
func readCapture(t testing.TB, name string) []datagram {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	var ds []datagram
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return ds
		}
		require.NoError(t, err)
		if d, ok := parseFrame(frame); ok {
			ds = append(ds, d)
		}
	}
}

// parseFrame returns the datagram to UDP port 4791 in an Ethernet frame.
func parseFrame(b []byte) (d datagram, ok bool) {
	if len(b) < 14 {
		return d, false
	}
	typ := binary.BigEndian.Uint16(b[12:])
	b = b[14:]
	if typ == 0x8100 && len(b) >= 4 {
		typ = binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	var proto byte
	switch {
	case typ == 0x0800 && len(b) >= 20 && b[0] == 0x45:
		proto = b[9]
		d.id = binary.BigEndian.Uint16(b[4:])
		d.src, d.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		b = b[20:]
	case typ == 0x86DD && len(b) >= 40:
		proto = b[6]
		d.src, d.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[40:]
	}
	if proto != 17 || len(b) < 8 || binary.BigEndian.Uint16(b[2:]) != udpPort {
		return d, false
	}
	d.srcPort = binary.BigEndian.Uint16(b)
	d.data = b[8:binary.BigEndian.Uint16(b[4:])]
	return d, true
}

// checkCaptures checks every packet of the captures that pattern matches and
// returns their number, in all and over IPv4.
func checkCaptures(t *testing.T, pattern string) (all, v4 int) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, names, "no captures %s", pattern)
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".pcap"), func(t *testing.T) {
			ds := readCapture(t, name)
			require.NotEmpty(t, ds)
			for _, d := range ds {
				checkDatagram(t, d)
				all++
				if d.src.Is4() {
					v4++
				}
			}
		})
	}
	return all, v4
}

// TestCaptures checks the captures kept here: packets of rdma_rxe, and of a
// process without privileges.
func TestCaptures(t *testing.T) {
	all, v4 := checkCaptures(t, filepath.Join("testdata", "*.pcap"))
	require.Equal(t, [2]int{266, 207}, [2]int{all, v4})
}

// TestAllCaptures checks the whole collection, where it is at hand.
func TestAllCaptures(t *testing.T) {
	dir, ok := capturesDir()
	if !ok {
		t.Skip("no shared/captures above this directory, and RDMA_CAPTURES not set; TestCaptures checks a selection")
	}
	all, v4 := checkCaptures(t, filepath.Join(dir, "roce-*.pcap"))
	require.Equal(t, [2]int{1315, 1163}, [2]int{all, v4})
	all, v4 = checkCaptures(t, filepath.Join(dir, "rsockets-*.pcap"))
	require.Equal(t, [2]int{969, 950}, [2]int{all, v4})
	all, v4 = checkCaptures(t, filepath.Join(dir, "librpma-*.pcap"))
	require.Equal(t, [2]int{128, 128}, [2]int{all, v4})
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
