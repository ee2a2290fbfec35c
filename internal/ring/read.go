package ring

import (
	"errors"
	"io"
)

// lendMax bounds what WriteTo hands to a writer at once: space goes back to the
// peer afterwards.
const lendMax = 64 << 10

// readReady tells whether a reader that waits shall look again.
func (c *Conn) readReady() bool {
	c.rx.mu.Lock()
	defer c.rx.mu.Unlock()
	return c.rx.avail > 0 || c.rx.eof || c.rx.err != nil || c.rx.closed
}

// lend takes up to n unread bytes, waiting for the first. The segment is to be unlent.
func (c *Conn) lend(n int) (*segment, []byte, error) {
	for {
		if err := c.rd.Err(); err != nil {
			return nil, nil, err
		}
		c.rx.mu.Lock()
		s, b := c.rx.lend(n)
		var err error
		switch {
		case s != nil:
		case c.rx.eof || c.rx.closed:
			err = io.EOF
		case c.rx.err != nil:
			err = c.rx.err
		}
		c.rx.mu.Unlock()
		if s != nil || err != nil {
			if err != nil {
				err = c.closedOr(err)
			}
			return s, b, err
		}
		if err := c.rc.Wait(c.rd); err != nil {
			return nil, nil, err
		}
	}
}

// unlend gives a lent segment back, and its space to the peer if that is due. It
// tells whether there is more to read.
func (c *Conn) unlend(s *segment) (more bool) {
	c.rx.mu.Lock()
	orphan := c.rx.unlend(s)
	due, more := c.rx.due(), c.rx.avail > 0
	trash := c.rx.trash
	c.rx.trash = nil
	c.rx.mu.Unlock()
	if orphan {
		c.putSegments([]*segment{s})
	}
	if due {
		c.tx.mu.Lock()
		c.pump()
		c.unlockTx()
		c.rx.mu.Lock()
		trash = append(trash, c.rx.trash...)
		c.rx.trash = nil
		c.rx.mu.Unlock()
	}
	c.putSegments(trash)
	return more
}

// Read reads what there is, waiting for the first byte. What came before the
// peer's end or a failure is read before either is told.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 {
		return 0, c.rd.Err()
	}
	for {
		s, b, err := c.lend(len(p) - n)
		if err != nil {
			if n > 0 {
				err = nil // the next Read tells
			}
			return n, err
		}
		n += copy(p[n:], b)
		if more := c.unlend(s); n == len(p) || !more {
			return n, nil
		}
	}
}

// WriteTo writes what arrives to w, straight from receive memory, until the
// peer's end. While w.Write blocks, others may read.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	for {
		c.rmu.Lock()
		s, b, err := c.lend(lendMax)
		if err == nil {
			c.memRefs.Add(1) // teardown waits for rmu, not for w
		}
		c.rmu.Unlock()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		k, err := c.writeLent(w, s, b)
		n += int64(k)
		if err != nil {
			return n, err
		}
		if k != len(b) {
			return n, io.ErrShortWrite
		}
	}
}

// writeLent gives the segment back even if w panics.
func (c *Conn) writeLent(w io.Writer, s *segment, b []byte) (int, error) {
	defer c.unref()
	defer c.unlend(s)
	return w.Write(b)
}

// CloseRead makes later Reads give io.EOF. The peer is not told, as rsockets has
// no message for it; what it still sends is dropped.
func (c *Conn) CloseRead() error {
	if err := c.open(); err != nil {
		return err
	}
	c.rx.mu.Lock()
	c.rx.closed = true
	c.rx.sink = true
	c.rx.drop()
	c.rx.mu.Unlock()
	c.tx.mu.Lock()
	c.tx.rclosed = true
	if c.tx.end == endShutdown {
		c.tx.end = endDisconnect // both directions are closed
	}
	c.pump()
	c.unlockTx()
	c.rd.Signal()
	return nil
}
