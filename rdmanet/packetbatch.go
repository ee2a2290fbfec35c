package rdmanet

import (
	"net"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/dgram"
)

// Message is one datagram of a batch, with the names of [golang.org/x/net/ipv4.Message].
type Message struct {
	Buffers [][]byte // its payload, in pieces
	Addr    net.Addr // the sender, or the receiver: see ReadFrom and WriteTo
	N       int      // bytes read or written

	// Imm is the immediate value, 32 bits that come with a datagram beside its payload, if HasImm is set.
	Imm    uint32
	HasImm bool
}

// ReadBatch waits for a datagram and reads all that are there, up to one for each of ms, whose N, Addr, Imm and HasImm it sets. It
// returns their number. flags must be 0.
func (c *PacketConn) ReadBatch(ms []Message, flags int) (int, error) {
	switch {
	case !c.ok():
		return 0, syscall.EINVAL
	case flags != 0:
		return 0, c.opError("read", nil, syscall.EINVAL)
	case len(ms) == 0:
		return 0, nil
	}
	for {
		err := c.s.BeginRead()
		n := 0
		if err == nil {
			n = c.readThose(ms)
		}
		c.s.EndRead()
		if n > 0 || err != nil {
			return n, c.opError("read", nil, err)
		}
	}
}

// readThose reads what is there.
func (c *PacketConn) readThose(ms []Message) int {
	for i := range ms {
		d, ok := c.s.Next()
		if !ok {
			return i
		}
		m := &ms[i]
		m.N, m.Addr, m.Imm, m.HasImm = 0, d.From, d.Imm, d.HasImm
		for _, b := range m.Buffers {
			m.N += copy(b, d.Payload[m.N:])
		}
		if m.N < len(d.Payload) {
			c.truncated.Add(1)
		}
	}
	return len(ms)
}

// WriteBatch sends a datagram for each of ms, with its Imm as immediate value if HasImm is set, and sets its N. Addr is as for
// WriteTo, or nil if c was dialed. It returns how many were sent; an error is about the first one.
// flags must be 0.
func (c *PacketConn) WriteBatch(ms []Message, flags int) (int, error) {
	switch {
	case !c.ok():
		return 0, syscall.EINVAL
	case flags != 0:
		return 0, c.opError("write", nil, syscall.EINVAL)
	}
	done := 0
	for done < len(ms) {
		some := ms[done:min(len(ms), done+batch)]
		n, err := c.writeSome(some)
		done += n
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, c.opError("write", some[0].Addr, err)
		}
		if n < len(some) {
			break
		}
	}
	return done, nil
}

const batch = 32

type outBatch struct {
	out  [batch]dgram.Out
	bufs [1][]byte
}

var outs = sync.Pool{New: func() any { return new(outBatch) }}

// writeSome sends a part of a batch.
func (c *PacketConn) writeSome(ms []Message) (n int, err error) {
	o := outs.Get().(*outBatch)
	defer outs.Put(o)
	for n = range ms {
		m := &ms[n]
		var to dgram.Addr
		switch {
		case !c.dialed:
			to, err = c.dest(m.Addr)
		case m.Addr != nil:
			err = net.ErrWriteToConnected
		}
		if err != nil {
			break
		}
		o.out[n] = dgram.Out{Buffers: m.Buffers, To: to, Imm: m.Imm, HasImm: m.HasImm}
	}
	if err == nil {
		n = len(ms)
	}
	if n > 0 {
		n, err = c.s.Write(o.out[:n])
	}
	for i := range n {
		ms[i].N = 0
		for _, b := range ms[i].Buffers {
			ms[i].N += len(b)
		}
	}
	clear(o.out[:len(ms)])
	return n, err
}
