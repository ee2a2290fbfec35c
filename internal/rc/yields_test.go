package rc

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestYields: who spins lets others run often where they want to, and seldom where nobody does, but always
// before the runtime takes the processor away.
func TestYields(t *testing.T) {
	const us = int64(time.Microsecond)
	run := func(y *yields, from, for_, took int64) (n int, longest int64) {
		for at := from; at < from+for_; {
			y.begin(at) // spins of 40 us, one after the other
			for end := at + 40*us; at < end; at += 10 * us {
				if y.due(at) {
					longest = max(longest, at-y.last)
					y.yielded(at, at+took)
					at += took
					n++
				}
			}
			y.end = at
		}
		return n, longest
	}
	var y yields
	n, longest := run(&y, 1000*us, 1_000_000*us, 2*us)
	assert.Less(t, n, 400)
	assert.Less(t, longest, 10_000*us)
	start := y.last
	n, _ = run(&y, start, 100_000*us, 300*us)
	assert.Greater(t, n, 150, "others want the processor")

	y = yields{}
	y.begin(5000 * us)
	require.False(t, y.due(5010*us), "one who has just come lets nobody run first")
	require.True(t, y.due(5060*us))
	y.yielded(5060*us, 5061*us)
	y.end = 5080 * us
	y.begin(5100 * us)
	require.True(t, y.due(5170*us), "spins that follow each other are one")
}

// met is whether a spin met its condition.
func met(met bool, _, _ int64) bool { return met }

// oneProcessor has Go run one goroutine at a time, though connections do not know.
func oneProcessor(t *testing.T) {
	n := runtime.GOMAXPROCS(1)
	procs.Store(2) // or nobody spins
	t.Cleanup(func() {
		runtime.GOMAXPROCS(n)
		refreshProcs()
	})
}

// TestSpinLetsOthersRun: on a processor that is the only one, who spins does not keep others waiting until the runtime
// takes it away, which is after 10 ms, nor until a yield is due.
func TestSpinLetsOthersRun(t *testing.T) {
	c, _, h, _ := newRester(t, time.Hour)
	oneProcessor(t)
	var ran atomic.Bool
	h.a = NewSide(ran.Load)
	least := int64(time.Hour)
	for range 20 {
		ran.Store(false)
		go ran.Store(true)
		start := now()
		h.a.yields = yields{every: yieldMax, last: start, end: start} // nobody has wanted to
		require.True(t, met(c.spinOn(h.a, start, int64(10*time.Second))))
		least = min(least, now()-start)
	}
	require.Less(t, time.Duration(least), time.Millisecond)
}

// TestSpinLetsWokenRunFirst: where spins were met by goroutines that wait, which those who spin have woken mostly, these run before the first look. Where
// they are not, nobody is asked about them for long.
func TestSpinLetsWokenRunFirst(t *testing.T) {
	c, _, h, _ := newRester(t, time.Hour)
	oneProcessor(t)
	var ran atomic.Bool
	looks := 0
	h.a = NewSide(func() bool { looks++; return ran.Load() })
	first := 0
	for range 20 {
		ran.Store(false)
		go ran.Store(true)
		looks = 0
		asked.again.Store(-1 << 62)
		require.True(t, met(c.spinOn(h.a, now(), int64(10*time.Second))))
		if looks == 1 {
			first++
		}
	}
	require.GreaterOrEqual(t, first, 10)
	ran.Store(true)
	for range 100 * eagerMost { // what the runtime does by itself is not in the way for long
		c.spinOn(h.a, now(), int64(time.Second))
	}
	require.Zero(t, h.a.yields.eager)
}

// TestSpinMakesWay: where yields do not help those who wait, since they wait for another processor that does not get to them, a spin ends.
func TestSpinMakesWay(t *testing.T) {
	c, _, _, _ := newRester(t, time.Hour)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	procs.Store(2)
	defer refreshProcs()
	var stop, ran atomic.Bool
	computed := make(chan struct{})
	go func() {
		defer close(computed)
		for !stop.Load() {
			ran.Store(false)
			go ran.Store(true) // behind this one
			for !ran.Load() && !stop.Load() {
			}
		}
	}()
	defer func() { stop.Store(true); <-computed }()
	start := now()
	require.False(t, met(c.spinOn(NewSide(func() bool { return false }), start, int64(10*time.Second))))
	require.Less(t, time.Duration(now()-start), 5*time.Second)
}

// TestAskWanted: the runtime tells who can run and has to wait.
func TestAskWanted(t *testing.T) {
	oneProcessor(t)
	ask := func() answer {
		asked.again.Store(-1 << 62)
		return askWanted(now(), false)
	}
	require.Eventually(t, func() bool { return ask() == unwanted }, 10*time.Second, time.Millisecond, "whatever the runtime does by itself ends")
	ran := make(chan struct{})
	go close(ran)
	got := ask()
	<-ran
	require.Equal(t, wanted, got)
	ask()
	require.Equal(t, unknown, askWanted(asked.again.Load()-1, false), "asking takes a small part of the time")
	require.NotEqual(t, unknown, askWanted(asked.again.Load()-1, true), "it does where it shall")
	require.LessOrEqual(t, asked.again.Load()-now(), askMost)
}
