package wire

// PSNMask covers the 24 bits of a packet sequence number.
const PSNMask uint32 = mask24

// PSNAdd returns psn moved by n, modulo 2^24. n may be negative as uint32(-1).
func PSNAdd(psn, n uint32) uint32 { return (psn + n) & PSNMask }

// PSNDiff returns the signed distance from b to a modulo 2^24, between -2^23
// and 2^23-1: negative when a is before b.
func PSNDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }
