//go:build linux

package shm

import (
	"runtime/debug"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// service is what a queue pair's peer has asked for.
type service struct {
	question
	busy  bool
	block *mapping // held
	data  []byte

	list  []verbs.SGE // of a receive
	parts []piece
}

// maxServers bounds the goroutines that do what peers ask for. Several at a time let a file system write for all of them at once.
const maxServers = 8

// servers are goroutines that come and go with the work.
type servers struct {
	mu    sync.Mutex
	queue []*qp
	n     int
	run   func()
}

func (s *servers) add(q *qp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, q)
	if s.n == maxServers {
		return
	}
	if s.run == nil {
		s.run = s.work
	}
	s.n++
	go s.run()
}

// work does what there is. Memory that is not there any more, because its file is shorter than it was, is an error of the one request.
func (s *servers) work() {
	debug.SetPanicOnFault(true)
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.n--
			s.mu.Unlock()
			return
		}
		q := s.queue[0]
		n := copy(s.queue, s.queue[1:])
		s.queue[n] = nil
		s.queue = s.queue[:n]
		s.mu.Unlock()
		q.serve()
	}
}

// gotQuestion takes what the peer asks for.
func (l *link) gotQuestion(h header, body []byte) error {
	var w question
	if !w.get(body) || w.Length > maxMsgSize {
		return errMessage
	}
	var m *mapping
	var data []byte
	if op := verbs.Opcode(w.Op); hasData(op) {
		if m = l.segment(w.Segment); m == nil || w.Length > mostAsked || w.Offset > uint64(len(m.mem)) || uint64(w.Length) > uint64(len(m.mem))-w.Offset {
			if m != nil {
				m.release()
			}
			return errMessage
		}
		data = m.mem[w.Offset:][:w.Length:w.Length]
	}
	passed.Acquire()
	q := l.dev.qp(h.ID)
	if q == nil || !q.toServe(&w, m, data) {
		if m != nil {
			m.release()
		}
		l.answer(w.Seq, answerStale, 0)
		return nil
	}
	l.dev.servers.add(q)
	return nil
}

// toServe notes what is asked for. A queue pair has one question at a time.
func (q *qp) toServe(w *question, m *mapping, data []byte) bool {
	send := isSend(verbs.Opcode(w.Op))
	s := &q.service
	q.rmu.Lock()
	ok := q.state == stateRTS && !s.busy
	if ok {
		*s = service{question: *w, busy: true, block: m, data: data, list: s.list[:0], parts: s.parts[:0]}
		if send && q.lane == nil {
			s.list = append(s.list, q.rq.listOf(w.Addr)...)
		}
	}
	q.rmu.Unlock()
	if ok && send && q.lane != nil {
		s.list = q.lane.receive(w.Addr, s.list)
	}
	return ok
}

// serve does it. No lock is held.
func (q *qp) serve() {
	s := &q.service // nobody else's while it is busy
	value, status := q.serveOne(s)
	if s.block != nil {
		s.block.release()
	}
	seq := s.Seq
	if q.lane != nil && isSend(verbs.Opcode(s.Op)) {
		q.lane.served(s.Addr)
	}
	q.rmu.Lock()
	*s = service{list: s.list[:0], parts: s.parts[:0]}
	q.rmu.Unlock()
	passed.Release()
	q.dev.link.answer(seq, uint8(status), value)
}

func (l *link) answer(seq uint64, status uint8, value uint64) {
	var h [headerLen]byte
	var m [headerLen + answerLen]byte
	b := append(m[:0], putHeader(&h, header{Kind: msgAnswer, Flag: status})...)
	l.send(order.AppendUint64(order.AppendUint64(b, seq), value), -1)
}

// serveOne is an access to a region of this side, checked as by a device.
func (q *qp) serveOne(s *service) (value uint64, status verbs.Status) {
	op := verbs.Opcode(s.Op)
	types := verbs.Access(s.Types)
	var rights verbs.Access
	n := uint64(s.Length)
	if isSend(op) {
		return 0, q.deliver(s)
	}
	switch op {
	case verbs.OpWrite, verbs.OpWriteWithImm:
		rights = verbs.RemoteWrite
	case verbs.OpRead:
		rights = verbs.RemoteRead
	case verbs.OpAtomicWrite:
		rights = verbs.RemoteWrite
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		rights = verbs.RemoteAtomic
	case verbs.OpFlush:
		rights = types
	}
	if rights == 0 || rights&^(remoteAccess|flushAccess) != 0 {
		return 0, verbs.RemInvReqErr
	}
	word := isAtomic(op) || op == verbs.OpAtomicWrite
	if word && (n != wordSize || s.Addr%wordSize != 0) {
		return 0, verbs.RemInvReqErr
	}
	m := q.pd.find(s.Key)
	if m == nil || m.access&rights != rights {
		return 0, verbs.RemAccessErr
	}
	if !m.hold() {
		return 0, verbs.RemAccessErr
	}
	defer m.release()
	off, ok := m.offset(s.Addr, n)
	if op == verbs.OpFlush && verbs.FlushLevel(s.Level) == verbs.FlushMR {
		off, n, ok = 0, m.size, true
	}
	if !ok {
		return 0, verbs.RemAccessErr
	}
	mem := m.mem[off:][:n:n]
	if op == verbs.OpFlush {
		if types&verbs.FlushPersistent != 0 && n > 0 && m.persist(mem) != nil {
			return 0, verbs.RemOpErr
		}
		return 0, verbs.Success
	}
	return touch(op, s, mem)
}

// deliver copies a part of a message to where a receive says.
func (q *qp) deliver(s *service) verbs.Status {
	var err error
	if s.parts, err = q.pd.check(s.parts, s.list, verbs.LocalWrite); err != nil {
		return verbs.RemOpErr // as it is told of a receive that is wrong
	}
	off := s.Compare
	for i := range s.parts {
		p := &s.parts[i]
		if off >= uint64(p.n) {
			off -= uint64(p.n)
			continue
		}
		if len(s.data) == 0 {
			break
		}
		if !p.m.hold() {
			return verbs.RemOpErr
		}
		mem := p.m.mem[p.off:][off:p.n]
		_, status := touch(verbs.OpWrite, s, mem)
		p.m.release()
		if status != verbs.Success {
			return status
		}
		s.data = s.data[min(len(mem), len(s.data)):]
		off = 0
	}
	if len(s.data) > 0 {
		return verbs.RemInvReqErr // more than there is room for, or no such receive
	}
	return verbs.Success
}

// touch accesses memory that may not be there.
func touch(op verbs.Opcode, s *service, mem []byte) (value uint64, status verbs.Status) {
	defer func() {
		if fault := recover(); fault != nil {
			if _, ok := fault.(interface{ Addr() uintptr }); !ok {
				panic(fault)
			}
			value, status = 0, verbs.RemOpErr
		}
	}()
	switch op {
	case verbs.OpWrite, verbs.OpWriteWithImm:
		copy(mem, s.data)
	case verbs.OpRead:
		copy(s.data, mem)
	case verbs.OpAtomicWrite:
		word64(mem, 0).Store(order.Uint64(s.data))
	default:
		value = modify(word64(mem, 0), op, s.Compare, s.SwapAdd)
	}
	return value, verbs.Success
}
