package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// placementPackets are FLUSH and ATOMIC WRITE requests, BTH to pad, byte for byte. In a FLUSH the FETH comes before the RETH; the
// placement types are bits 3 to 0 of its word, the selectivity level bits 5 and 4 (IBTA annexes A19.4.1.1 and A19.4.1.2). An
// ATOMIC WRITE has the RETH of a WRITE and 8 bytes of payload.
var placementPackets = map[string]Packet{
	"1c00ffff000abcde8000000700000001" + "1122334455667788cafebabe00000bb8": {
		BTH:  BTH{Opcode: RCFlush, PKey: 0xFFFF, DestQP: 0xABCDE, AckReq: true, PSN: 7},
		FETH: NewFETH(PlacementGlobal, FlushRange), RETH: RETH{VA: 0x1122334455667788, RKey: 0xCAFEBABE, Length: 3000}, Payload: []byte{},
	},
	"1c00ffff000abcde80fffffe00000013" + "0000000000000000cafebabe00000000": {
		BTH:  BTH{Opcode: RCFlush, PKey: 0xFFFF, DestQP: 0xABCDE, AckReq: true, PSN: 0xFFFFFE},
		FETH: NewFETH(PlacementGlobal|PlacementPersistent, FlushMR), RETH: RETH{RKey: 0xCAFEBABE}, Payload: []byte{},
	},
	"1d00ffff000abcde80000008" + "1122334455667788cafebabe00000008" + "6162636465666768": {
		BTH:  BTH{Opcode: RCAtomicWrite, PKey: 0xFFFF, DestQP: 0xABCDE, AckReq: true, PSN: 8},
		RETH: RETH{VA: 0x1122334455667788, RKey: 0xCAFEBABE, Length: 8}, Payload: []byte("abcdefgh"),
	},
}

func TestPlacementPackets(t *testing.T) {
	for s, want := range placementPackets {
		b := unhex(t, s)
		require.Equal(t, b, encode(&want))
		var got Packet
		require.NoError(t, got.Decode(b))
		require.Equal(t, want, got)
		for n := range len(b) {
			if err := got.Decode(b[:n]); n < want.HeaderLen() || want.Opcode == RCFlush {
				require.Error(t, err, "%d bytes of %v", n, want.Opcode)
			}
		}
		if want.Opcode == RCFlush {
			require.ErrorIs(t, got.Decode(append(b, 0, 0, 0, 0)), ErrPayload)
		}
	}
}

// TestFETHFields: each field is where it belongs, and what is reserved is in neither.
func TestFETHFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		placement, level := rapid.Uint8Range(0, 15).Draw(t, "placement"), rapid.Uint8Range(0, 3).Draw(t, "level")
		f := NewFETH(placement, level)
		require.Equal(t, FETH(placement)|FETH(level)*16, f)
		f |= FETH(rapid.Uint32().Draw(t, "reserved")) &^ 0x3F
		require.Equal(t, placement, f.Placement())
		require.Equal(t, level, f.Level())
	})
}
