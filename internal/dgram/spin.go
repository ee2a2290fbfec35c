package dgram

import (
	"runtime"
	"time"
)

const (
	spinMax   = int64(50 * time.Microsecond) // of one adaptive wait
	spinMin   = int64(5 * time.Microsecond)
	spinInner = 8 * time.Microsecond         // how long a provider may look for completions in one call
	busyTurn  = int64(30 * time.Microsecond) // a turn of the scheduler longer than this means that others run

	// A turn takes longer than this, but where time is simulated none passes.
	shortestTurn = int64(100 * time.Nanosecond)

	scoreMax   = 8
	probeEvery = 32 // with a score of 0, one wait of so many spins
)

// spinner decides whether and how long the next wait spins, by how the last ones went.
type spinner struct {
	score int   // how often spinning paid lately
	typ   int64 // how long a wait that paid took, typically
	skips int
}

// budget is how long the next wait shall spin, in nanoseconds. busyPoll is a user's wish: 0 none, negative not at all.
func (p *spinner) budget(busyPoll int64) int64 {
	switch {
	case busyPoll < 0 || runtime.GOMAXPROCS(0) == 1:
		return 0
	case busyPoll > 0:
		return busyPoll
	case p.score > 0:
	case p.skips < probeEvery:
		p.skips++
		return 0
	default:
		p.skips = 0
	}
	return min(spinMax, 2*p.typ+spinMin)
}

// account takes how a spin went.
func (p *spinner) account(met bool, took int64) {
	if !met {
		p.score = max(0, p.score-1)
		return
	}
	if p.score < scoreMax {
		p.score++
	}
	p.typ += (took - p.typ) / 4
}

var epoch = time.Now()

// now is a monotonic time in nanoseconds, never 0.
func now() int64 { return int64(time.Since(epoch)) | 1 }
