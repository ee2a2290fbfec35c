package ring

import (
	"time"
)

// Stats are the counters of one connection.
type Stats struct {
	Provider, Device string

	BytesRead, BytesWritten, MessagesRead, MessagesWritten uint64

	CreditStalls          uint64 // times that data had to wait for the peer's space or credits
	Retransmits, RNRs     uint64
	Spins, Parks, Wakeups uint64

	ReadBuffer, WriteBuffer int // bytes registered now
}

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	var s Stats
	s.Provider, s.Device = c.rc.Device().Provider(), c.rc.Device().Name()
	c.rx.mu.Lock()
	s.MessagesRead, s.BytesRead = c.rx.messages, c.rx.bytes
	s.ReadBuffer = c.rx.total()
	c.rx.mu.Unlock()
	t := &c.tx
	t.mu.Lock()
	s.MessagesWritten, s.BytesWritten, s.CreditStalls = t.messages, t.bytes, t.stalls
	s.WriteBuffer = t.borrowed + len(t.base.mem)
	t.mu.Unlock()
	qp := c.rc.QP().Stats()
	s.Retransmits, s.RNRs = qp.Retransmits, qp.RNRs
	s.Spins, s.Parks, s.Wakeups = c.rc.Counts()
	return s
}

// SetReadBuffer limits receive memory, from the next segment on: what the peer
// has been told of stays its own.
func (c *Conn) SetReadBuffer(bytes int) error {
	if err := c.open(); err != nil {
		return err
	}
	c.rx.mu.Lock()
	c.rx.limit = bufferLimit(bytes)
	c.rx.size = min(c.rx.size, c.rx.maxSegment())
	c.rx.mu.Unlock()
	return nil
}

// SetWriteBuffer limits send memory.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if err := c.open(); err != nil {
		return err
	}
	c.tx.mu.Lock()
	c.tx.limit = bufferLimit(bytes)
	c.tx.mu.Unlock()
	c.wr.Signal()
	return nil
}

// SetBusyPoll says how long a Read that finds nothing spins before it parks, at most: 0
// adaptive, negative never.
func (c *Conn) SetBusyPoll(d time.Duration) error {
	if err := c.open(); err != nil {
		return err
	}
	c.rc.SetBusyPoll(d)
	return nil
}
