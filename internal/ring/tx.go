package ring

import (
	"math/bits"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	// A chunk, and so a message, has chunkFirst bytes at most, and where others are still on their way up to chunkMax: then
	// nobody waits for its first byte, and long messages cost less.
	chunkFirst = 64 << 10
	chunkMax   = 256 << 10
	chunkShare = 4 // so many chunks fit into the send memory, at least

	// corkTime is how long bytes that do not fill their chunk wait for more to go with, while much is on its way and the
	// answers come fast.
	corkTime = int64(200 * time.Microsecond)

	// Where the provider copies what it is given inline straight into the peer's memory, messages of up to directMost are
	// posted from the caller's bytes: not longer, so that the reader copies the one while the next is written. From directLeast on a
	// writer waits for a moment to be able to.
	directMost  = 64 << 10
	directLeast = 16 << 10

	// What a peer that has gone does not get counts as written up to so many bytes, see lose: a program that never reads is to
	// learn of it, too.
	lostMost = 64 << 10

	// A completion is asked for after so many messages or bytes without one.
	signalMessages = 16
	signalBytes    = 2048
)

// chunk is a stretch of send memory. Bytes are staged into it, posted from it in
// messages, and acknowledged, in order.
type chunk struct {
	mem   []byte
	addr  uint64
	lkey  uint32
	block rc.Block // none: the connection's own

	staged, posted, acked int
	next                  *chunk // younger, of those with unposted bytes; of idle records

	before, after *chunk // of all that are borrowed
}

// sent is what the send queue remembers of a request.
type sent struct {
	kind sentKind
	n    uint32
	ch   *chunk
}

type sentKind uint8

const (
	sentData   sentKind = iota // n bytes, of ch unless inline
	sentUpdate                 // flow control
	sentEnd                    // n: endShutdown or endDisconnect
	sentProbe                  // of keep-alive
	sentAbort
)

// What ends the sending half.
const (
	endNone = iota
	endShutdown
	endDisconnect
)

// transmitter is the sending half of a connection.
type transmitter struct {
	mu sync.Mutex

	q         rc.SendQueue[sent]
	win       window
	peerSGL   descriptor
	peerOrder byteOrder // of the peer's target SGL
	ownOrder  byteOrder // of this side's

	open     bool  // established, not torn down
	probing  bool  // a keep-alive request is on its way
	err      error // the connection failed
	peerShut bool  // SHUTDOWN came: the peer sends no more
	peerGone bool  // DISCONNECT or DREQ came: nor does it read

	head, tail *chunk // oldest and youngest with unposted bytes
	cur        *chunk // the one to stage into
	copying    *chunk // a writer copies into it, without mu
	base       chunk  // the connection's own
	all        *chunk // borrowed
	idle       *chunk // records to use again
	borrowed   int    // bytes
	limit      int
	flying     int  // bytes of chunks that are posted and not completed
	starved    bool // no memory was to be had; wait for what comes back
	roomOnly   bool // the writer that waits wants to borrow
	inPlace    bool // the writer that waits has its bytes posted from where they are

	corkedAt    int64 // since when the youngest chunk waits to be filled; 0: it does not
	completedAt int64 // when messages completed last

	stride stride

	ctrl, ctrlSeq         int // control messages outstanding, and ever
	quietMsgs, quietBytes int // since the last signaled request
	quietCtrl             int
	stalled               bool

	wclosed, rclosed bool // CloseWrite, CloseRead
	end              int  // what shall follow the staged bytes
	endSent          int
	endAcked         int

	closing closing
	lost    int // bytes taken after the peer had gone

	messages, bytes, stalls uint64
}

func (t *transmitter) init(c *Conn, limit int) {
	t.limit = limit
	t.q.InitConn(c.rc)
	b := c.ctl.block
	t.base = chunk{mem: b.Bytes()[ctlChunk:], addr: b.Addr() + ctlChunk, lkey: b.LKey()}
}

// writable returns why nothing can be written, or nil.
func (t *transmitter) writable() error {
	switch {
	case t.closing.began || t.wclosed || t.peerGone:
		return syscall.EPIPE
	case t.err != nil:
		return t.err
	}
	return nil
}

// lose tells whether n bytes count as written though the peer has gone: as long as what it said last is unread. Who finds a connection
// closed by writing does not look any more for the reason, such as an alert of TLS, and a reader finds it. The bytes are lost, as
// the first write to a closed peer is with TCP. tx.mu is held.
func (c *Conn) lose(n int) bool {
	t := &c.tx
	if !t.peerGone || t.closing.began || t.wclosed {
		return false
	}
	c.rx.mu.Lock()
	unread := c.rx.avail > 0 && !c.rx.closed
	c.rx.mu.Unlock()
	if !unread || n > lostMost-t.lost {
		t.lost = lostMost // who was told so once is told again
		return false
	}
	t.lost += n
	return true
}

// baseIdle tells whether the connection's own chunk is empty.
func (t *transmitter) baseIdle() bool { return t.base.acked == t.base.staged }

// hasRoom tells whether something may be borrowed.
func (t *transmitter) hasRoom() bool { return !t.starved && t.limit-t.borrowed >= rc.MinBlock }

// roomy tells whether there is room enough to wake a writer for: a quarter of all, so that it does not run for each
// chunk that comes back. All that is borrowed does, in the end.
func (t *transmitter) roomy() bool { return t.hasRoom() && t.limit-t.borrowed >= t.limit/4 }

// hasSpace tells whether there is space without borrowing. With something borrowed a writer waits for that instead.
func (t *transmitter) hasSpace() bool {
	return t.cur != nil && t.cur.staged < len(t.cur.mem) || t.baseIdle() && t.borrowed == 0
}

// space returns the chunk to stage the next of n bytes into; nil: wait for room.
func (c *Conn) space(n int) (*chunk, error) {
	t := &c.tx
	if t.cur != nil && t.cur.staged < len(t.cur.mem) {
		return t.cur, nil
	}
	var err error
	if !t.baseIdle() || n > len(t.base.mem) {
		var ch *chunk
		if ch, err = c.borrow(n); ch != nil {
			t.cur = ch
			return ch, nil
		}
	}
	if t.baseIdle() {
		t.base.staged, t.base.posted, t.base.acked = 0, 0, 0
		t.cur = &t.base
		return t.cur, nil
	}
	return nil, err
}

// borrow takes a chunk for n bytes out of the device's memory.
func (c *Conn) borrow(n int) (*chunk, error) {
	t := &c.tx
	if !t.hasRoom() {
		return nil, nil
	}
	room := t.limit - t.borrowed
	most := chunkFirst
	if t.head != nil || t.busy() { // writes queue up: more may come
		n = max(n, 4*rc.MinBlock, t.borrowed/2)
	}
	if t.borrowed > 0 {
		most = max(chunkFirst, min(chunkMax, t.limit/chunkShare))
	}
	size := rc.BlockSize(min(max(n, rc.MinBlock), most))
	if size > room {
		size = 1 << (bits.Len(uint(room)) - 1)
	}
	ch, err := c.newChunk(size)
	if err != nil {
		if t.borrowed == 0 {
			return nil, err
		}
		t.starved = true
		return nil, nil
	}
	t.own(ch)
	return ch, nil
}

// own counts a chunk as borrowed.
func (t *transmitter) own(ch *chunk) {
	t.borrowed += len(ch.mem)
	if ch.after = t.all; ch.after != nil {
		ch.after.before = ch
	}
	t.all = ch
}

// newChunk takes a chunk out of the device's memory.
func (c *Conn) newChunk(size int) (*chunk, error) {
	b, err := c.rc.Device().Get(size, false)
	if err != nil {
		return nil, err
	}
	ch := c.tx.idle
	if ch == nil {
		ch = new(chunk)
	} else {
		c.tx.idle = ch.next
	}
	*ch = chunk{mem: b.Bytes(), addr: b.Addr(), lkey: b.LKey(), block: b}
	return ch, nil
}

// giveBack returns a borrowed chunk.
func (c *Conn) giveBack(ch *chunk) {
	t := &c.tx
	t.borrowed -= len(ch.mem)
	t.starved = false
	if ch.before != nil {
		ch.before.after = ch.after
	} else {
		t.all = ch.after
	}
	if ch.after != nil {
		ch.after.before = ch.before
	}
	c.freeChunk(ch)
}

// freeChunk is the opposite of newChunk.
func (c *Conn) freeChunk(ch *chunk) {
	c.rc.Device().Put(ch.block)
	*ch = chunk{next: c.tx.idle}
	c.tx.idle = ch
}

// commit adds n bytes that a writer has put into ch.
func (t *transmitter) commit(ch *chunk, n int) {
	ch.staged += n
	t.stride.staged += uint64(n)
	switch {
	case t.head == nil:
		t.head, t.tail = ch, ch
	case t.tail != ch:
		t.tail.next = ch
		t.tail = ch
	}
}

// acked takes the acknowledgement of n bytes of ch.
func (c *Conn) acked(ch *chunk, n int) {
	t := &c.tx
	ch.acked += n
	if ch.acked < ch.staged || ch == t.copying {
		return
	}
	if ch == &t.base {
		ch.staged, ch.posted, ch.acked = 0, 0, 0
		return
	}
	if ch == t.cur {
		t.cur = nil
	}
	c.giveBack(ch)
}

// unlockTx unlocks mu after a pump, and sees to it that what the pump left is followed.
func (c *Conn) unlockTx() {
	pending := c.tx.pending()
	c.tx.mu.Unlock()
	if pending {
		c.rc.Attend()
	}
}

// pump posts what may be posted: flow control first, then data, then the end.
func (c *Conn) pump() {
	t := &c.tx
	if !t.open || t.err != nil || t.peerGone || t.closing.aborted {
		return
	}
	c.sendUpdates()
	t.sendData()
	c.sendEnd()
	if err := t.q.Flush(); err != nil {
		c.failLocked(err)
	}
}

// pending tells whether something waits for completions or the peer's messages that nobody need be waiting for: to
// be posted, or for the end. Who makes it so calls rc's Attend.
func (t *transmitter) pending() bool {
	return t.head != nil && !t.stride.on || t.q.Unposted() > 0 || t.end > t.endSent || t.ctrl >= ctrlSlots ||
		t.closing.began || !t.open
}

// sendData cuts staged bytes into messages.
func (t *transmitter) sendData() {
	for ch := t.head; ch != nil; ch = t.head {
		if t.q.Free() <= ctrlReserve {
			return
		}
		if t.corked(ch) {
			return
		}
		n := min(uint32(ch.staged-ch.posted), t.win.room())
		if n == 0 {
			if !t.stalled {
				t.stalled = true
				t.stalls++
			}
			return
		}
		t.stalled = false
		addr := ch.addr + uint64(ch.posted)
		ch.posted += int(n)
		if ch.posted == ch.staged {
			t.head, ch.next = ch.next, nil
		}
		s := rc.Send{Op: verbs.OpWriteWithImm, Imm: imm(immData, n), Addr: addr, LKey: ch.lkey, Length: n}
		s.RemoteAddr, s.RKey = t.win.take(n)
		// A borrowed chunk goes back as soon as it is empty.
		s.Flags = t.signal(n, ch != &t.base && ch.posted == ch.staged)
		t.q.Push(s, sent{kind: sentData, n: n, ch: ch})
		t.messages++
		t.bytes += uint64(n)
		t.flying += int(n)
	}
}

// busy tells whether so much is on its way that no peer waits for what comes next.
func (t *transmitter) busy() bool { return t.flying >= max(chunkFirst, t.limit/chunkShare) }

// corked tells whether what is unposted of ch waits for more, since few long messages cost less than many short ones. What is on
// its way completes, and each completion comes here again; so nothing waits for longer than until the
// first one after corkTime.
func (t *transmitter) corked(ch *chunk) bool {
	if ch != t.cur || ch == &t.base || ch.staged == len(ch.mem) || t.end > t.endSent || !t.busy() {
		t.corkedAt = 0
		return false
	}
	now := rc.Now()
	if t.corkedAt == 0 {
		if now-t.completedAt > corkTime {
			return false // the next one is not expected soon
		}
		t.corkedAt = now
	}
	if now-t.corkedAt < corkTime {
		return true
	}
	t.corkedAt = 0
	return false
}

// signal tells whether a message of n bytes asks for a completion. What goes
// without one is little enough that no writer ever waits for it.
func (t *transmitter) signal(n uint32, must bool) verbs.SendFlags {
	t.quietMsgs++
	t.quietBytes += int(n)
	if !must && t.quietMsgs < signalMessages && t.quietBytes < signalBytes {
		return 0
	}
	t.quietMsgs, t.quietBytes, t.quietCtrl = 0, 0, 0
	return verbs.Signaled
}

// sendUpdates gives space and credits back to the peer.
func (c *Conn) sendUpdates() {
	t := &c.tx
	// Whoever gets DISCONNECT sends nothing more that an update would be for.
	for t.ctrl < ctrlSlots && t.endSent != endDisconnect {
		c.rx.mu.Lock()
		var u update
		ok := c.rx.err == nil && c.rx.due()
		if ok {
			if u, ok = c.rx.update(); ok {
				u.receives += c.rx.owed
				c.rx.owed = 0
			}
		}
		c.rx.mu.Unlock()
		if !ok {
			return
		}
		if u.receives > 0 {
			if n, err := c.rc.PostReceives(u.receives); n < u.receives {
				// The limit promises them.
				if err == nil {
					err = syscall.ENOMEM
				}
				c.failLocked(err)
				return
			}
		}
		s := rc.Send{Op: verbs.OpWriteWithImm, Imm: imm(immSGL, u.limit)}
		if u.desc.length > 0 {
			mem, addr := c.ctl.payload(t.ctrlSeq % ctrlSlots)
			u.desc.append(mem[:0], t.peerOrder)
			s.RemoteAddr, s.RKey = t.peerSGL.addr+uint64(u.entry)*descriptorLen, t.peerSGL.key
			if c.rc.Inline() >= descriptorLen {
				s.Inline = mem
			} else {
				s.Addr, s.LKey, s.Length = addr, c.ctl.block.LKey(), descriptorLen
			}
		}
		t.sendCtrl(s, sent{kind: sentUpdate}, false)
	}
}

// sendCtrl queues a control message; one of ctrlSlots is free. Of two in a row one is signaled.
func (t *transmitter) sendCtrl(s rc.Send, tag sent, signal bool) {
	t.ctrl++
	t.ctrlSeq++
	t.quietCtrl++
	s.Flags = t.signal(0, signal || t.quietCtrl > 1)
	t.q.Push(s, tag)
}

// crossed tells that both sides have sent SHUTDOWN: a full disconnect, for which
// no DISCONNECT is sent any more.
func (t *transmitter) crossed() bool { return t.peerShut && t.endSent == endShutdown }

// sendEnd sends SHUTDOWN or DISCONNECT behind the last byte.
func (c *Conn) sendEnd() {
	t := &c.tx
	if t.end <= t.endSent || t.head != nil || t.ctrl >= ctrlSlots || t.crossed() {
		return
	}
	v := uint32(ctrlDisconnect)
	t.endSent = endDisconnect
	if t.end == endShutdown && !t.peerShut && !t.rclosed {
		v, t.endSent = ctrlShutdown, endShutdown
	}
	s := rc.Send{Op: verbs.OpWriteWithImm, Imm: imm(immCtrl, v)}
	t.sendCtrl(s, sent{kind: sentEnd, n: uint32(t.endSent)}, true)
}

// completed takes the completion of request id.
func (c *Conn) completed(id uint64) {
	t := &c.tx
	for {
		s, ok := t.q.Complete(id)
		if !ok {
			return
		}
		switch s.kind {
		case sentData:
			if s.ch != nil {
				t.flying -= int(s.n)
				c.acked(s.ch, int(s.n))
			}
			continue
		case sentEnd:
			t.endAcked = max(t.endAcked, int(s.n))
		case sentProbe:
			t.probing = false
		case sentAbort:
			continue
		}
		t.ctrl--
	}
}
