package softroce

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSettled: the packets of a peer that stays with a way count, those of one that looks for a way do not.
func TestSettled(t *testing.T) {
	var h handed
	for i := range uint16(1000) {
		for range probePackets {
			require.False(t, h.settled(i%16))
		}
	}
	for i := range settledAfter {
		require.Equal(t, i == settledAfter-1, h.settled(77))
	}
	require.True(t, h.settled(77))
	require.False(t, h.settled(78))
	require.False(t, h.settled(77))
}

// TestParts: processes have ways of their own, as far as there are enough.
func TestParts(t *testing.T) {
	const ports = 16
	owner := map[uint32]uint32{}
	for slot := range uint32(4) {
		for n := range uint32(100) {
			way := partFlow(slot<<16|n*77, n) % ports
			if had, ok := owner[way]; ok {
				require.Equal(t, slot, had)
			}
			owner[way] = slot
		}
	}
	require.Len(t, owner, ports)
}
