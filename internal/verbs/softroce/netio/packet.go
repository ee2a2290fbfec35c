package netio

// Packet returns the i-th packet of the batch: its path, its headers and the
// fragments of its payload, without pad. For implementations of Conn outside this package.
func (b *TxBatch) Packet(i int) (path *Path, hdr []byte, frags [][]byte) {
	p := &b.pkts[i]
	return p.path, p.hdr, b.frags[p.frag : p.frag+p.nfrag]
}
