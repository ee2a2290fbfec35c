package ibcm

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// sidrInterval is the time after which rdma_cm sends a SIDR_REQ again: 2^(20-8) ms.
const sidrInterval = 4096 * time.Millisecond

// LookupParam is what is asked of a datagram service.
type LookupParam struct {
	Path        Path
	ServiceID   uint64
	SourcePort  uint16        // of rdma_cm, for its header
	PrivateData []byte        // at most 180 bytes
	Timeout     time.Duration // without an answer; 0: Config.LookupTimeout
	Far         bool          // as in ConnectParam: each SIDR_REQ that Linux has answered becomes another request
}

func (p *LookupParam) req(id uint32) (*SIDRREQ, error) {
	q := &SIDRREQ{RequestID: id, PKey: pkeyDefault, ServiceID: p.ServiceID}
	if len(p.PrivateData) > len(q.PrivateData)-IPHeaderSize {
		return nil, fmt.Errorf("ibcm: %d bytes of private data in a SIDR_REQ", len(p.PrivateData))
	}
	h := IPHeader{Source: netip.AddrPortFrom(p.Path.Local, p.SourcePort), Destination: p.Path.Remote}
	h.Put(q.PrivateData[:])
	copy(q.PrivateData[IPHeaderSize:], p.PrivateData)
	return q, nil
}

// Lookup is a SIDR_REQ that waits for its answer (IBTA 12.11).
type Lookup struct {
	a       *Agent
	id      uint32
	tid     uint64
	service uint64
	path    Path
	mad     *[MADSize]byte
	done    func(*SIDRREP, error)

	// Of a.mu.
	timer    Timer
	attempt  int
	single   int // as in Conn
	interval time.Duration
	deadline time.Time
	sendErr  error // of the last attempt
	over     bool
}

// Lookup sends a SIDR_REQ. done is called once with the answer, whatever its status, or with the error of
// a wait in vain, perhaps before Lookup returns. The first send's error is Lookup's.
func (a *Agent) Lookup(p *LookupParam, done func(*SIDRREP, error)) (*Lookup, error) {
	l := &Lookup{a: a, path: p.Path, service: p.ServiceID, done: done, interval: min(a.cfg.FirstRetry, sidrInterval)}
	if p.Far {
		l.single, l.interval = farSingle, max(l.interval, min(farRetry, sidrInterval))
	}
	patience := p.Timeout
	if patience == 0 {
		patience = a.cfg.LookupTimeout
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, errClosed
	}
	l.id, l.tid = a.newID(), a.cfg.Rand()
	q, err := p.req(l.id)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	l.mad = Encode(NewHeader(l.tid, q), q)
	a.lookups[l.id] = l
	l.deadline = a.cfg.Clock.Now().Add(patience)
	l.retryIn(l.interval)
	a.mu.Unlock()
	if err := a.cfg.Send(l.path, l.mad[:], 0); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !l.over {
			l.forget()
			return nil, err
		}
	}
	return l, nil
}

// Cancel ends the wait, unless done is about to be called. The peer is not told: there is no message for that.
func (l *Lookup) Cancel() {
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	l.forget()
}

func (l *Lookup) forget() {
	l.over = true
	l.timer.Stop()
	if l.a.lookups[l.id] == l {
		delete(l.a.lookups, l.id)
	}
}

func (l *Lookup) retryIn(d time.Duration) {
	l.timer = l.a.cfg.Clock.AfterFunc(min(d, l.deadline.Sub(l.a.cfg.Clock.Now())), l.retry)
}

func (l *Lookup) retry() {
	var w work
	a := l.a
	a.mu.Lock()
	defer a.finish(&w)
	if l.over || a.closed {
		return
	}
	if !a.cfg.Clock.Now().Before(l.deadline) {
		err := l.sendErr
		if err == nil {
			err = syscall.ETIMEDOUT
		}
		l.end(nil, err, &w)
		return
	}
	l.attempt++
	way := l.attempt
	if way <= l.single {
		way = -way
	}
	w.sends = append(w.sends, outgoing{l.path, l.mad, way, &l.sendErr})
	l.interval = min(2*l.interval, sidrInterval)
	l.retryIn(l.interval)
}

// end hands the outcome over.
func (l *Lookup) end(r *SIDRREP, err error, w *work) {
	l.forget()
	w.calls = append(w.calls, func() { l.done(r, err) })
}

// onSIDRREP takes an answer. The 64 random bits of the transaction ID make it hard to forge.
func (a *Agent) onSIDRREP(p *Path, h *Header, m *SIDRREP, w *work) {
	l := a.lookups[m.RequestID]
	switch {
	case l == nil || !l.path.same(p) || l.tid != h.TransactionID || l.service != m.ServiceID:
		a.stats.Unmatched++
	case m.Status == SIDRSuccess && !validQPN(m.QPN):
		a.stats.Malformed++
	default:
		l.end(m, nil, w)
	}
}
