//go:build linux

package shm

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Who spins lets other threads run, for the one to answer may want this very processor. On a processor of its own it is back at once.
// Where it and the one to answer share a processor they take turns, and each turn costs more than a round trip should. The
// kernel may leave it so for long though there is a processor that does nothing: neither of them ever sleeps, which is when it
// looks for another place. So a thread that has found itself in such company for a while goes to another processor.

const (
	ownTurn   = int64(800 * time.Nanosecond) // back earlier, nobody else ran
	company   = 48                           // turns with others before it goes
	moveAgain = int64(2 * time.Millisecond)  // not sooner after a move; twice as long after each that did not help
	moveMost  = int64(time.Second)
	settled   = int64(200 * time.Millisecond) // a move that lasted so long has helped
)

// crowd is what the process's spinning threads meet when they yield.
var crowd struct {
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
	switch n := crowd.turns.Load(); {
	case now-then < ownTurn:
		if n > 0 {
			crowd.turns.Store(n - 1) // a guess will do
		}
	case n < company:
		crowd.turns.Store(n + 1)
	case now-crowd.moved.Load() >= crowd.pause.Load() && crowd.moving.CompareAndSwap(false, true):
		move(now)
		crowd.moving.Store(false)
		return nanoseconds()
	}
	return now
}

// move takes the thread to another of the processors that it may run on.
func move(now int64) {
	pause := 2 * crowd.pause.Load()
	if now-crowd.moved.Load() > settled+pause {
		pause = 0
	}
	crowd.pause.Store(min(max(pause, moveAgain), moveMost))
	crowd.moved.Store(now)
	crowd.turns.Store(0)
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

var epoch = time.Now()

func nanoseconds() int64 { return int64(time.Since(epoch)) }
