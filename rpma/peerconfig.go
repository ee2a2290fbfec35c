package rpma

// PeerConfigSize is the length of a peer configuration's descriptor.
const PeerConfigSize = 1

// PeerConfig is what a peer tells of itself. Its binary form is librpma's descriptor. What comes over an
// unsecured way, like private data, may have been changed on it: a false DirectWriteToPMem makes
// data look persistent that is not.
type PeerConfig struct {
	// DirectWriteToPMem says that what is flushed with Persistent is persistent, be it because the platform writes
	// what it receives to persistent memory directly, or because its device makes it so.
	DirectWriteToPMem bool
}

// AppendBinary appends the descriptor, of [PeerConfigSize] bytes.
func (c PeerConfig) AppendBinary(b []byte) ([]byte, error) {
	if c.DirectWriteToPMem {
		return append(b, 1), nil
	}
	return append(b, 0), nil
}

// MarshalBinary returns the descriptor.
func (c PeerConfig) MarshalBinary() ([]byte, error) { return c.AppendBinary(nil) }

// UnmarshalBinary reads a descriptor. As in librpma, what is behind it is ignored, and any byte but 0 means true.
func (c *PeerConfig) UnmarshalBinary(b []byte) error {
	if len(b) < PeerConfigSize {
		return invalid("peer config", "descriptor of %d bytes, %d are needed", len(b), PeerConfigSize)
	}
	c.DirectWriteToPMem = b[0] != 0
	return nil
}
