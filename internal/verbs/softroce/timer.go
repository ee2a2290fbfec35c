package softroce

import "time"

// lazyTimer calls a function at a deadline that moves with every message. It
// does not: a pending timer is left alone when the deadline moves away, and
// re-armed when it fires too early, so that a busy queue pair costs one
// timer operation per timeout and not one per message. All of it is under the owner's lock.
type lazyTimer struct {
	timer    Timer
	fires    int64 // when the pending timer fires; 0: none is pending
	deadline int64 // 0: none
}

// set moves the deadline.
func (t *lazyTimer) set(w *work, deadline int64, f func()) {
	t.deadline = deadline
	if deadline == 0 || t.fires != 0 && t.fires <= deadline {
		return
	}
	d := time.Duration(max(deadline-w.now(), 0))
	if t.timer == nil {
		t.timer = w.dev.clock.AfterFunc(d, f)
	} else {
		t.timer.Reset(d)
	}
	t.fires = deadline
}

// fired tells the function the timer called whether the deadline has passed. If
// so there is none any more, else the timer is armed for what remains.
func (t *lazyTimer) fired(now int64) bool {
	t.fires = 0
	switch {
	case t.deadline == 0:
		return false
	case now < t.deadline:
		t.timer.Reset(time.Duration(t.deadline - now))
		t.fires = t.deadline
		return false
	}
	t.deadline = 0
	return true
}

func (t *lazyTimer) stop() {
	t.deadline, t.fires = 0, 0
	if t.timer != nil {
		t.timer.Stop()
	}
}
