package rdmanet

import "fmt"

// PacketStats counts what a PacketConn did.
type PacketStats struct {
	BytesRead, BytesWritten       uint64 // payload
	MessagesRead, MessagesWritten uint64 // datagrams
	Dropped                       uint64 // arrived, and met no room; 0 where the device does not tell
	Truncated                     uint64 // read into a buffer that was too small for them
}

// String is a line for logs and debuggers.
func (s PacketStats) String() string {
	return fmt.Sprintf("read %d B in %d, wrote %d B in %d; %d dropped, %d truncated",
		s.BytesRead, s.MessagesRead, s.BytesWritten, s.MessagesWritten, s.Dropped, s.Truncated)
}

func (s *PacketStats) add(o *PacketStats) {
	s.BytesRead += o.BytesRead
	s.BytesWritten += o.BytesWritten
	s.MessagesRead += o.MessagesRead
	s.MessagesWritten += o.MessagesWritten
	s.Dropped += o.Dropped
	s.Truncated += o.Truncated
}

// Stats counts what the connection did so far.
func (c *PacketConn) Stats() PacketStats {
	if !c.ok() {
		return PacketStats{}
	}
	s := c.s.Stats()
	return PacketStats{
		BytesRead: s.BytesRead, BytesWritten: s.BytesWritten, MessagesRead: s.Read, MessagesWritten: s.Written,
		Dropped: s.Dropped, Truncated: c.truncated.Load(),
	}
}

// opened counts a connection in, and returns it.
func (c *PacketConn) opened() *PacketConn {
	c.totals = totalsOf(c.s.Device())
	c.totals.mu.Lock()
	defer c.totals.mu.Unlock()
	c.totals.livePackets[c] = struct{}{}
	return c
}

// closed counts a connection out, once.
func (c *PacketConn) closed() {
	t := c.totals
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.livePackets[c]; !ok {
		return
	}
	delete(t.livePackets, c)
	s := c.Stats()
	t.pastPackets.add(&s)
}
