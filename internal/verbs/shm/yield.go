//go:build linux

package shm

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Who spins lets other threads run, for the one to answer may want this very processor. On a processor of its own it is back at once.
// Where it and the one to answer share a processor they take turns, and each turn costs more than a round trip should. The
// kernel may leave it so for long though there is a processor that does nothing: neither of them ever sleeps, which is when it
// looks for another place. So a thread that has found itself in such company for a while goes to another processor.
//
// Its companion has counted the same turns, and of two processors both would go to the other one, and again and again. So chance
// decides in which turn one goes. When it has, the other one's turns are its own.

const (
	ownTurn   = int64(800 * time.Nanosecond) // back earlier, nobody else ran
	company   = 48                           // turns with others before it goes
	goOdds    = 8                            // then it goes in one turn of so many
	moveAgain = int64(2 * time.Millisecond)  // not sooner after a move; twice as long after each that did not help
	moveMost  = int64(time.Second)
	settled   = int64(200 * time.Millisecond) // a move that lasted so long has helped
)

// crowd is what the process's spinning threads meet when they yield.
var crowd meetings

type meetings struct {
	turns  atomic.Int32 // with others, fewer by those without
	moving atomic.Bool
	moved  atomic.Int64 // when
	pause  atomic.Int64 // since then, before the next
}

// crowded tells whether the one to answer probably waits for this processor.
func crowded() bool { return crowd.turns.Load() >= company/4 }

// yield lets another thread run. It takes the time, and returns it.
func yield(now int64) int64 {
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	then := now
	now = nanoseconds()
	if crowd.goes(now, now-then) && crowd.moving.CompareAndSwap(false, true) {
		move(now)
		crowd.moving.Store(false)
		return nanoseconds()
	}
	return now
}

// goes takes how long a yield took, and tells whether the thread shall go to another processor.
func (m *meetings) goes(now, took int64) bool {
	switch n := m.turns.Load(); {
	case took < ownTurn:
		if n > 0 {
			m.turns.Store(n - 1) // a guess will do
		}
	case n < company:
		m.turns.Store(n + 1)
	default:
		return now-m.moved.Load() >= m.pause.Load() && rand.Uint32()%goOdds == 0
	}
	return false
}

// move takes the thread to another of the processors that it may run on.
func move(now int64) {
	crowd.went(now)
	runtime.LockOSThread() // it is a thread's mask
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return
	}
	others := all
	others.Clear(processor())
	// A mask without processors is an error, and then there is nowhere to go.
	if unix.SchedSetaffinity(0, &others) == nil {
		_ = unix.SchedSetaffinity(0, &all) // what the thread may is as it was
	}
}

// went takes that the thread goes.
func (m *meetings) went(now int64) {
	pause := 2 * m.pause.Load()
	if now-m.moved.Load() > settled+pause {
		pause = 0
	}
	m.pause.Store(min(max(pause, moveAgain), moveMost))
	m.moved.Store(now)
	m.turns.Store(0)
}

var epoch = time.Now()

func nanoseconds() int64 { return int64(time.Since(epoch)) }
