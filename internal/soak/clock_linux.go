package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// clock sets the system's clock, and back in the end.
type clock struct {
	begin time.Time     // with the monotonic clock's reading
	real  time.Duration // CLOCK_REALTIME of begin
}

func newClock() *clock {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &ts) // there is such a clock
	return &clock{begin: time.Now(), real: time.Duration(ts.Nano())}
}

// jump sets the clock to a time up to a year from the real one, before or after it.
func (c *clock) jump(r *rand.Rand) bool {
	return c.set(time.Duration(r.Int64N(int64(2*365*24*time.Hour))) - 365*24*time.Hour)
}

func (c *clock) restore() { c.set(0) }

func (c *clock) set(off time.Duration) bool {
	ts := unix.NsecToTimespec(int64(c.real + time.Since(c.begin) + off))
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		fmt.Fprintln(os.Stderr, "soak: setting the clock:", err)
		return false
	}
	return true
}
