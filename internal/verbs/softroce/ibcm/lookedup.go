package ibcm

import (
	"fmt"
	"net/netip"
	"time"
)

// answeredWait is for how long a repeated SIDR_REQ draws the answer that it had before. Somebody who
// keeps no memory, as rdma_cm, takes it for another request.
const answeredWait = sidrInterval + time.Second

// lookupID is how a repeated SIDR_REQ is known.
type lookupID struct {
	addr netip.Addr
	tid  uint64
	id   uint32
}

// LookupRequest is a peer's SIDR_REQ.
type LookupRequest struct {
	a   *Agent
	key lookupID

	service uint64
	path    Path

	// Of a.mu.
	answer  *[MADSize]byte // nil: not yet answered
	answers int
	timer   Timer // of an answered one
}

// Path is the way of the request's datagrams.
func (r *LookupRequest) Path() Path { return r.path }

// AnswerParam is what a SIDR_REP says.
type AnswerParam struct {
	Status      uint8  // SIDRSuccess, or why not
	QPN, QKey   uint32 // of success
	PrivateData []byte // at most 136 bytes
}

// Answer answers the request, once, perhaps before Config.Lookup returns [Taken] for it.
func (r *LookupRequest) Answer(p *AnswerParam) error {
	m := &SIDRREP{RequestID: r.key.id, ServiceID: r.service, Status: p.Status}
	if p.Status == SIDRSuccess {
		if !validQPN(p.QPN) {
			return fmt.Errorf("ibcm: queue pair %#x in a SIDR_REP", p.QPN)
		}
		m.QPN, m.QKey = p.QPN, p.QKey
	}
	if len(p.PrivateData) > len(m.PrivateData) {
		return fmt.Errorf("ibcm: %d bytes of private data in a SIDR_REP", len(p.PrivateData))
	}
	copy(m.PrivateData[:], p.PrivateData)
	var w work
	a := r.a
	a.mu.Lock()
	defer a.finish(&w)
	switch {
	case a.closed:
		return errClosed
	case r.answer != nil:
		return fmt.Errorf("%w: the lookup was answered before", ErrState)
	}
	r.reply(m, &w)
	return nil
}

// reply sends the answer and keeps it for a while, unless there are too many.
func (r *LookupRequest) reply(m *SIDRREP, w *work) {
	a := r.a
	r.answer = Encode(NewHeader(r.key.tid, m), m)
	w.send(r.path, r.answer, 0, nil)
	a.lookupsWaiting--
	if len(a.lookedUp)-a.lookupsWaiting > a.cfg.MaxHalfOpen {
		delete(a.lookedUp, r.key)
		return
	}
	r.timer = a.cfg.Clock.AfterFunc(answeredWait, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.lookedUp, r.key)
	})
}

func (a *Agent) onSIDRREQ(p *Path, h *Header, m *SIDRREQ, w *work) {
	key := lookupID{p.Remote.WithZone(""), h.TransactionID, m.RequestID}
	if r := a.lookedUp[key]; r != nil {
		a.stats.DuplicateREQs++
		if r.answer != nil && r.path.same(p) {
			r.answers++
			w.send(r.path, r.answer, -r.answers, nil)
		}
		a.finish(w)
		return
	}
	if a.cfg.Lookup == nil {
		r := &SIDRREP{RequestID: m.RequestID, ServiceID: m.ServiceID, Status: SIDRUnsupported}
		w.send(*p, Encode(NewHeader(h.TransactionID, r), r), 0, nil)
		a.finish(w)
		return
	}
	if a.lookupsWaiting >= a.cfg.MaxHalfOpen {
		a.stats.DroppedREQs++
		a.finish(w)
		return
	}
	r := &LookupRequest{a: a, key: key, service: m.ServiceID, path: *p}
	a.lookedUp[key] = r
	a.lookupsWaiting++
	a.finish(w)

	v := a.cfg.Lookup(r, m)

	var w2 work
	a.mu.Lock()
	defer a.finish(&w2)
	switch {
	case v == Taken || r.answer != nil || a.closed:
	case v == Dropped:
		a.stats.DroppedREQs++
		a.lookupsWaiting--
		delete(a.lookedUp, key)
	default:
		// Nothing to remember: asked again, the answer is found again.
		a.lookupsWaiting--
		delete(a.lookedUp, key)
		rep := &SIDRREP{RequestID: m.RequestID, ServiceID: m.ServiceID, Status: uint8(v)}
		w2.send(*p, Encode(NewHeader(h.TransactionID, rep), rep), 0, nil)
	}
}
