package rpma

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
)

var errShared = errors.New("the connection takes receives from a shared receive queue: post them there")

func errNotNative(device string) error {
	return fmt.Errorf("device %s has no FLUSH and ATOMIC WRITE: %w", device, errors.ErrUnsupported)
}

// sender is the sending half of a connection. A slot of its ring is a request on its way; the ID of a request is its number,
// so that a completion stands for all unsignaled requests before it.
type sender struct {
	mu         sync.Mutex
	closed     bool
	limit      int    // slots of the user's
	slots      []slot // a power of two
	head, tail uint64 // oldest on its way, next
	unpolled   int    // completions that their user has not polled yet
	quiet      int    // requests since the last signaled one

	probing atomic.Bool // one slot more is a keep-alive's

	// Doers that wait for room, the next one first.
	first, last *doing
	free        *doing // linked by next
	frees       int

	wrs    [postBatch]verbs.SendWR
	sges   [postBatch]verbs.SGE
	values [postBatch][8]byte
}

// postBatch is how many requests are posted at once.
const postBatch = 16

// slot is a request on its way.
type slot struct {
	id    uint64
	bytes int
	do    *doing // whose request it is; nil: that of a Post or of a keep-alive
	op    OpCode
	kind  slotKind
}

type slotKind uint8

const (
	slotLoud  slotKind = iota // success completes
	slotQuiet                 // failure alone does
	slotProbe
)

func (s *sender) init(limit int) {
	s.limit = limit
	n := 1
	for n < limit+probes {
		n *= 2
	}
	s.slots = make([]slot, n)
}

// outstanding is how many requests of the user's are on their way.
func (s *sender) outstanding() int {
	n := int(s.tail - s.head)
	if s.probing.Load() {
		n -= probes
	}
	return n
}

// cursor is how far operations have been posted.
type cursor struct {
	op   int    // the next one
	done uint64 // bytes of it that are
}

// Post posts operations in order, as many as there is room for, in one batch; it never waits. n of them were taken; with n
// < len(ops) the error is [ErrQueueFull], or is about what was not taken. An operation that makes no sense is found before
// any is posted. Completions come to [Conn.CQ], as the operations' Flags say, and what is to be polled keeps its place until it has been.
// The memory of an operation must not be used otherwise until it has completed.
func (c *Conn) Post(ops ...Op) (n int, err error) {
	for i := range ops {
		if err := ops[i].check(c, false); err != nil {
			return 0, err
		}
	}
	var at cursor
	for tries := 0; ; tries++ {
		c.mu.Lock()
		err = c.post(ops, &at, nil)
		c.mu.Unlock()
		if err != nil || at.op == len(ops) {
			return at.op, err
		}
		if tries > 0 {
			return at.op, ErrQueueFull
		}
		c.poller.Poll() // completions that nobody is told of make room, too
	}
}

// post posts what there is room for, from at on. c.mu is held.
func (c *Conn) post(ops []Op, at *cursor, d *doing) error {
	for at.op < len(ops) {
		if c.closed {
			return &Error{Op: ops[at.op].verb.String(), Code: ErrProvider, Err: net.ErrClosed}
		}
		room := c.limit - c.outstanding()
		if d == nil {
			room -= c.unpolled
		}
		if room = min(room, postBatch); room <= 0 {
			return nil
		}
		next := *at
		n := 0
		for ; n < room && next.op < len(ops); n++ {
			c.stage(n, ops, &next, d)
		}
		k, err := c.qp.PostSend(c.wrs[:n])
		for range n - k {
			c.unstage()
		}
		if d != nil {
			d.pending += k
		}
		if k == n {
			*at = next
			continue
		}
		for range k {
			c.advance(ops, at)
		}
		if err != nil {
			return opError(ops[at.op].verb.String(), err)
		}
		return nil
	}
	return nil
}

// piece is how much of an operation the next request of it does, and whether it is the last one.
func (c *Conn) piece(o *Op, done uint64) (n uint64, last bool) {
	switch o.verb {
	case verbAtomicWrite, verbFlush:
		return 0, true
	}
	left := uint64(o.local.n) - done
	if left > c.maxMsg {
		return c.maxMsg, false
	}
	return left, true
}

// advance moves at behind one request.
func (c *Conn) advance(ops []Op, at *cursor) {
	if n, last := c.piece(&ops[at.op], at.done); !last {
		at.done += n
		return
	}
	at.op++
	at.done = 0
}

// stage makes the next request of the operation at the cursor the nth of a batch, and gives it a slot.
func (c *Conn) stage(n int, ops []Op, at *cursor, d *doing) {
	o := &ops[at.op]
	off := at.done
	length, last := c.piece(o, off)
	c.advance(ops, at)

	i := c.tail & uint64(len(c.slots)-1)
	s := &c.slots[i]
	*s = slot{id: o.ID, bytes: o.length(), do: d, op: verbOps[o.verb], kind: slotLoud}
	if d != nil || o.Flags == CompletionOnError {
		s.kind = slotQuiet
	}
	wr := &c.wrs[n]
	*wr = verbs.SendWR{ID: c.tail, Imm: o.imm}
	c.tail++
	// Without a signaled request among them, those on their way would stay there.
	c.quiet++
	if s.kind == slotLoud || d != nil && at.op == len(ops) || 2*c.quiet >= c.limit {
		wr.Flags, c.quiet = verbs.Signaled, 0
	}
	if o.remote.set {
		wr.RemoteAddr, wr.RKey = o.remote.mr.addr+o.remote.off+off, o.remote.mr.rkey
	}
	if length > 0 {
		c.sges[n] = o.local.sge(off, uint32(length))
		wr.SGL = c.sges[n : n+1 : n+1]
	}
	switch o.verb {
	case verbRead:
		wr.Op = verbs.OpRead
	case verbWrite:
		wr.Op = verbs.OpWrite
	case verbWriteImm:
		if wr.Op = verbs.OpWriteWithImm; !last {
			wr.Op = verbs.OpWrite
		}
	case verbSend:
		wr.Op = verbs.OpSend
	case verbSendImm:
		wr.Op = verbs.OpSendWithImm
	case verbAtomicWrite:
		c.atomicWrite(n, o, i)
	case verbFlush:
		c.flushRequest(n, o)
	}
}

// unstage takes the last slot back.
func (c *Conn) unstage() {
	c.tail--
	c.quiet = c.limit // it may have been the signaled one
	c.slots[c.tail&uint64(len(c.slots)-1)] = slot{}
}

// atomicWrite fills in the rest of an atomic write. A responder does an ATOMIC WRITE after what was before it (IBTA
// A19.4.2), so that it needs no fence; a WRITE could overtake a READ that is to be done first.
func (c *Conn) atomicWrite(n int, o *Op, slot uint64) {
	wr := &c.wrs[n]
	wr.Op = verbs.OpAtomicWrite
	if !c.native {
		wr.Op = verbs.OpWrite
		wr.Flags |= verbs.Fence
	}
	if c.scratch.values && !c.native {
		c.sges[n] = c.scratch.value(slot, &o.value)
		wr.SGL = c.sges[n : n+1 : n+1]
		return
	}
	c.values[n] = o.value
	wr.Inline = c.values[n][:]
}

// flushRequest fills in the rest of a flush.
func (c *Conn) flushRequest(n int, o *Op) {
	wr := &c.wrs[n]
	if !c.native {
		// Any byte of the region will do, so that its end is no obstacle.
		size := uint32(min(o.remote.mr.size, inlineBytes))
		wr.Op = verbs.OpRead
		wr.RemoteAddr = o.remote.mr.addr + min(o.remote.off, o.remote.mr.size-uint64(size))
		c.sges[n] = c.scratch.sink(size)
		wr.SGL = c.sges[n : n+1 : n+1]
		return
	}
	wr.Op = verbs.OpFlush
	wr.FlushType = verbs.FlushGlobal
	if o.flush == Persistent {
		wr.FlushType = verbs.FlushPersistent
	}
	if o.remote.n == 0 || uint64(o.remote.n) > maxOp {
		wr.FlushLevel = verbs.FlushMR
		return
	}
	wr.FlushLength = uint32(o.remote.n)
}

// checkFlush tells whether a flush can be what it is asked to be.
func (c *Conn) checkFlush(o *Op) error {
	name := o.verb.String()
	switch {
	case !o.remote.mr.CanFlush(o.flush):
		return &Error{Op: name, Code: ErrNotSupported, Err: fmt.Errorf("the remote region is for %v, not %v", o.remote.mr.usage, o.flush.usage())}
	case o.flush == Persistent && !c.direct.Load():
		return &Error{Op: name, Code: ErrNotSupported, Err: errNoDirectWrite}
	}
	return nil
}

var errNoDirectWrite = errors.New("the peer has not said that a flush makes data persistent (DirectWriteToPMem of its PeerConfig, see ApplyPeerConfig)")

// probe posts a keep-alive's request, unless there is one on its way.
func (c *Conn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.probing.Load() || c.ended.Load() {
		return
	}
	c.wrs[0] = verbs.SendWR{ID: c.tail, Op: verbs.OpWrite, Flags: verbs.Signaled}
	if n, err := c.qp.PostSend(c.wrs[:1]); n == 0 || err != nil {
		return // what fails is noticed by those on their way
	}
	c.slots[c.tail&uint64(len(c.slots)-1)] = slot{kind: slotProbe}
	c.tail++
	c.quiet = 0
	c.probing.Store(true)
}

// sent takes completions of requests, of which the first alone may have failed.
func (c *Conn) sent(wcs []verbs.WC) {
	c.mu.Lock()
	for i := range wcs {
		wc := &wcs[i]
		for c.head != c.tail && int64(wc.ID-c.head) >= 0 && int64(c.tail-wc.ID) > 0 {
			status := verbs.Success
			if c.head == wc.ID {
				status = wc.Status
			}
			c.completed(status, wc.VendorErr)
		}
	}
	c.admit()
	c.mu.Unlock()
}

// completed takes the oldest request off the ring. c.mu is held.
func (c *Conn) completed(status verbs.Status, vendor uint32) {
	s := &c.slots[c.head&uint64(len(c.slots)-1)]
	c.head++
	switch {
	case s.kind == slotProbe:
		c.probing.Store(false)
	case s.do != nil:
		s.do.completed(s, status, vendor)
	case s.kind == slotLoud || status != verbs.Success:
		done := Completion{ID: s.id, Status: Status(status), QPNum: c.qp.Num(), vendor: vendor}
		if status == verbs.Success {
			done.Op, done.Bytes = s.op, s.bytes
		}
		c.unpolled++
		c.cq.push(&done)
	}
	s.do = nil
}

// sendsPolled is told that completions of Posts have reached their user.
func (c *Conn) sendsPolled(n int) {
	c.mu.Lock()
	c.unpolled -= n
	c.mu.Unlock()
}

// flushSends ends the requests that the device will not complete any more.
func (c *Conn) flushSends() {
	c.mu.Lock()
	for c.head != c.tail {
		c.completed(verbs.WRFlushErr, 0)
	}
	c.admitAll()
	c.mu.Unlock()
}

// closeSends lets nothing be posted any more.
func (c *Conn) closeSends() {
	c.mu.Lock()
	c.closed = true
	for d := c.free; d != nil; d = d.next {
		d.side.Forget()
	}
	c.admitAll()
	c.mu.Unlock()
}
