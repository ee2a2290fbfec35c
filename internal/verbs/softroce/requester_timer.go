package softroce

import (
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	// Retransmission timeouts, until and once there is an estimate (RFC 6298). They
	// are below the local ACK timeout, which counts whole seconds.
	firstRTO = int64(50 * time.Millisecond)
	minRTO   = int64(5 * time.Millisecond)
	maxRTO   = int64(2 * time.Second)
	maxShift = 10

	// Where some processes of the peer's host are stopped, many ways may have to be tried, and as many for the
	// answers: so there is a time between attempts that does not double, and beyond it a part of the time that has
	// passed in vain.
	searchRTO  = int64(100 * time.Millisecond)
	searchPart = 16

	// minRTT is taken for a round trip where losses closer together count as one.
	minRTT = int64(100 * time.Microsecond)
)

// measured takes a round trip time (RFC 6298).
func (r *rc) measured(rtt int64) { smooth(&r.srtt, &r.rttvar, rtt) }

// smooth adds a measurement to the estimate of a mean and a deviation.
func smooth(mean, dev *int64, t int64) {
	if *mean == 0 {
		*mean, *dev = t, t/2
		return
	}
	d := *mean - t
	if d < 0 {
		d = -d
	}
	*dev += (d - *dev) / 4
	*mean += (t - *mean) / 8
}

// baseRTO is the retransmission timeout of RFC 6298, or longer where the peer may wait for a disk.
func (r *rc) baseRTO() int64 {
	t := firstRTO
	if r.srtt != 0 {
		t = max(minRTO, r.srtt+4*r.rttvar)
	}
	if r.asked.slow > 0 {
		t = max(t, r.flushRTO())
	}
	return t
}

// searchRTO bounds the timeout when there was no progress for as long as vain.
func (r *rc) searchRTO(vain int64) int64 {
	return max(searchRTO, vain/searchPart, r.baseRTO())
}

// rto returns the retransmission timeout, which doubles with each in a row.
func (r *rc) rto() int64 {
	t := min(r.baseRTO()<<min(r.timeouts, maxShift), maxRTO)
	if r.ackTimeout != 0 {
		t = min(t, r.ackTimeout)
	}
	return t
}

// arm sets the timer for what is outstanding; there is none otherwise.
func (r *rc) arm(w *work) {
	if r.q.state != stateRTS {
		return
	}
	var at int64
	switch {
	case r.rnrUntil != 0:
		at = r.rnrUntil
	case r.una != r.max:
		at = r.rtoAt
		if r.giveUp != 0 {
			at = min(at, r.progress+r.giveUp)
		}
	}
	r.timer.set(w, at, r.fire)
}

func (r *rc) onTimer() {
	w := r.q.dev.begin()
	r.q.mu.Lock()
	if r.q.state == stateRTS && r.timer.fired(w.now()) {
		r.timeout(w)
	}
	r.q.mu.Unlock()
	w.end(true)
}

func (r *rc) timeout(w *work) {
	now := w.now()
	switch {
	case r.rnrUntil != 0:
		// The message that was refused goes alone, until it is taken.
		r.rnrUntil = 0
		e := r.q.sq.at(r.q.sq.head)
		r.ramp, r.rampNext = e.packets-uint32(wire.PSNDiff(r.una, e.psn)), 0
		r.progress = now
		r.rtoAt = now + r.rto()
	case r.giveUp != 0 && now >= r.progress+r.giveUp:
		r.q.fail(w, verbs.RetryExcErr)
		return
	default:
		r.timeouts++
		r.q.dev.stats.timeouts.Add(1)
		if r.timeouts == 1 {
			// Further ones tell of the connection, not of the path it shares.
			r.blamed = r.cc.lost(now, max(r.srtt, minRTT))
		}
		if r.timeouts > 1 {
			// Another way, in case this one leads to a process that does not listen.
			r.anotherWay(int(r.timeouts) - 1)
		}
		if r.timeouts > r.joins.patience() {
			r.path.SetSingle(true)
		}
		r.joins.watched = false
		r.goBack(w)
		r.ramp, r.rampNext = probePackets, 0
		r.rtoAt = now + min(r.rto(), r.searchRTO(now-r.progress))
	}
	r.transmit(w)
}
