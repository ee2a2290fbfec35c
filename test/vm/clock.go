package vm

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// clock returns what the kernel's command line says about time.
//
// A kernel that measures the rate of its time stamp counter on a busy host errs by factors: its seconds were seen
// to pass in a quarter of one, with all its timeouts. So it is told the rate, which is that of the host.
var clock = sync.OnceValue(func() []string {
	const span = 100 * time.Millisecond
	t0, c0 := stamp()
	time.Sleep(span)
	t1, c1 := stamp()
	khz := float64(c1-c0) / float64(t1.Sub(t0)) * 1e6
	if khz < 100_000 || khz > 20_000_000 || math.IsNaN(khz) {
		return []string{"clocksource=hpet", "tsc=unstable"} // slow to read, but right
	}
	return []string{"tsc=reliable", fmt.Sprintf("tsc_early_khz=%.0f", khz), "no_timer_check"}
})

// stamp reads both clocks at once, as nearly as several attempts allow.
func stamp() (t time.Time, counter uint64) {
	best := time.Duration(math.MaxInt64)
	for range 100 {
		before := time.Now()
		c := rdtsc()
		if d := time.Since(before); d < best {
			best, t, counter = d, before.Add(d/2), c
		}
	}
	return t, counter
}
