package ring

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Conn is a stream. Its methods are safe for concurrent use.
type Conn struct {
	rc            *rc.Conn
	made          leak.Mark
	local, remote netip.AddrPort
	inline        int // longest write that is posted from the caller's bytes

	ctl control

	rmu, wmu sync.Mutex
	rd, wr   *rc.Side

	rx struct {
		mu sync.Mutex
		receiver
		eof    bool  // the peer sends no more
		err    error // the connection failed; whichever of eof and err came first holds
		closed bool  // CloseRead
		owed   int   // receives that were consumed and not posted again
	}
	tx transmitter

	keep rc.KeepAlive

	closed atomic.Bool
	linger atomic.Int64 // nanoseconds
	once   sync.Once    // of teardown

	// memRefs counts the connection itself, and memory lent to a reader or writer
	// that is not under rmu or wmu; the last one lets the device go.
	memRefs atomic.Int32

	pending func(*Conn, error) // of the passive side, until it stands; guarded by tx.mu
}

// control is the block every connection has for as long as it lives.
//
//	  0  target SGL, which the peer writes
//	 64  payload of control messages
//	128  first chunk of send memory
type control struct {
	block rc.Block
	mr    verbs.MR // of the target SGL
}

const (
	ctlPayload = 64
	ctlChunk   = 128
)

func (k *control) sgl(i int) []byte {
	return k.block.Bytes()[i*descriptorLen : (i+1)*descriptorLen]
}

// payload returns the memory for the payload of control message i, and its address.
func (k *control) payload(i int) ([]byte, uint64) {
	off := ctlPayload + i*descriptorLen
	return k.block.Bytes()[off : off+descriptorLen : off+descriptorLen], k.block.Addr() + uint64(off)
}

// LocalAddr and RemoteAddr are the addresses of the two ends.
func (c *Conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// SetDeadline sets the deadlines of reads and writes.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.open(); err != nil {
		return err
	}
	c.rd.SetDeadline(t)
	c.wr.SetDeadline(t)
	return nil
}

// SetReadDeadline sets the deadline of reads, also of one under way. The zero time is none.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if err := c.open(); err != nil {
		return err
	}
	c.rd.SetDeadline(t)
	return nil
}

// SetWriteDeadline is SetReadDeadline for writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if err := c.open(); err != nil {
		return err
	}
	c.wr.SetDeadline(t)
	return nil
}

// getSegment makes receive memory that the peer may write.
func (c *Conn) getSegment(size int) (*segment, error) {
	dev := c.rc.Device()
	b, err := dev.Get(size, true)
	if err != nil {
		return nil, err
	}
	mr, err := dev.PD().RegMR(b.Bytes()[:size], verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		dev.Put(b)
		return nil, err
	}
	return &segment{mem: b.Bytes()[:size], addr: mr.Addr(), key: mr.RKey(), block: b, mr: mr}, nil
}

// putSegments gives receive memory back. Closing a region may wait for the
// provider, so handlers do not call it.
func (c *Conn) putSegments(segs []*segment) {
	for _, s := range segs {
		freed(c.rc.Device().PutRegistered(s.mr, s.block))
	}
}

// unfreed counts what did not close. Nobody is left to tell when that happens;
// tests look at it.
var unfreed atomic.Uint64

func freed(err error) {
	if err != nil {
		unfreed.Add(1)
	}
}

// unref drops one of memRefs.
func (c *Conn) unref() {
	if c.memRefs.Add(-1) == 0 {
		freed(c.rc.Release())
	}
}
