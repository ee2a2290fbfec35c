package softroce

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// RegPersistentMR implements [verbs.Persister].
func (p *pd) RegPersistentMR(mem []byte, access verbs.Access, persist func(mem []byte) error) (verbs.MR, error) {
	return p.register(mem, access|verbs.FlushPersistent, persist)
}

var _ verbs.Persister = (*pd)(nil)

// persistBy gives a region for FLUSHes with persistence its way.
func (m *mr) persistBy(persist func(mem []byte) error) error {
	switch {
	case m.access&verbs.FlushPersistent == 0:
		return nil
	case persist != nil:
	case m.arena != nil:
		return fmt.Errorf("softroce: FLUSH with persistence of memory that is not persistent, but an arena's: map a file: %w", syscall.EINVAL)
	case verbs.SyncMemory == nil:
		return unsupported("making memory persistent on this system")
	default:
		persist = verbs.SyncMemory
	}
	m.persist = persist
	return nil
}

// maxPersisters bounds the goroutines that wait for disks. Several at a time let a file system
// write for all of them at once.
const maxPersisters = 8

// persister makes memory persistent on goroutines that come and go with the work. Connections have their turns one after the
// other; those of one connection are in order.
type persister struct {
	mu      sync.Mutex
	queue   []*rc
	workers int
	work    func()
}

func (p *persister) add(r *rc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, r)
	if p.workers == maxPersisters {
		return
	}
	if p.work == nil {
		d := r.q.dev
		p.work = func() { p.run(d) }
	}
	p.workers++
	go p.work()
}

// next returns whose turn it is, or nil if it is nobody's: the caller ends. again has more to do.
func (p *persister) next(again *rc) *rc {
	p.mu.Lock()
	defer p.mu.Unlock()
	if again != nil {
		p.queue = append(p.queue, again)
	}
	if len(p.queue) == 0 {
		p.workers--
		return nil
	}
	r := p.queue[0]
	n := copy(p.queue, p.queue[1:])
	p.queue[n] = nil
	p.queue = p.queue[:n]
	return r
}

func (p *persister) run(d *device) {
	for r := p.next(nil); r != nil; {
		var again *rc
		if r.persistOne(d) {
			again = r
		}
		r = p.next(again)
	}
}

// persist lets the connection have turns until nothing is left to make persistent.
func (r *rc) persist() {
	if !r.persisting {
		r.persisting = true
		r.q.dev.persister.add(r)
	}
}

// persistOne does what the oldest FLUSH asks for, with no lock held meanwhile, and tells whether there is another one.
func (r *rc) persistOne(d *device) (more bool) {
	q := r.q
	q.mu.Lock()
	e := r.oldestFlush()
	if e == nil || q.state == stateClosed {
		r.persisting = false
		q.mu.Unlock()
		return false
	}
	psn, m, syndrome := e.psn, e.region, wire.SyndromeRemoteAccess
	held := m.hold()
	var mem []byte
	if held {
		mem = m.mem[e.off : e.off+e.flush : e.off+e.flush]
		r.flushing.Add(1)
	}
	q.mu.Unlock()
	if held {
		syndrome = 0
		if m.persist(mem) != nil {
			syndrome = wire.SyndromeRemoteOp
		}
		m.release()
		r.flushing.Done()
	}

	w := d.begin()
	q.mu.Lock()
	if q.state != stateClosed {
		r.flushed(w, psn, syndrome)
	}
	more = r.unflushed > 0
	r.persisting = more
	r.giveHeld(w, false) // nobody else sees to it
	w.flush()            // before what another goroutine may send next
	q.mu.Unlock()
	w.end(true)
	return more
}

// oldestFlush returns the first FLUSH that is not done, or nil.
func (r *rc) oldestFlush() *resource {
	for n, i := len(r.resources), r.nextResource; n > 0; n-- {
		if e := &r.resources[i]; e.flush > 0 {
			return e
		}
		if i++; i == len(r.resources) {
			i = 0
		}
	}
	return nil
}

// flushed answers a FLUSH that is done, unless the answer is not due any more.
func (r *rc) flushed(w *work, psn uint32, syndrome uint8) {
	e := r.oldestFlush()
	if e == nil || e.psn != psn {
		return
	}
	e.flush, e.refusal = 0, syndrome
	r.unflushed--
	r.reply(w)
}

// forgetFlush gives up a FLUSH that is not done. A repetition of it must draw no answer.
func (r *rc) forgetFlush(e *resource) {
	if e.flush > 0 {
		e.flush, e.packets = 0, 0
		r.unflushed--
	}
}
