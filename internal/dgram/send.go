package dgram

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// sender is the sending half of an endpoint. The ID of a request is its number, which also tells its slot; requests
// complete in order.
type sender struct {
	cq     verbs.CQ
	depth  int // a power of two
	inline int
	size   int // of a slot
	blocks []rc.Block
	slots  []sendSlot

	head, tail uint64 // oldest that has not completed, next
	staged     int    // the last of them are not posted yet
	quiet      int    // posted since the last that was signaled

	wrs  [sendBatch]verbs.SendWR
	sges [sendBatch]verbs.SGE
	wcs  [sendBatch]verbs.WC
}

const sendBatch = 32

type sendSlot struct {
	mem  []byte
	addr uint64
	lkey uint32
	h    *handle // of which the request holds a reference
}

// init takes memory for depth requests.
func (t *sender) init(e *endpoint, depth, inline int) error {
	t.depth = 1
	for t.depth*2 <= depth {
		t.depth *= 2
	}
	t.inline, t.size = inline, (e.mtu+63)&^63
	for len(t.slots) < t.depth {
		b, err := e.dev.Get(min((t.depth-len(t.slots))*t.size, rc.MaxBlock), false)
		if err != nil {
			return err
		}
		t.blocks = append(t.blocks, b)
		mem := b.Bytes()
		for i := 0; (i+1)*t.size <= len(mem) && len(t.slots) < t.depth; i++ {
			t.slots = append(t.slots, sendSlot{mem: mem[i*t.size : (i+1)*t.size], addr: b.Addr() + uint64(i*t.size), lkey: b.LKey()})
		}
	}
	return nil
}

// free gives the memory and the handles back.
func (t *sender) free(e *endpoint) error {
	for ; t.head != t.tail; t.head++ {
		t.at(t.head).h.unref()
		t.at(t.head).h = nil
	}
	for _, b := range t.blocks {
		e.dev.Put(b)
	}
	t.blocks, t.slots, t.staged = nil, nil, 0
	return nil
}

func (t *sender) at(n uint64) *sendSlot { return &t.slots[n&uint64(t.depth-1)] }

// limit is how many requests may be under way.
func (t *sender) limit(e *endpoint) int {
	if b := int(e.s.writeBytes.Load()); b > 0 {
		return max(1, min(t.depth, b/e.mtu))
	}
	return t.depth
}

// stage makes a request of a datagram to a peer, whose reference it takes over. It is not longer than a slot, and there is one.
func (t *sender) stage(h *handle, bufs [][]byte, imm uint32, hasImm bool) {
	m := t.at(t.tail)
	n := 0
	for _, b := range bufs {
		n += copy(m.mem[n:], b)
	}
	m.h = h
	wr := &t.wrs[t.staged]
	*wr = verbs.SendWR{ID: t.tail, Op: verbs.OpSend, AH: h.ah, RemoteQPN: h.qpn, RemoteQKey: h.qkey}
	if hasImm {
		wr.Op, wr.Imm = verbs.OpSendWithImm, imm
	}
	if n <= t.inline {
		wr.Inline = m.mem[:n]
	} else {
		t.sges[t.staged] = verbs.SGE{Addr: m.addr, Length: uint32(n), LKey: m.lkey}
		wr.SGL = t.sges[t.staged : t.staged+1 : t.staged+1]
	}
	t.tail++
	t.staged++
}

// flush posts what is staged. It returns how many were posted; those behind an error are as if they had not been staged.
func (t *sender) flush(e *endpoint) (done int, err error) {
	for t.staged > done {
		// The last is signaled, so that Close can see when all has been sent, and so are some in between.
		for i := done; i < t.staged; i++ {
			if t.quiet++; i == t.staged-1 || t.quiet >= t.depth/4 {
				t.wrs[i].Flags, t.quiet = verbs.Signaled, 0
			}
		}
		var k int
		k, err = e.qp.PostSend(t.wrs[done:t.staged])
		done += k
		if err == nil && k == 0 {
			err = syscall.ENOBUFS // the queue takes as many as there are slots
		}
		if err != nil {
			break
		}
	}
	for i := range t.staged {
		t.wrs[i].AH, t.wrs[i].Inline = nil, nil
	}
	for k := t.staged - done; k > 0; k-- {
		t.tail--
		t.at(t.tail).h.unref()
		t.at(t.tail).h = nil
	}
	t.staged = 0
	return done, err
}

// reap takes completions, and returns an error if a request has failed.
func (t *sender) reap() error {
	for {
		n, err := t.cq.Poll(t.wcs[:])
		if err != nil {
			return err
		}
		for i := range t.wcs[:n] {
			wc := &t.wcs[i]
			if wc.Status != verbs.Success {
				return wc.Status
			}
			for t.head != t.tail-uint64(t.staged) && t.head <= wc.ID {
				t.at(t.head).h.unref()
				t.at(t.head).h = nil
				t.head++
			}
		}
		if n < len(t.wcs) {
			return nil
		}
	}
}

// Out is a datagram to be sent.
type Out struct {
	Buffers [][]byte
	To      Addr // of a socket that was dialed: ignored
	Imm     uint32
	HasImm  bool
}

func (o *Out) len() (n int) {
	for _, b := range o.Buffers {
		n += len(b)
	}
	return n
}

// tooLong is the error for a datagram of n bytes.
func tooLong(n, limit int) error {
	return fmt.Errorf("datagram of %d bytes, the limit is %d: %w", n, limit, syscall.EMSGSIZE)
}

// Write sends datagrams, as many as can be sent without an error, and returns their number. It waits for lookups and while the
// send queue is full, and never for a peer to receive.
func (s *Socket) Write(outs []Out) (int, error) {
	// Peers are found first: a writer that waits for one must not keep others waiting.
	done := 0
	for done < len(outs) {
		n, err := s.writeSome(outs[done:])
		done += n
		if err != nil {
			if done > 0 && len(outs) > 1 {
				err = nil
			}
			return done, err
		}
	}
	return done, nil
}

// handles are those of a batch.
type handles struct{ h [sendBatch]*handle }

var handlePool = sync.Pool{New: func() any { return new(handles) }}

// writeSome sends the first datagrams.
func (s *Socket) writeSome(outs []Out) (int, error) {
	outs = outs[:min(len(outs), sendBatch)]
	hs := handlePool.Get().(*handles)
	defer handlePool.Put(hs)
	n := 0
	var failed error
	for n < len(outs) {
		if failed = s.wr.Err(); failed != nil {
			break
		}
		// The limit of all is looked at before anybody is asked for.
		if limit := s.MaxPayload(); outs[n].len() > limit {
			failed = tooLong(outs[n].len(), limit)
			break
		}
		to := outs[n].To
		if d := s.remote; d != nil {
			to = *d
		}
		if hs.h[n], failed = s.reach(s.ctx, to, true); failed != nil {
			break
		}
		if size, limit := outs[n].len(), hs.h[n].e.mtu; size > limit {
			hs.h[n].unref()
			failed = tooLong(size, limit)
			break
		}
		n++
	}
	done, err := s.send(outs[:n], hs)
	clear(hs.h[:])
	if err == nil {
		err = failed
	}
	return done, err
}

// send posts datagrams whose peers are known.
func (s *Socket) send(outs []Out, hs *handles) (done int, err error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	bytes := 0
	for i := 0; i < len(outs) && err == nil; {
		e := hs.h[i].e
		j, limit := i, e.tx.limit(e)
		if err = s.room(e, limit); err == nil {
			for j < len(outs) && hs.h[j].e == e && int(e.tx.tail-e.tx.head) < limit && e.tx.staged < sendBatch {
				e.tx.stage(hs.h[j], outs[j].Buffers, outs[j].Imm, outs[j].HasImm)
				hs.h[j] = nil
				j++
			}
			var k int
			k, err = e.tx.flush(e)
			for _, o := range outs[i : i+k] {
				bytes += o.len()
			}
			done += k
			if err != nil && !errors.Is(err, syscall.EMSGSIZE) && !errors.Is(err, syscall.EINVAL) {
				s.fail(e, err)
			}
		}
		i = j
	}
	for _, h := range hs.h[:len(outs)] {
		if h != nil {
			h.unref()
		}
	}
	s.written.Add(uint64(done))
	s.writtenTotal.Add(uint64(bytes))
	return done, err
}

// room waits until fewer than limit requests are under way. s.wmu is held.
func (s *Socket) room(e *endpoint, limit int) error {
	t := &e.tx
	for {
		if err := s.wr.Err(); err != nil {
			return err
		}
		if f := e.failed.Load(); f != nil {
			return f.err
		}
		if int(t.tail-t.head) < (limit+1)/2 {
			return nil
		}
		if err := t.reap(); err != nil {
			s.fail(e, err)
			return err
		}
		if int(t.tail-t.head) < limit {
			return nil
		}
		if err := t.cq.Arm(); err != nil {
			s.fail(e, err)
			return err
		}
		if err := t.reap(); err != nil {
			s.fail(e, err)
			return err
		}
		if int(t.tail-t.head) < limit {
			return nil
		}
		if err := s.wr.Wait(); err != nil {
			return err
		}
	}
}
