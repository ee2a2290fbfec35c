//go:build linux

package shm

import (
	"fmt"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Global visibility costs nothing: what was written is in memory that all see. Persistence is its owner's to see to.

const flushAccess = verbs.FlushGlobal | verbs.FlushPersistent

// flush is a FLUSH.
func (q *qp) flush(e *sendWR) (verbs.Status, stall) {
	var v verdict
	n := uint64(e.flushLength)
	if e.flushLevel == verbs.FlushMR {
		if n, v = q.remote.size(e.rkey, e.flushType); n == 0 {
			n = 1 // of a region that says so of itself
		}
	} else {
		var a access
		if a, v = q.dev.link.open(q.remote, e.rkey, e.raddr, n, e.flushType); v == granted {
			a.close()
		}
	}
	switch {
	case v == refused:
		return q.faulty(verbs.RemAccessErr)
	case e.flushType&verbs.FlushPersistent == 0 || n == 0:
		return verbs.Success, notStalled
	}
	return q.ask(e)
}

// size looks a whole region of the peer's up.
func (r *remote) size(key uint32, rights verbs.Access) (uint64, verdict) {
	if got := regWord(r.board, key, regKey).Load(); got == 0 || got != uint64(key) || uint32(regWord(r.board, key, regPlace).Load()) != r.domain ||
		verbs.Access(regWord(r.board, key, regAccess).Load())&rights != rights {
		return 0, refused
	}
	return regWord(r.board, key, regLength).Load(), granted
}

// overtakes tells whether a request need not wait for a FLUSH before it.
func (e *sendWR) overtakes() bool {
	switch e.op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWrite, verbs.OpWriteWithImm:
		return e.flags&verbs.Fence == 0
	}
	return false
}

// ahead carries out what need not wait for the FLUSH that is the oldest request. It completes behind it all the same.
func (q *qp) ahead() {
	if q.head == q.tail || q.job.seq == 0 || q.job.at != q.head+1 || q.at(q.head).op != verbs.OpFlush {
		return
	}
	q.early = true
	defer func() { q.early = false }()
	for q.next = max(q.next, q.head+1); q.next != q.tail; q.next++ {
		e := q.at(q.next)
		if e.early || !e.overtakes() {
			return // one that has failed, or has to wait
		}
		status, wait := q.perform(e)
		if wait != notStalled {
			return
		}
		e.early, e.status = true, status
		if status != verbs.Success {
			return
		}
	}
}

// RegPersistentMR implements [verbs.Persister].
func (p *pd) RegPersistentMR(mem []byte, access verbs.Access, persist func(mem []byte) error) (verbs.MR, error) {
	return p.register(mem, access|verbs.FlushPersistent, persist)
}

// persistBy gives a region for FLUSHes with persistence its way.
func (m *mr) persistBy(persist func(mem []byte) error) error {
	switch {
	case m.access&verbs.FlushPersistent == 0:
		return nil
	case persist == nil && m.arena != nil:
		return fmt.Errorf("shm: FLUSH with persistence of memory that is not persistent, but an arena's: map a file: %w", syscall.EINVAL)
	case persist == nil:
		persist = verbs.SyncMemory
	}
	m.persist = persist
	return nil
}
