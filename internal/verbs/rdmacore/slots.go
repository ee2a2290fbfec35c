//go:build linux && cgo

package rdmacore

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
)

// slots are the places of a send or receive queue. What goes to the driver as a request's ID tells which
// place of which queue it has, so that a completion frees that place and those before it, whatever the driver
// thinks of room: rdma_rxe takes more than it was asked for, and frees it sooner.
type slots struct {
	kind  uint64
	base  uint64 // of IDs
	limit uint32
	ids   []uint64 // the consumer's, a power of two
	bufs  []buffer // of receives for datagrams, as many; else nil

	posted uint32 // guarded by the lock of those who post
	done   atomic.Uint32
}

// An ID: two bits of kind, the number of the queue in its table, that number's generation, the place.
const (
	kindSend = uint64(1) << 62
	kindRecv = uint64(2) << 62
	kindSRQ  = uint64(3) << 62
	kindMask = uint64(3) << 62

	indexShift = 40
	indexMask  = 1<<22 - 1
	genShift   = 24
	genMask    = 1<<16 - 1
	seqMask    = 1<<24 - 1
)

func (s *slots) init(kind uint64, limit int) {
	s.kind, s.limit = kind, uint32(limit)
	if limit > 0 {
		s.ids = make([]uint64, 1<<bits.Len(uint(limit-1)))
	}
}

// setBase is told the number and generation of the queue.
func (s *slots) setBase(index, gen uint32) {
	s.base = s.kind | uint64(index&indexMask)<<indexShift | uint64(gen&genMask)<<genShift
}

// room tells how many requests fit.
func (s *slots) room() int { return int(s.limit - (s.posted - s.done.Load())) }

// put takes the next place and returns the request's ID for the driver.
func (s *slots) put(id uint64) uint64 {
	s.ids[s.posted&uint32(len(s.ids)-1)] = id
	n := s.base | uint64(s.posted&seqMask)
	s.posted++
	return n
}

// buffer is where a receive begins.
type buffer struct {
	addr uint64
	lkey uint32
}

// bufferOf is where a receive begins, or nowhere.
func bufferOf(wr *verbs.RecvWR) buffer {
	if len(wr.SGL) == 0 {
		return buffer{}
	}
	return buffer{wr.SGL[0].Addr, wr.SGL[0].LKey}
}

// keepBuffers makes the slots those of receives for datagrams: where one begins is looked at when it has completed.
func (s *slots) keepBuffers() { s.bufs = make([]buffer, len(s.ids)) }

// putRecv is put for a receive.
func (s *slots) putRecv(wr *verbs.RecvWR) uint64 {
	if s.bufs != nil {
		s.bufs[s.posted&uint32(len(s.ids)-1)] = bufferOf(wr)
	}
	return s.put(wr.ID)
}

// buffer is that of a receive that has completed and is not yet free.
func (s *slots) buffer(id uint64) buffer { return s.bufs[uint32(id)&uint32(len(s.ids)-1)] }

// back takes the last n places back.
func (s *slots) back(n int) { s.posted -= uint32(n) }

// free frees the place of a completed request, and those before it, and returns the consumer's ID. It is
// called by one goroutine at a time.
func (s *slots) free(id uint64) uint64 {
	done := s.done.Load()
	done += (uint32(id) - done) & seqMask
	user := s.ids[done&uint32(len(s.ids)-1)]
	s.done.Store(done + 1)
	return user
}

// table finds queue pairs by number, without a lock.
type table struct {
	pages [1 << 12]atomic.Pointer[[1 << 10]entry]

	mu   sync.Mutex
	next uint32   // first never used
	free []uint32 // the others, the longest unused first
}

type entry struct {
	q   atomic.Pointer[qp]
	gen uint32 // guarded by table.mu, and read with a queue pair there
}

// add gives q a number and tells it, or returns false if there is none.
func (t *table) add(q *qp) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case len(t.free) > 1024 || t.next > indexMask && len(t.free) > 0:
		i = t.free[0]
		t.free = t.free[1:]
	case t.next > indexMask:
		return false
	default:
		i = t.next
		t.next++
		if t.pages[i>>10].Load() == nil {
			t.pages[i>>10].Store(new([1 << 10]entry))
		}
	}
	e := &t.pages[i>>10].Load()[i&(1<<10-1)]
	e.gen++
	q.index = i
	q.sq.setBase(i, e.gen)
	q.rq.setBase(i, e.gen)
	e.q.Store(q)
	return true
}

func (t *table) remove(q *qp) {
	t.mu.Lock()
	t.pages[q.index>>10].Load()[q.index&(1<<10-1)].q.Store(nil)
	t.free = append(t.free, q.index)
	t.mu.Unlock()
}

// find returns the queue pair of an ID, or nil if it is closed.
func (t *table) find(id uint64) *qp {
	i := uint32(id>>indexShift) & indexMask
	page := t.pages[i>>10].Load()
	if page == nil {
		return nil
	}
	q := page[i&(1<<10-1)].q.Load()
	if q == nil || (q.sq.base^id)>>genShift&genMask != 0 {
		return nil
	}
	return q
}

// translate turns completions of the driver's into the consumer's. Those of queue pairs that are closed
// vanish. It returns how many remain, and the queue pairs that they tell the failure of, not yet known to have failed.
// A queue pair's number would not do: it may be another's by the time that somebody looks.
func (d *device) translate(wcs []verbs.WC) (n int, failed []*qp) {
	for i := range wcs {
		w := &wcs[i]
		var q *qp
		switch w.ID & kindMask {
		case kindSend, kindRecv:
			q = d.table.find(w.ID)
			if q == nil {
				continue
			}
			if w.ID&kindMask == kindSend {
				w.ID = q.sq.free(w.ID)
			} else {
				if q.typ == verbs.UD {
					q.lookAtGRH(w, q.rq.buffer(w.ID))
				}
				w.ID = q.rq.free(w.ID)
			}
		case kindSRQ:
			d.mu.Lock()
			s := d.srqs[w.ID&^kindMask>>genShift]
			q = d.nums[w.QPN] // nothing else tells
			d.mu.Unlock()
			if s == nil {
				continue
			}
			if q != nil && q.typ == verbs.UD {
				q.lookAtGRH(w, s.buffer(uint32(w.ID&seqMask)))
			}
			w.ID = s.free(uint32(w.ID & seqMask))
		default:
			continue
		}
		if w.Status != verbs.Success && q != nil && !q.failed.Load() && !slices.Contains(failed, q) {
			failed = append(failed, q)
		}
		if n != i {
			wcs[n] = *w
		}
		n++
	}
	return n, failed
}
