package ibcm

// A channel adapter GUID is an EUI-64, whose first three bytes name who made the adapter. Those of this package name it, by
// an identifier that is administered locally (the bit 0x02 of the first byte). So its adapters know each other, and what the other one can do.
const (
	guidMaker = 0x0e476f << 40

	// A GUID made of an Ethernet address, which may begin so too, has this in the middle.
	guidOfMAC     = 0xfffe << 24
	guidOfMACMask = 0xffff << 24
)

// newGUID makes the GUID of an adapter.
func newGUID(rand func() uint64) uint64 {
	for {
		if g := rand()&(1<<40-1) | guidMaker; Kin(g) {
			return g
		}
	}
}

// Kin tells whether a GUID is of an adapter of this package.
func Kin(guid uint64) bool { return guid>>40 == guidMaker>>40 && guid&guidOfMACMask != guidOfMAC }
