package netio

import "net/netip"

// flow remembers how a sender numbers its IPv4 packets. Any identification makes some
// ICRC right for one in 65536 corrupted packets; knowing which ones to expect closes that hole.
type flow struct {
	remote netip.AddrPort
	last   uint16 // identification of the last packet
	step   uint16 // from one to the next among packets that arrived joined
	zeros  uint8  // packets with identification 0, without one of smallID or more between them
	odd    uint8  // in a row that were not believed
}

const (
	// smallID bounds the identifications of a Linux UDP socket as we use it: 0, and for the segments of one
	// send their number.
	smallID = 128

	// After trustAfter packets of such a socket a larger identification is taken for
	// corruption, until there are distrustAfter of them in a row. A sender that counts passes 0
	// once in 65536 packets and never gets there.
	trustAfter    = 16
	distrustAfter = 4
)

// flowOf finds the memory of a flow. Flows that collide forget each other.
func (s *rxSock) flowOf(remote netip.AddrPort) *flow {
	a := remote.Addr().As16()
	h := uint32(a[15]) ^ uint32(a[14])<<3 ^ uint32(remote.Port())
	f := &s.flows[(h^h>>6)%uint32(len(s.flows))]
	if f.remote != remote {
		*f = flow{remote: remote}
	}
	return f
}

// expect guesses the identification of packet n of those that arrived joined. A wrong
// guess costs some nanoseconds.
func (f *flow) expect(n int) uint16 {
	switch {
	case n > 0:
		return f.last + f.step
	case f.last == 0, f.zeros > 1:
		return 0
	}
	return f.last + 1
}

// seen takes the identification that was found and tells whether to believe it.
func (f *flow) seen(id uint16, n int) bool {
	switch {
	case id >= smallID:
		if f.zeros == trustAfter && f.odd < distrustAfter {
			f.odd++
			return false
		}
		f.zeros, f.odd = 0, 0
	case id == 0:
		f.zeros = min(f.zeros+1, trustAfter)
		f.odd = 0
	}
	if n == 0 {
		f.step = 1
	} else {
		f.step = id - f.last
	}
	f.last = id
	return true
}
