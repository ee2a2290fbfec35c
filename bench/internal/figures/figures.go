// Package figures is how the tables of this module describe samples and the machine they come from.
package figures

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Spread is the median of v, and its least and most.
func Spread(v []float64) string {
	return fmt.Sprintf("%s (%s to %s)", Figure(Median(v)), Figure(slices.Min(v)), Figure(slices.Max(v)))
}

// Figure prints three significant digits, without an exponent.
func Figure(x float64) string {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return fmt.Sprint(x)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(x)))))
	return fmt.Sprintf("%.*f", min(decimals, 6), x)
}

// Median is the middle of v, which is not empty.
func Median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// CPU is the model of the processor.
func CPU() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// Kernel is the kernel that runs.
func Kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "an unknown kernel"
	}
	return "Linux " + strings.TrimSpace(string(b))
}

// Load is the average of a minute.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(b))[0]
}

// Tree is the commit that is measured.
func Tree() string {
	b, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
