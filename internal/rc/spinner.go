package rc

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	spinMax  = int64(50 * time.Microsecond) // of one adaptive wait
	spinMin  = int64(5 * time.Microsecond)
	busyTurn = int64(30 * time.Microsecond) // a turn of the scheduler longer than this means others run

	// Where the one who waits does all that is to be done, it may spin for longer if that makes its waits
	// shorter than those that park: both ends of a connection that park make each other's waits long.
	longMax   = int64(time.Millisecond)
	longProbe = int64(100 * time.Microsecond)

	// No spin lasts so long by itself, but one that a user wishes for.
	lostTime = 2 * longMax

	// A turn takes longer than this, but where time is simulated none passes.
	shortestTurn = int64(100 * time.Nanosecond)

	scoreMax   = 8
	probeEvery = 32 // with a score of 0, one wait of so many spins
)

// Spinner decides whether and how long the next wait spins, by how the last ones went.
type Spinner struct {
	score int   // how often spinning paid lately
	typ   int64 // how long a wait that paid took, typically
	park  int64 // how long one took that parked, if not longer than longMax
	long  bool  // the last one that parked took longer
	skips int

	losses losses
}

// NewSpinner makes the Spinner of something new, which may pay or not.
func NewSpinner() Spinner {
	refreshProcs()
	return Spinner{score: scoreMax / 2}
}

// Budget is how long the next wait shall spin, in nanoseconds. busyPoll is a user's wish: 0 none, negative not at all. long tells
// that the one who waits looks for completions itself as it spins, and does not need others to run.
func (p *Spinner) Budget(busyPoll int64, long bool) int64 {
	switch {
	case busyPoll < 0 || procs.Load() == 1 || p.losses.paused():
		return 0
	case busyPoll > 0:
		return busyPoll
	case p.score > 0:
	case p.skips < probeEvery:
		p.skips++
		return 0
	default:
		p.skips = 0
		if long {
			return p.probe()
		}
	}
	switch {
	case !long:
		return min(spinMax, 2*p.typ+spinMin)
	case p.typ == 0:
		return longProbe
	}
	// The surer it is that it pays, the longer is an exception waited for.
	return min(longMax, max(2*p.typ+spinMin, p.park-p.park/4)<<(p.score/2))
}

// probe is how long a spin lasts that is to find out whether spinning pays.
func (p *Spinner) probe() int64 {
	if p.long {
		return spinMax
	}
	return min(longMax, max(longProbe, p.park+p.park/4))
}

// Account takes how a spin went. A long one paid if it made the wait a third shorter.
func (p *Spinner) Account(met bool, took int64) {
	if took > lostTime {
		p.score = 0
		return
	}
	if !met || took > spinMax && took > p.park*2/3 {
		p.score = max(0, p.score-1)
		return
	}
	if p.score < scoreMax {
		p.score++
	}
	p.losses.saved(took, p.park)
	p.typ += (took - p.typ) / 4
}

// Lost takes that a spin ended with a turn that went to another program, and how long that took.
func (p *Spinner) Lost(took int64) { p.losses.lost(now(), took) }

// Slept takes how long a wait took that parked.
func (p *Spinner) Slept(took int64) {
	if p.long = took > 2*longMax; !p.long {
		p.park += (took - p.park) / 8
	}
}

// Turns is a spin that lets other goroutines run between two looks.
type Turns struct{ start, last, limit, left int64 }

// NewTurns begins a spin of at most limit nanoseconds.
func NewTurns(limit int64) Turns {
	t := now()
	return Turns{t, t, limit, limit / shortestTurn}
}

// Next lets others run, and tells whether to go on. A turn that took long went to others: the processor is wanted.
func (s *Turns) Next() bool {
	runtime.Gosched()
	t := now()
	turn := t - s.last
	s.last = t
	s.left--
	return t-s.start <= s.limit && turn <= busyTurn && s.left >= 0
}

// Took is how long the spin has lasted.
func (s *Turns) Took() int64 { return now() - s.start }

// procs is GOMAXPROCS, which is dear to ask for, as of the last new connection.
var procs atomic.Int32

func refreshProcs() { procs.Store(int32(min(runtime.GOMAXPROCS(0), 1<<20))) }
