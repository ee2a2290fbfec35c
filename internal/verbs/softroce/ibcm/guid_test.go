package ibcm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGUID(t *testing.T) {
	seen := map[uint64]bool{}
	for range 1000 {
		g := newGUID(rand.Uint64)
		require.True(t, Kin(g))
		require.Equal(t, uint64(2), g>>56&3, "administered locally, of one adapter")
		seen[g] = true
	}
	require.Len(t, seen, 1000)
	next := uint64(0x1234_56ff_fe78_9abc)
	require.Equal(t, uint64(0x0e47_6f00_0000_0001), newGUID(func() uint64 { defer func() { next = 1 }(); return next }))

	require.False(t, Kin(0))
	require.False(t, Kin(0x0e47_6fff_fe78_9abc), "made of an Ethernet address")
	require.False(t, Kin(0x0c47_6f00_0000_0001))
}
