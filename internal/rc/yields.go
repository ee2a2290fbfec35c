package rc

import (
	"runtime"
	"time"
)

// yields lets the goroutines run that wait for the processor of one who spins: when some do, see askWanted. Beside that, timers
// wait for it, too, and what the runtime has not told. Each Gosched makes the scheduler wake a thread, if there is a processor for it, and where
// nobody waited that thread finds nothing and has only been in the way, perhaps of the peer. So where that is so they become rare. They never end:
// a goroutine that has run for 10 ms is stopped by a signal, after which the runtime looks every 20 µs for a while whether somebody has to be stopped.
type yields struct {
	every int64 // between two
	last  int64
	end   int64 // of the spin before
	held  int64 // since when others have waited, in spite of yields, or 0
	eager int8  // how likely some wait already when a spin begins, 0: they do not
}

const (
	yieldMin   = int64(50 * time.Microsecond)
	yieldMax   = int64(3 * time.Millisecond)
	yieldLong  = int64(100 * time.Microsecond) // others have run, and not only been woken
	yieldPause = int64(time.Millisecond)       // one who has not spun for so long has slept, or others have run
	heldMost   = int64(100 * time.Microsecond)

	eagerMost = 8
)

// begin begins a spin. It returns the time, which has passed where others have run.
//
// Whom the one who spins has woken just now is the next to run on its processor. Other processors leave such a goroutine alone at first: who would
// steal it sleeps for 3 µs, which become 50 more on Linux (PR_SET_TIMERSLACK). So a goroutine that wakes others and then waits here lets them run.
func (y *yields) begin(t int64) int64 {
	if t-y.end > yieldPause {
		y.last = t
	}
	y.every = max(y.every, yieldMin)
	y.held = 0
	if y.eager == 0 || !y.others(t, true) {
		return t
	}
	runtime.Gosched()
	y.last = now()
	return y.last
}

// others tells whether goroutines wait, if that is to be asked for now.
func (y *yields) others(t int64, now bool) bool {
	switch askWanted(t, now) {
	case wanted:
		y.eager = eagerMost
		return true
	case unwanted:
		y.held = 0
		if now {
			y.eager--
		}
	}
	return false
}

// letRun lets others run where that is due; woken tells that some have just come. It returns the time then, and whether
// the spin has to end: those who wait are not where a yield helps, but behind one who keeps another processor.
func (y *yields) letRun(t int64, woken bool) (back int64, over bool) {
	if woken || y.due(t) {
		runtime.Gosched()
		back = now()
		y.yielded(t, back)
		return back, false
	}
	if !y.others(t, false) {
		return t, false
	}
	if y.held == 0 {
		y.held = t
	} else if t-y.held > heldMost {
		return t, true
	}
	runtime.Gosched()
	y.last = now()
	return y.last, false
}

// due tells whether it is time.
func (y *yields) due(t int64) bool { return t-y.last > y.every }

// yielded tells that others could run between two times.
func (y *yields) yielded(from, to int64) {
	y.last = to
	if to-from > yieldLong {
		y.every = max(yieldMin, y.every/4)
	} else {
		y.every = min(yieldMax, 2*y.every)
	}
}
