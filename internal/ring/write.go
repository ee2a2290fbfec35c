package ring

import (
	"io"
	"net"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// writeReady tells whether a writer that waits shall look again.
func (c *Conn) writeReady() bool {
	c.tx.mu.Lock()
	defer c.tx.mu.Unlock()
	return c.tx.ready()
}

// ready is writeReady with mu held.
func (t *transmitter) ready() bool {
	if t.inPlace {
		return t.writable() != nil || t.direct()
	}
	return t.writable() != nil || t.roomy() || !t.roomOnly && t.hasSpace()
}

// Write returns when all of p is in send memory or with the device.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.wr.Err(); err != nil {
		return 0, err
	}
	return c.write(p, true)
}

// WriteBuffers is Write of all buffers in one go, as writev(2), and consumes
// them as net.Buffers does.
func (c *Conn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.wr.Err(); err != nil {
		return 0, err
	}
	for len(*v) > 0 {
		k, err := c.write((*v)[0], len(*v) == 1)
		n += int64(k)
		if (*v)[0] = (*v)[0][k:]; err != nil {
			return n, err
		}
		(*v)[0] = nil
		*v = (*v)[1:]
	}
	return n, nil
}

// write stages p. Unless it is the last, what does not fill a chunk may wait for more.
func (c *Conn) write(p []byte, last bool) (n int, err error) {
	t := &c.tx
	t.mu.Lock()
	for {
		if err = t.writable(); err != nil {
			if c.lose(len(p) - n) {
				n, err = len(p), nil
			}
			break
		}
		if n == len(p) {
			if last {
				c.pump()
			}
			break
		}
		if k := c.writeInline(p[n:], last); k > 0 {
			n += k
			continue
		}
		if c.awaitDirect(p[n:]) {
			continue
		}
		ch, e := c.space(len(p) - n)
		if e != nil {
			err = e
			break
		}
		if ch == nil {
			c.pump() // what waits for more must not be what is waited for
			t.mu.Unlock()
			if err = c.rc.Wait(c.wr); err != nil {
				return n, err
			}
			t.mu.Lock()
			continue
		}
		t.copying = ch
		free := ch.mem[ch.staged:]
		t.mu.Unlock()
		k := copy(free, p[n:])
		t.mu.Lock()
		t.copying = nil
		if t.writable() != nil {
			continue // which says so
		}
		t.commit(ch, k)
		n += k
		if ch.staged == len(ch.mem) {
			c.pump()
			if t.head != nil && t.stride.on {
				// Nobody else has looked.
				t.mu.Unlock()
				c.rc.Poll()
				t.mu.Lock()
			}
		}
	}
	t.stride.keep(c)
	c.unlockTx()
	if err != nil {
		err = c.closedOr(err)
	}
	return n, err
}

// direct tells whether bytes may be posted now from where the caller has them: nothing is in the way.
func (t *transmitter) direct() bool {
	return t.open && t.head == nil && t.win.room() > 0 && t.q.Free() > ctrlReserve && t.q.Unposted() == 0
}

// writeInline posts p, or the first part of it, as one message straight from the caller's bytes, where the provider takes as many
// inline and nothing is in the way. It returns how many bytes that were.
func (c *Conn) writeInline(p []byte, last bool) int {
	t := &c.tx
	if !last && (c.inline < inlineAll || len(p) < directLeast) || !t.direct() {
		return 0 // what comes next goes with it
	}
	n := min(uint32(min(len(p), c.inline, directMost)), t.win.room())
	if int(n) < len(p) && c.inline < inlineAll {
		return 0
	}
	before, quiet, bytes := t.win, t.quietMsgs, t.quietBytes
	s := rc.Send{Op: verbs.OpWriteWithImm, Imm: imm(immData, n), Inline: p[:n]}
	s.RemoteAddr, s.RKey = t.win.take(n)
	s.Flags = t.signal(0, false) // no memory waits for it
	t.q.Push(s, sent{kind: sentData, n: n})
	err := t.q.Flush()
	if t.q.Unposted() > 0 {
		// The bytes are the caller's, and cannot wait in the queue.
		t.q.Pop()
		t.win, t.quietMsgs, t.quietBytes = before, quiet, bytes
		if err != nil {
			c.failLocked(err)
		}
		return 0
	}
	t.messages++
	t.bytes += uint64(n)
	return int(n)
}

// awaitDirect looks for a short while whether p can be posted from where it is, if the provider takes that much inline and it is
// worth it: a copy less for each end's processor. If not, p is staged as ever, so that whoever writes
// does not depend on a peer that reads. tx.mu is given up meanwhile.
func (c *Conn) awaitDirect(p []byte) bool {
	t := &c.tx
	if c.inline < inlineAll || len(p) < directLeast || !t.open {
		return false
	}
	t.inPlace = true
	t.mu.Unlock()
	c.rc.Spin(c.wr)
	t.mu.Lock()
	t.inPlace = false
	return t.writable() != nil || t.direct()
}

// ReadFrom reads r to its end straight into send memory. While r.Read blocks,
// others may write. As with TCP, whether anything can be written matters only once r has given something.
func (c *Conn) ReadFrom(r io.Reader) (n int64, err error) {
	size := rc.MinBlock
	for {
		ch, err := c.lendChunk(size)
		if err != nil {
			return n, unlessEmpty(r, err)
		}
		k, rerr := r.Read(ch.mem)
		if k < 0 || k > len(ch.mem) {
			k, rerr = 0, io.ErrNoProgress // not a Reader's answer
		}
		err = c.returnChunk(ch, k)
		if err != nil {
			return n, err
		}
		n += int64(k)
		switch {
		case rerr == io.EOF:
			return n, nil
		case rerr != nil:
			return n, rerr
		case k == size && size < chunkFirst:
			size *= 2
		case k <= size/4 && size > rc.MinBlock:
			size /= 2
		}
	}
}

// unlessEmpty is err if r has something to give, which is lost as what does not get written is; else how r ends.
func unlessEmpty(r io.Reader, err error) error {
	for b := make([]byte, 1); ; {
		switch n, rerr := r.Read(b); {
		case n != 0:
			return err
		case rerr == io.EOF:
			return nil
		case rerr != nil:
			return rerr
		}
	}
}

// lendChunk takes a chunk out of the device's memory, which counts as borrowed once it is returned with bytes in it. It does not wait
// for room: the chunk may come back with none.
func (c *Conn) lendChunk(size int) (*chunk, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.wr.Err(); err != nil {
		return nil, err
	}
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		if err := t.writable(); err != nil && !c.lose(0) {
			return nil, c.closedOr(err)
		}
		ch, err := c.newChunk(size)
		if err == nil {
			c.memRefs.Add(1)
			return ch, nil
		}
		if t.borrowed == 0 {
			return nil, err
		}
		t.starved = true
		if err := c.awaitRoom(); err != nil {
			return nil, err
		}
	}
}

// returnChunk sends the first n bytes of a lent chunk, once there is room for it.
func (c *Conn) returnChunk(ch *chunk, n int) error {
	defer c.unref()
	if n > 0 {
		c.wmu.Lock()
		defer c.wmu.Unlock()
	}
	t := &c.tx
	t.mu.Lock()
	defer c.unlockTx()
	if n == 0 {
		c.freeChunk(ch)
		return nil
	}
	if err := c.awaitRoom(); err != nil {
		c.freeChunk(ch)
		if c.wr.Err() == nil && c.lose(n) {
			return nil
		}
		return err
	}
	t.own(ch)
	t.commit(ch, n)
	t.cur = ch
	c.pump()
	t.stride.keep(c)
	return nil
}

// awaitRoom waits until something may be borrowed. tx.mu is given up meanwhile.
func (c *Conn) awaitRoom() error {
	t := &c.tx
	t.roomOnly = true
	defer func() { t.roomOnly = false }()
	if err := c.wr.Err(); err != nil {
		return err
	}
	for {
		if err := t.writable(); err != nil {
			return c.closedOr(err)
		}
		if t.hasRoom() {
			return nil
		}
		t.mu.Unlock()
		err := c.rc.Wait(c.wr)
		t.mu.Lock()
		if err != nil {
			return c.closedOr(err)
		}
	}
}

// closedOr prefers net.ErrClosed to what came of closing.
func (c *Conn) closedOr(err error) error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	return err
}
