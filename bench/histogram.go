package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in steps of about 3 %. Several goroutines may add.
type histogram struct {
	counts [64 * steps]atomic.Uint32
	total  atomic.Uint64
}

// steps is how many a doubling has.
const steps = 32

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 1))
	if n < steps {
		return int(n)
	}
	shift := bits.Len64(n) - 6 // leaves steps to 2*steps - 1
	return (shift+1)*steps + int(n>>shift) - steps
}

// bucketEnd is the longest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < 2*steps {
		return time.Duration(i)
	}
	shift := i/steps - 1
	return time.Duration((uint64(i%steps+steps)+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)].Add(1)
	h.total.Add(1)
}

func (h *histogram) merge(other *histogram) {
	for i := range other.counts {
		h.counts[i].Add(other.counts[i].Load())
	}
	h.total.Add(other.total.Load())
}

// percentile is what p percent are not above; 0 if there are none.
func (h *histogram) percentile(p float64) time.Duration {
	total := h.total.Load()
	if total == 0 {
		return 0
	}
	want := min(max(1, uint64(p/100*float64(total)+0.5)), total)
	var seen uint64
	for i := range h.counts {
		if seen += uint64(h.counts[i].Load()); seen >= want {
			return bucketEnd(i)
		}
	}
	return 0 // not reached: the counts are total
}
