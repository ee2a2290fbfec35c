//go:build linux

package shm

import (
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// patience notes that the oldest request waits, and tells whether it still may.
func (q *qp) patience(why stall) bool {
	if why == q.stalled && q.since == q.head {
		return !q.until.IsZero() || q.endless(why)
	}
	q.calm()
	wait := peerPatience
	if q.endless(why) {
		q.stalled, q.since = why, q.head
		return true
	}
	if why == stallRecv {
		if q.rnrRetry == 0 {
			return false
		}
		wait = time.Duration(q.rnrRetry) * verbs.RNRTimer(q.remote.rnrTimer)
	}
	q.stalled, q.since = why, q.head
	q.until = time.Now().Add(wait)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.impatient)
	} else {
		q.timer.Reset(wait)
	}
	return true
}

// endless tells whether a request waits without end: the peer tells when it has a receive.
func (q *qp) endless(why stall) bool {
	return (why == stallRecv || why == stallShare) && q.rnrRetry == 7
}

// impatient is the end of patience. One that was stopped too late comes before it.
func (q *qp) impatient() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.until.IsZero() && !time.Now().Before(q.until) {
		q.until = time.Time{}
		q.resumeLocked()
	}
}

// calm is told that nothing waits any more.
func (q *qp) calm() {
	if !q.until.IsZero() {
		q.timer.Stop()
		q.until = time.Time{}
	}
	q.stalled = notStalled
}
