package verbs

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What rdma_rxe of Linux 6.1 put in front of a datagram of 5 bytes.
var (
	grh4 = strings.Repeat("00", 20) + "4522003c000040002111457e0a0700030a070001"
	grh6 = "600df87800281140" + "fd000007000000000000000000000003" + "fd000007000000000000000000000001"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestParseGRH(t *testing.T) {
	g, err := ParseGRH(unhex(t, grh4), WCGRH|WCGRHv4)
	require.NoError(t, err)
	require.Equal(t, GRH{
		Source: netip.MustParseAddr("10.7.0.3"), Dest: netip.MustParseAddr("10.7.0.1"), TrafficClass: 0x22, HopLimit: 33,
	}, g)
	// The first 20 bytes may be anything, an IPv6 header among them.
	g2, err := ParseGRH(append(unhex(t, grh6)[:20], unhex(t, grh4)[20:]...), WCGRH|WCGRHv4)
	require.NoError(t, err)
	require.Equal(t, g, g2)

	g, err = ParseGRH(unhex(t, grh6+"ff"), WCGRH|WCWithImm)
	require.NoError(t, err)
	require.Equal(t, GRH{
		Source: netip.MustParseAddr("fd00:7::3"), Dest: netip.MustParseAddr("fd00:7::1"), TrafficClass: 0, HopLimit: 64, FlowLabel: 0xdf878,
	}, g)

	for _, c := range []struct {
		b     []byte
		flags WCFlags
	}{
		{nil, WCGRH}, {unhex(t, grh6)[:39], WCGRH}, {unhex(t, grh6), 0}, {unhex(t, grh4), WCGRH}, {unhex(t, grh6), WCGRH | WCGRHv4},
	} {
		_, err := ParseGRH(c.b, c.flags)
		require.ErrorIs(t, err, ErrBadGRH)
	}
}

func FuzzParseGRH(f *testing.F) {
	f.Add(unhex(f, grh4), uint8(WCGRH|WCGRHv4))
	f.Add(unhex(f, grh6), uint8(WCGRH))
	f.Fuzz(func(t *testing.T, b []byte, flags uint8) {
		g, err := ParseGRH(b, WCFlags(flags))
		if err != nil {
			return
		}
		require.True(t, g.Source.IsValid() && g.Dest.IsValid())
		require.Less(t, g.FlowLabel, uint32(1<<20))
		if WCFlags(flags)&WCGRHv4 != 0 {
			require.True(t, g.Source.Is4() && g.Dest.Is4())
		}
	})
}
