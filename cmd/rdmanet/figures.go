package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// distribution is how long things took, in µs.
type distribution struct {
	Min    float64 `json:"min"`
	Median float64 `json:"p50"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	P999   float64 `json:"p999"`
	Max    float64 `json:"max"`
}

// distributionOf sorts ds.
func distributionOf(ds []time.Duration) (d distribution) {
	if len(ds) == 0 {
		return d
	}
	slices.Sort(ds)
	return distribution{
		Min: micros(ds[0]), Median: micros(quantile(ds, 0.5)), P90: micros(quantile(ds, 0.9)), P99: micros(quantile(ds, 0.99)),
		P999: micros(quantile(ds, 0.999)), Max: micros(ds[len(ds)-1]),
	}
}

// quantile is the least of the sorted ds that a share q of them does not exceed.
func quantile(ds []time.Duration, q float64) time.Duration {
	i := int(q * float64(len(ds)))
	if float64(i) == q*float64(len(ds)) {
		i--
	}
	return ds[min(max(i, 0), len(ds)-1)]
}

func (d distribution) String() string {
	return fmt.Sprintf("min %.1f, median %.1f, 90%% %.1f, 99%% %.1f, 99.9%% %.1f, max %.1f", d.Min, d.Median, d.P90, d.P99, d.P999, d.Max)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// short is a duration with three digits or so.
func short(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// progress is a line at the end of a terminal that changes. Where there is no terminal it is silent.
type progress struct {
	w     io.Writer
	last  time.Time
	shown bool
}

const progressEvery = 200 * time.Millisecond

func newProgress(w io.Writer, wanted bool) *progress {
	if !wanted || !atTerminal(w) {
		w = nil
	}
	return &progress{w: w, last: time.Now()}
}

func (p *progress) show(format string, args ...any) {
	if p.w == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.w, "\r"+format+"\x1b[K", args...)
}

// clear takes the line away.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
