package rdmacore

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What rdma_rxe of Linux 6.1 put in front of datagrams.
var (
	seenV4 = strings.Repeat("00", 20) + "4522003c000040002111457e0a0700030a070001"
	seenV6 = "600df87800281140" + "fd000007000000000000000000000003" + "fd000007000000000000000000000001"
)

func TestGRHIsIPv4(t *testing.T) {
	for _, c := range []struct {
		name, grh string
		want      bool
	}{
		{"IPv4", seenV4, true},
		{"IPv6", seenV6, false},
		{"IPv4 behind a header of IPv6 that was there before", seenV6[:40] + seenV4[40:], true},
		{"IPv4 without a checksum", seenV4[:60] + "0000" + seenV4[64:], true},
		{"IPv6 whose source looks like the beginning of one of IPv4", seenV6[:40] + "4500003c" + seenV6[48:], false},
		{"IPv6 to an address that looks like the rest of it", seenV6[:40] + "4522003c0000400021110000" + seenV4[64:], false},
		{"nothing", strings.Repeat("00", 40), false},
	} {
		require.Equal(t, c.want, grhIsIPv4(unhex(t, c.grh)), c.name)
	}
}

func FuzzGRHIsIPv4(f *testing.F) {
	for _, s := range []string{seenV4, seenV6} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 40 {
			return
		}
		if grhIsIPv4(b[:40]) {
			require.EqualValues(t, 0x45, b[20])
		}
	})
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}
