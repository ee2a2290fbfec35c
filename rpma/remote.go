package rpma

import (
	"encoding/binary"
	"math"
)

// DescriptorSize is the length of a memory region's descriptor.
const DescriptorSize = 21

// RemoteMR is a peer's memory region. It is a value, and comparable.
type RemoteMR struct {
	addr, size uint64
	rkey       uint32
	usage      Usage
}

// ParseRemoteMR reads a descriptor, which may have more behind it: private data arrives padded. Refused is what
// describes no region: size or usage 0, or an end beyond the address space.
func ParseRemoteMR(b []byte) (RemoteMR, error) {
	if len(b) < DescriptorSize {
		return RemoteMR{}, invalid("remote region", "descriptor of %d bytes, %d are needed", len(b), DescriptorSize)
	}
	r := RemoteMR{
		addr: binary.LittleEndian.Uint64(b), size: binary.LittleEndian.Uint64(b[8:]),
		rkey: binary.LittleEndian.Uint32(b[16:]), usage: Usage(b[20]),
	}
	switch {
	case r.size == 0:
		return RemoteMR{}, invalid("remote region", "descriptor of a region without memory")
	case r.usage == 0:
		return RemoteMR{}, invalid("remote region", "descriptor of a region without use")
	case r.size-1 > math.MaxUint64-r.addr:
		return RemoteMR{}, invalid("remote region", "descriptor of a region of %d bytes at %#x, beyond all addresses", r.size, r.addr)
	}
	return r, nil
}

// UnmarshalBinary is [ParseRemoteMR].
func (r *RemoteMR) UnmarshalBinary(b []byte) error {
	p, err := ParseRemoteMR(b)
	if err == nil {
		*r = p
	}
	return err
}

// AppendBinary appends the descriptor: for somebody else who is to know it.
func (r RemoteMR) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint64(b, r.addr)
	b = binary.LittleEndian.AppendUint64(b, r.size)
	b = binary.LittleEndian.AppendUint32(b, r.rkey)
	return append(b, byte(r.usage)), nil
}

// MarshalBinary returns the descriptor.
func (r RemoteMR) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// Size is the region's length in bytes.
func (r RemoteMR) Size() uint64 { return r.size }

// Usage is what the region is for.
func (r RemoteMR) Usage() Usage { return r.usage }

// CanFlush tells whether the region may be flushed so.
func (r RemoteMR) CanFlush(t FlushType) bool { return r.usage&t.usage() != 0 }

// Slice is a range of the region. It is checked when it is used.
func (r RemoteMR) Slice(off uint64, n int) Remote { return Remote{r, off, n, true} }

// Remote is a range of a peer's region. The zero value is no memory at all, for operations without data.
type Remote struct {
	mr  RemoteMR
	off uint64
	n   int
	set bool
}

// Len is the length of the range.
func (r Remote) Len() int { return r.n }

// check tells what is wrong with a range for a use.
func (r *Remote) check(op string, uses Usage) error {
	switch {
	case r.mr.size == 0:
		return invalid(op, "range of a remote region that is none")
	case r.n < 0 || r.off > r.mr.size || uint64(r.n) > r.mr.size-r.off:
		return invalid(op, "range [%d, +%d) of a remote region of %d bytes", r.off, r.n, r.mr.size)
	case r.mr.usage&uses == 0:
		return invalid(op, "the remote region is for %v", r.mr.usage)
	}
	return nil
}
