package rc

import "time"

// yields tells when one who spins lets the goroutines run that wait for its processor. Each Gosched makes the scheduler wake a
// thread, if there is a processor for it, and where nobody waited that thread finds nothing and has only been in the way, perhaps of
// the peer. So where that is so they become rare. They never end: somebody may come to wait, and a goroutine that has run for 10 ms is
// stopped by a signal, after which the runtime looks every 20 µs for a while whether somebody has to be stopped.
type yields struct {
	every int64 // between two
	last  int64
	end   int64 // of the spin before
}

const (
	yieldMin   = int64(50 * time.Microsecond)
	yieldMax   = int64(3 * time.Millisecond)
	yieldLong  = int64(100 * time.Microsecond) // others have run, and not only been woken
	yieldPause = int64(time.Millisecond)       // one who has not spun for so long has slept, or others have run
)

// begin begins a spin.
func (y *yields) begin(t int64) {
	if t-y.end > yieldPause {
		y.last = t
	}
	y.every = max(y.every, yieldMin)
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
