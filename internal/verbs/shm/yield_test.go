//go:build linux

package shm

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMove: a thread that goes to another processor may run wherever it might before.
func TestMove(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	defer func() { require.NoError(t, unix.SchedSetaffinity(0, &before)) }()
	move(nanoseconds())
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, before, after)

	// One that is bound to a processor stays there.
	n := processor()
	one.Set(n)
	require.NoError(t, unix.SchedSetaffinity(0, &one))
	move(nanoseconds())
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, one, after)

	// One that may be on two of them is on the other afterwards, if nothing else moves it.
	if before.Count() < 2 {
		return
	}
	moved := false
	for range 100 {
		require.NoError(t, unix.SchedSetaffinity(0, &before))
		from := processor()
		move(nanoseconds())
		moved = moved || processor() != from
	}
	require.True(t, moved)
}

// TestMovePauses: moves that do not help become rare, and one that has helped for long makes the next one welcome.
func TestMovePauses(t *testing.T) {
	now := nanoseconds() + int64(3600e9)
	crowd.pause.Store(0)
	crowd.moved.Store(0)
	defer crowd.moved.Store(0)
	defer crowd.pause.Store(0)
	move(now)
	require.Equal(t, moveAgain, crowd.pause.Load())
	for want := 2 * moveAgain; want < moveMost; want *= 2 {
		now += crowd.pause.Load()
		move(now)
		require.Equal(t, want, crowd.pause.Load())
	}
	for range 3 {
		now += crowd.pause.Load()
		move(now)
	}
	require.Equal(t, moveMost, crowd.pause.Load())
	now += settled + 3*moveMost
	move(now)
	require.Equal(t, moveAgain, crowd.pause.Load())
}

// TestCompanionsPart: two ends that have the same processor of two, and take turns on it, do not follow each other to the other one for long.
func TestCompanionsPart(t *testing.T) {
	const turn, trials = int64(100 * time.Microsecond), 400
	slow, longest := 0, int64(0)
	for range trials {
		var ends [2]meetings
		var at [2]int // processors
		now := int64(time.Hour)
		start := now
		// Who runs does a turn's work and yields: the other's yield is over then. Whoever goes leaves the processor at once, which ends the
		// other's yield, too.
		for i := 0; at[0] == at[1] && now-start < int64(5*time.Second); i = 1 - i {
			now += turn
			if !ends[i].goes(now, turn) {
				continue
			}
			ends[i].went(now)
			at[i] = 1 - at[i]
			now += int64(5 * time.Microsecond)
			if other := 1 - i; ends[other].goes(now, turn) {
				ends[other].went(now)
				at[other] = 1 - at[other]
			}
		}
		longest = max(longest, now-start)
		if now-start > int64(50*time.Millisecond) {
			slow++
		}
	}
	require.Less(t, longest, int64(5*time.Second))
	require.Less(t, slow, trials/20)
}
