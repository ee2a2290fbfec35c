package ibcm

import (
	"encoding/binary"
	"errors"
	"syscall"
)

// HandleMAD takes a datagram that came to p.Local from p.Remote. p's traffic
// class and hop limit are those that an answer shall have.
func (a *Agent) HandleMAD(p Path, mad []byte) {
	h, m, err := Decode(mad)
	var w work
	a.mu.Lock()
	switch {
	case a.closed:
	case errors.Is(err, ErrIgnored):
	case err != nil:
		a.stats.Malformed++
	default:
		switch m := m.(type) {
		case *REQ:
			a.onREQ(&p, &h, m, &w) // unlocks
			return
		case *MRA:
			a.onMRA(&p, m)
		case *REJ:
			a.onREJ(&p, m, &w)
		case *REP:
			a.onREP(&p, &h, m, &w)
		case *RTU:
			a.onRTU(&p, m, &w)
		case *DREQ:
			a.onDREQ(&p, &h, m, &w)
		case *DREP:
			a.onDREP(&p, m, &w)
		case *SIDRREQ:
			a.onSIDRREQ(&p, &h, m, &w) // unlocks
			return
		case *SIDRREP:
			a.onSIDRREP(&p, &h, m, &w)
		}
	}
	a.finish(&w)
}

// validQPN tells whether a connection may lead to a queue pair: 0 and 1 serve
// the management, all ones is for multicast.
func validQPN(qpn uint32) bool { return qpn > GSIQPN && qpn < 1<<24-1 }

// find returns the connection with this side's ID id, if p leads to its peer.
func (a *Agent) find(p *Path, id uint32) *Conn {
	if c := a.conns[id]; c != nil && c.path.same(p) {
		return c
	}
	return nil
}

// findBoth is find for messages that name both ends.
func (a *Agent) findBoth(p *Path, local, remote uint32) *Conn {
	if c := a.find(p, local); c != nil && c.remoteID == remote && remote != 0 {
		return c
	}
	return nil
}

func (a *Agent) onREQ(p *Path, h *Header, q *REQ, w *work) {
	addr := p.Remote.WithZone("")
	if c := a.requests[peerID{addr, q.LocalCAGUID, q.LocalCommID}]; c != nil {
		a.stats.DuplicateREQs++
		a.onRepeatedREQ(p, c, w)
		a.finish(w)
		return
	}
	if reason := checkREQ(p, q); reason != 0 {
		a.rejectREQ(p, h, q, reason, w)
		a.finish(w)
		return
	}
	if old := a.qps[peerQPN{addr, q.LocalCAGUID, q.LocalQPN}]; old != nil {
		a.stats.StaleREQs++
		a.rejectREQ(p, h, q, ReasonStale, w)
		old.stale(w)
		a.finish(w)
		return
	}
	if a.halfOpen >= a.cfg.MaxHalfOpen {
		a.stats.DroppedREQs++
		a.finish(w)
		return
	}
	c := &Conn{
		a: a, id: a.newID(), path: *p, req: q, tid: h.TransactionID, state: reqNew, busy: true, halfOpen: true,
		remoteID: q.LocalCommID, remoteGUID: q.LocalCAGUID, remoteQPN: q.LocalQPN,
		ackTimeout: q.Primary.LocalACKTimeout, respTimeout: q.LocalCMResponseTimeout,
	}
	a.halfOpen++
	a.conns[c.id] = c
	a.requests[c.peerID()] = c
	a.qps[c.peerQPN()] = c
	a.finish(w)

	v := a.cfg.Request(c, q)

	var w2 work
	a.mu.Lock()
	if c.state == reqNew {
		switch v {
		case Taken:
			c.state = reqRcvd
		case Dropped:
			a.stats.DroppedREQs++
			c.forget()
		default:
			c.refuse(&REJ{Reason: uint16(v)}, &w2)
		}
	}
	c.busy = false
	w2.deliver = append(w2.deliver, c)
	a.finish(&w2)
}

// checkREQ returns the reason to refuse a REQ that no connection can come of.
func checkREQ(p *Path, q *REQ) uint16 {
	switch {
	case q.LocalCommID == 0:
		return ReasonInvalidCommID
	case q.TransportServiceType != TransportRC || q.RDCExists:
		return ReasonInvalidTransport
	case !validQPN(q.LocalQPN):
		return ReasonNoQP
	case q.PathMTU < 1 || q.PathMTU > 5:
		return ReasonInvalidMTU
	case q.Primary.LocalGID != GID(p.Remote), q.Primary.RemoteGID != GID(p.Local):
		return ReasonInvalidGID
	}
	return 0
}

// rejectREQ answers a REQ of which no connection was made.
func (a *Agent) rejectREQ(p *Path, h *Header, q *REQ, reason uint16, w *work) {
	m := &REJ{RemoteCommID: q.LocalCommID, MessageRejected: AboutREQ, Reason: reason}
	w.send(*p, Encode(NewHeader(h.TransactionID, m), m), 0, nil)
}

// onRepeatedREQ: the answer was lost, is late, or has crossed this REQ.
func (a *Agent) onRepeatedREQ(p *Path, c *Conn, w *work) {
	if !c.path.same(p) {
		return
	}
	switch c.state {
	case reqRcvd:
		m := &MRA{LocalCommID: c.id, RemoteCommID: c.remoteID, MessageMRAed: AboutREQ, ServiceTimeout: mraService}
		c.again(Encode(NewHeader(c.tid, m), m), w)
	case repSent:
		c.again(c.mad, w)
	case rejected:
		c.again(c.answer, w)
	}
}

// again answers a message that was repeated. The attempt is negative: one
// datagram for each that came, or forged ones would draw more than they are.
func (c *Conn) again(mad *[MADSize]byte, w *work) {
	c.answers++
	w.send(c.path, mad, -c.answers, nil)
}

// stale ends a connection whose peer has forgotten it: its queue pair asks for
// another one.
func (c *Conn) stale(w *work) {
	switch c.state {
	case reqNew, reqRcvd:
		c.emit(Event{Type: EventRejected, REJ: &REJ{LocalCommID: c.remoteID, RemoteCommID: c.id, Reason: ReasonStale}}, w)
		c.enterTimeWait(false, w)
	case repSent, mraRepRcvd:
		c.emit(Event{Type: EventUnreachable, Err: syscall.ECONNRESET}, w)
		c.sendDREQ(w)
	case established, repRcvd:
		c.emit(Event{Type: EventDisconnected, Err: syscall.ECONNRESET}, w)
		c.sendDREQ(w)
	}
}

func (a *Agent) onMRA(p *Path, m *MRA) {
	switch m.MessageMRAed {
	case AboutREQ:
		if c := a.find(p, m.RemoteCommID); c != nil && (c.state == reqSent || c.state == mraReqRcvd) {
			c.state = mraReqRcvd
			c.bePatient(m.ServiceTimeout)
			return
		}
	case AboutREP:
		c := a.findBoth(p, m.RemoteCommID, m.LocalCommID)
		if c != nil && c.state == repSent { // once: it could ask for ever
			c.state = mraRepRcvd
			c.bePatient(m.ServiceTimeout)
			return
		}
	}
	a.stats.Unmatched++
}

// rejectedConn finds the connection that a REJ is about.
func (a *Agent) rejectedConn(p *Path, m *REJ) *Conn {
	if m.Reason == ReasonTimeout && m.RejectedInfoLength >= 8 {
		guid := binary.BigEndian.Uint64(m.ARI[:])
		if c := a.requests[peerID{p.Remote.WithZone(""), guid, m.LocalCommID}]; c != nil && c.path.same(p) {
			return c
		}
	}
	c := a.find(p, m.RemoteCommID)
	if c != nil && (c.state == reqSent || c.state == mraReqRcvd) && (m.MessageRejected == AboutREQ || m.Reason == ReasonTimeout) {
		return c
	}
	if m.MessageRejected == AboutREQ {
		return nil
	}
	return a.findBoth(p, m.RemoteCommID, m.LocalCommID)
}

func (a *Agent) onREJ(p *Path, m *REJ, w *work) {
	c := a.rejectedConn(p, m)
	if c == nil {
		a.stats.Unmatched++
		return
	}
	switch c.state {
	case reqSent, mraReqRcvd, reqNew, reqRcvd, repSent, mraRepRcvd:
		if c.active && m.MessageRejected != AboutREQ {
			// The peer waited for the RTU to a REP that never came here.
			c.emit(Event{Type: EventUnreachable, Err: syscall.ETIMEDOUT}, w)
			break
		}
		c.emit(Event{Type: EventRejected, REJ: m}, w)
	case repRcvd, established:
		// The passive side changed its mind after its REP.
		c.emit(Event{Type: EventDisconnected, Err: syscall.ECONNRESET}, w)
	case dreqSent:
		c.emit(Event{Type: EventDisconnected}, w)
	default:
		return
	}
	c.enterTimeWait(false, w)
}

func (a *Agent) onREP(p *Path, h *Header, m *REP, w *work) {
	c := a.find(p, m.RemoteCommID)
	if c == nil || !c.active || c.state == timeWait {
		// Of a connect that was given up, whose REJ was lost: without another
		// the peer would wait for the RTU.
		a.stats.Unmatched++
		a.rejectREP(p, h, m, ReasonInvalidCommID, w)
		return
	}
	switch c.state {
	case reqSent, mraReqRcvd:
	case established:
		if c.remoteID == m.LocalCommID { // the RTU was lost
			c.again(c.answer, w)
		}
		return
	case repRcvd:
		if c.remoteID == m.LocalCommID {
			r := &MRA{LocalCommID: c.id, RemoteCommID: c.remoteID, MessageMRAed: AboutREP, ServiceTimeout: mraService}
			c.again(Encode(NewHeader(c.tid, r), r), w)
		}
		return
	default:
		return
	}
	if m.LocalCommID == 0 || !validQPN(m.LocalQPN) {
		a.stats.Malformed++
		return
	}
	key := peerQPN{p.Remote.WithZone(""), m.LocalCAGUID, m.LocalQPN}
	if old := a.qps[key]; old != nil {
		// The REQ is sent again; what comes of it is a new connection there.
		a.stats.StaleREQs++
		a.rejectREP(p, h, m, ReasonStale, w)
		old.stale(w)
		return
	}
	c.stopTimer()
	c.remoteID, c.remoteGUID, c.remoteQPN = m.LocalCommID, m.LocalCAGUID, m.LocalQPN
	a.qps[key] = c
	c.state = repRcvd
	c.emit(Event{Type: EventReplied, REP: m}, w)
}

func (a *Agent) rejectREP(p *Path, h *Header, m *REP, reason uint16, w *work) {
	r := &REJ{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID, MessageRejected: AboutREP, Reason: reason}
	w.send(*p, Encode(NewHeader(h.TransactionID, r), r), 0, nil)
}

func (a *Agent) onRTU(p *Path, m *RTU, w *work) {
	c := a.findBoth(p, m.RemoteCommID, m.LocalCommID)
	if c == nil {
		a.stats.Unmatched++
		return
	}
	if c.state == repSent || c.state == mraRepRcvd {
		c.establish(w)
	}
}

func (a *Agent) onDREQ(p *Path, h *Header, m *DREQ, w *work) {
	drep := &DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID}
	c := a.conns[m.RemoteCommID]
	if c == nil || c.remoteID != m.LocalCommID {
		// The peer must not wait for a connection that is not there.
		a.stats.Unmatched++
		w.send(*p, Encode(NewHeader(h.TransactionID, drep), drep), 0, nil)
		return
	}
	if !c.path.same(p) || m.RemoteQPN != c.localQPN {
		a.stats.Unmatched++
		return
	}
	switch c.state {
	case repSent, mraRepRcvd:
		c.establish(w) // the RTU was lost
		fallthrough
	case established, repRcvd, dreqSent:
		c.answer, c.answers = Encode(NewHeader(h.TransactionID, drep), drep), 0
		w.send(c.path, c.answer, 0, nil)
		c.emit(Event{Type: EventDisconnected}, w)
		c.enterTimeWait(true, w)
	case timeWait:
		c.again(Encode(NewHeader(h.TransactionID, drep), drep), w)
	}
}

func (a *Agent) onDREP(p *Path, m *DREP, w *work) {
	c := a.findBoth(p, m.RemoteCommID, m.LocalCommID)
	if c == nil || c.state != dreqSent {
		a.stats.Unmatched++
		return
	}
	c.emit(Event{Type: EventDisconnected}, w)
	c.enterTimeWait(false, w)
}
