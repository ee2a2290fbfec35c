package netio

// MaxBatch is the number of packets a TxBatch holds.
const MaxBatch = 64

// headerCap bounds BTH and extension headers: BTH 12, RETH 16, ImmDt 4 or
// AtomicETH 28 or DETH 8 and ImmDt 4; a MAD is payload.
const headerCap = 48

// TxBatch collects packets for one or several paths. It refers to payload
// without copying it: the payload must not change until Send returns. A
// TxBatch is used by one goroutine at a time, and again and again.
type TxBatch struct {
	pkts  []txPacket
	hdrs  []byte
	frags [][]byte
}

type txPacket struct {
	path    *Path
	hdr     []byte
	frag    int // index of the first fragment
	nfrag   int
	payload int // bytes
}

// NewTxBatch returns an empty batch.
func NewTxBatch() *TxBatch {
	return &TxBatch{
		pkts:  make([]txPacket, 0, MaxBatch),
		hdrs:  make([]byte, 0, MaxBatch*headerCap),
		frags: make([][]byte, 0, 2*MaxBatch),
	}
}

// Len returns the number of packets in the batch.
func (b *TxBatch) Len() int { return len(b.pkts) }

// Full tells whether another Add needs a Send first.
func (b *TxBatch) Full() bool { return len(b.pkts) == MaxBatch }

// Reset empties the batch without sending it.
func (b *TxBatch) Reset() {
	clear(b.pkts)
	clear(b.frags)
	b.pkts, b.hdrs, b.frags = b.pkts[:0], b.hdrs[:0], b.frags[:0]
}

// Add begins a packet on path p and returns its n header bytes (BTH and
// extension headers) for the caller to fill in, the pad count included.
func (b *TxBatch) Add(p *Path, n int) []byte {
	off := len(b.hdrs)
	b.hdrs = b.hdrs[:off+n]
	h := b.hdrs[off : off+n : off+n]
	b.pkts = append(b.pkts, txPacket{path: p, hdr: h, frag: len(b.frags)})
	return h
}

// Payload appends bytes to the payload of the packet that the last Add began.
func (b *TxBatch) Payload(frag []byte) {
	if len(frag) == 0 {
		return
	}
	p := &b.pkts[len(b.pkts)-1]
	b.frags = append(b.frags, frag)
	p.nfrag++
	p.payload += len(frag)
}
