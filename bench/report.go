package main

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

type machine struct {
	date                         time.Time
	cpu, kernel, load, mtu, tree string
}

func describeMachine() machine {
	m := machine{date: time.Now().UTC(), cpu: "unknown CPU", kernel: runtime.GOOS, load: "unknown", mtu: "unknown", tree: "unknown"}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			m.cpu = strings.TrimSpace(value)
			break
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.kernel = "Linux " + strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load = strings.Fields(string(b))[0]
	}
	if ifi, err := net.InterfaceByName("lo"); err == nil {
		m.mtu = fmt.Sprint(ifi.MTU)
	}
	if b, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.tree = strings.TrimSpace(string(b))
	}
	return m
}

// report is the table in Markdown.
func report(m machine, o *options, rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# rdmanet (%s) beside TCP, %s\n\n", o.device, m.date.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s, %d cores, GOMAXPROCS %d, %s, %s %s/%s, MTU of lo %s, load before %s; tree %s.\n\n", m.cpu, runtime.NumCPU(),
		runtime.GOMAXPROCS(0), m.kernel, runtime.Version(), runtime.GOOS, runtime.GOARCH, m.mtu, m.load, m.tree)
	fmt.Fprintf(&b, "%d rounds in one run, both sides in turns, a sample about %v, all over 127.0.0.1: median (least to most).\n", o.rounds, o.sample)
	fmt.Fprintln(&b, "Speed: the median over rounds of how many times as fast RDMA is as TCP; below 1 it is slower.")
	fmt.Fprintln(&b, "Allocations: per operation, in the client's process, which with one process is also the server's.")
	fmt.Fprint(&b, "\n| case | processes | TCP | RDMA | speed | allocations TCP, RDMA |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		speed := make([]float64, len(r.figures[0]))
		for i := range speed {
			speed[i] = r.c.faster(r.figures[1][i], r.figures[0][i])
		}
		fmt.Fprintf(&b, "| %s | %d | %s %s | %s %s | %s | %.1f, %.1f |\n", r.c.name, r.processes,
			spread(r.figures[0]), r.c.unit, spread(r.figures[1]), r.c.unit, spread(speed), r.allocs[0], r.allocs[1])
	}
	fmt.Fprintf(&b, "\nRDMA was carried by: %s.\n", strings.Join(paths(rows), "; "))
	return b.String()
}

func paths(rows []row) []string {
	var ps []string
	for _, r := range rows {
		if r.path != "" && !slices.Contains(ps, r.path) {
			ps = append(ps, r.path)
		}
	}
	return ps
}

func spread(v []float64) string {
	return fmt.Sprintf("%s (%s to %s)", figure(median(v)), figure(slices.Min(v)), figure(slices.Max(v)))
}

// figure prints three significant digits, without an exponent.
func figure(x float64) string {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return fmt.Sprint(x)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(x)))))
	return fmt.Sprintf("%.*f", min(decimals, 6), x)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
