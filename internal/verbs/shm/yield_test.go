//go:build linux

package shm

import (
	"runtime"
	"testing"

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
