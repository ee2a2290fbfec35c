package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

type machine struct {
	date                                  time.Time
	cpu, kernel, load, mtu, tree, sysctls string
}

func describeMachine() machine {
	m := machine{
		date: time.Now().UTC(), cpu: figures.CPU(), kernel: figures.Kernel(), load: figures.Load(), mtu: "unknown", tree: figures.Tree(),
		sysctls: sysctls(),
	}
	if ifi, err := net.InterfaceByName("lo"); err == nil {
		m.mtu = fmt.Sprint(ifi.MTU)
	}
	return m
}

// write writes tables and plots, and returns the name of the file with the tables.
func (r *results) write(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	base := r.machine.date.Format("2006-01-02-150405")
	text := r.report()
	ps, err := r.plots()
	if err != nil {
		return "", err
	}
	for _, p := range ps {
		name := base + "-" + p.name + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), p.svg, 0o644); err != nil {
			return "", err
		}
		text += fmt.Sprintf("\n![%s](%s)\n", p.title, name)
	}
	name := filepath.Join(dir, base+".md")
	return name, os.WriteFile(name, []byte(text), 0o644)
}

// report is the tables in Markdown.
func (r *results) report() string {
	var b strings.Builder
	m := r.machine
	fmt.Fprintf(&b, "# rdmanet (%s) beside TCP, Unix sockets and QUIC, %s\n\n", r.o.device, m.date.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s, %d cores, GOMAXPROCS %d, %s, %s %s/%s, MTU of lo %s, load before %s, after %s; tree %s; %.0f s.\n", m.cpu, runtime.NumCPU(),
		runtime.GOMAXPROCS(0), m.kernel, runtime.Version(), runtime.GOOS, runtime.GOARCH, m.mtu, m.load, figures.Load(), m.tree, r.took.Seconds())
	fmt.Fprintf(&b, "%s.\n\n", m.sysctls)
	fmt.Fprintf(&b, "%d rounds in one run, all sides in turns, a sample about %v, all on one host: median (least to most).\n", r.o.rounds, r.o.sample)
	fmt.Fprintln(&b, "Speed: the median over rounds of how many times as fast a side is as the first one, TCP by itself; below 1 it is slower. CPU: processor time of all processes, user and system.")
	if r.path != "" {
		fmt.Fprintf(&b, "RDMA was carried by %s. RDMA waits as it seems good by itself, or spins for %v at least before it parks, or parks at once.\n", r.path, spinTime)
	}
	if r.has(sideQUIC) {
		fmt.Fprintln(&b, "Shared memory is rdmanet too, with Device \"shm\".")
		if r.has(sideUCX) {
			fmt.Fprintln(&b, "UCX is ucx_perftest (tag_lat, stream_bw) over shared memory, in C, on message buffers and not on a byte stream with a copy for each end; it always spins, each process bound to a processor of its own.")
		} else {
			fmt.Fprintln(&b, "UCX is left out: there is no ucx_perftest, which is in Debian's ucx-utils.")
		}
		fmt.Fprintln(&b, "QUIC is quic-go, a stream on a connection of its own; it encrypts (TLS 1.3), which it cannot be without. TCP and RDMA do not.")
	}
	if len(r.rows) > 0 {
		r.reportCases(&b)
	}
	if len(r.datagrams) > 0 {
		r.reportDatagrams(&b)
	}
	for _, kind := range gridKinds {
		r.reportGrid(&b, kind)
	}
	r.reportCollapse(&b)
	if len(r.idle) > 0 {
		r.reportIdle(&b)
	}
	return b.String()
}

func (r *results) has(side string) bool {
	return slices.ContainsFunc(r.rows, func(x row) bool {
		return slices.ContainsFunc(x.sides, func(f sideFigures) bool { return f.side == side })
	})
}

func (r *results) reportCases(b *strings.Builder) {
	fmt.Fprintln(b, "\n## Round trips, streams, HTTP")
	fmt.Fprintf(b, "\n\"Machine busy\": %d other processes compute all the time. Allocations: per operation, in the client's process, which with one process is also the server's.\n",
		runtime.NumCPU())
	fmt.Fprint(b, "\n| case | processes | side | figure | speed | CPU | allocations |\n|---|---|---|---|---|---|---|\n")
	for i := range r.rows {
		x := &r.rows[i]
		for k := range x.sides {
			s := &x.sides[k]
			speed := ""
			if k > 0 {
				speed = figures.Spread(x.speeds(k))
			}
			fmt.Fprintf(b, "| %s | %d | %s | %s %s | %s | %s | %.1f |\n", x.c.name, x.processes, s.side,
				figures.Spread(s.figures), x.c.unit, speed, x.c.cpu(median(s.cpu)), s.allocs)
		}
	}
}

// speeds are how many times as fast the side k is as the first, by round.
func (x *row) speeds(k int) []float64 {
	return ratios(x.sides[k].figures, x.sides[0].figures, x.c.faster)
}

func ratios(a, b []float64, faster func(a, b float64) float64) []float64 {
	v := make([]float64, min(len(a), len(b)))
	for i := range v {
		v[i] = faster(a[i], b[i])
	}
	return v
}

func median(v []float64) float64 { return figures.Median(v) }

// cpu prints the processor time of an operation, or of a GB.
func (c *benchCase) cpu(perOp float64) string {
	if c.bytes > 0 {
		return figures.Figure(perOp/float64(c.bytes)*1e9) + " s/GB"
	}
	return figures.Figure(perOp*1e6) + " µs"
}

func (r *results) reportGrid(b *strings.Builder, kind *gridKind) {
	first := slices.IndexFunc(r.grid, func(x gridRow) bool { return x.cell.kind == kind })
	if first < 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s over a grid\n\n%s\n", kind.title, kind.about)
	fmt.Fprint(b, "\n| connections | outstanding | body | side | requests/s | speed | p50 | p99 | p99.9 | CPU µs |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range r.grid {
		x := &r.grid[i]
		if x.cell.kind != kind {
			continue
		}
		for k := range x.sides {
			s := &x.sides[k]
			speed := ""
			if k > 0 {
				speed = figures.Spread(ratios(s.requests, x.sides[0].requests, moreIsFaster))
				if x.collapsed(k) {
					speed += " **collapsed**"
				}
			}
			fmt.Fprintf(b, "| %d | %d | %s | %s | %s | %s | %s | %s | %s | %s |\n", x.cell.conns, x.cell.depth, sizeName(x.cell.body), s.side,
				figures.Spread(s.requests), speed, latency(s.latency.percentile(50)), latency(s.latency.percentile(99)),
				latency(s.latency.percentile(99.9)), figures.Figure(median(s.cpu)*1e6))
		}
	}
}

// reportCollapse says where a side has come to a halt, and what is to be said of each side over all cells.
func (r *results) reportCollapse(b *strings.Builder) {
	if len(r.grid) == 0 {
		return
	}
	var fallen []string
	for i := range r.grid {
		x := &r.grid[i]
		for k := 1; k < len(x.sides); k++ {
			if x.collapsed(k) {
				fallen = append(fallen, x.cell.name()+" on "+x.sides[k].side)
			}
		}
	}
	if len(fallen) == 0 {
		fmt.Fprintln(b, "\nNo cell has collapsed.")
	} else {
		fmt.Fprintf(b, "\nCollapsed: %s.\n", strings.Join(fallen, "; "))
	}
	r.reportSlower(b)
}

// reportSlower names, for each side, the cells in which it is slower than the first one.
func (r *results) reportSlower(b *strings.Builder) {
	for _, side := range gridSides[1:] {
		n, slower := 0, []string(nil)
		for i := range r.grid {
			x := &r.grid[i]
			k := x.side(side)
			if k < 1 {
				continue
			}
			n++
			if v := x.speed(k); v < 1 {
				slower = append(slower, fmt.Sprintf("%s (%s)", x.cell.name(), figures.Figure(v)))
			}
		}
		if n > 0 && len(slower) == 0 {
			fmt.Fprintf(b, "\n%s: slower than the first side in none of %d cells.\n", side, n)
		} else if n > 0 {
			fmt.Fprintf(b, "\n%s: slower than the first side in %d of %d cells: %s.\n", side, len(slower), n, strings.Join(slower, "; "))
		}
	}
}

func latency(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return figures.Figure(float64(d.Nanoseconds())/1e3) + " µs"
	case d < time.Second:
		return figures.Figure(float64(d.Microseconds())/1e3) + " ms"
	}
	return figures.Figure(d.Seconds()) + " s"
}

func (r *results) reportIdle(b *strings.Builder) {
	fmt.Fprintln(b, "\n## Connections that do nothing")
	fmt.Fprintf(b, `
Two processes. On each connection a goroutine of the server's waits in Read; at the client's end there is none. Memory is what each connection beyond
the first hundredth adds to what is resident of the process, page tables included, after one round trip of %d B and a garbage collection;
Go's objects and stacks are parts of it. By default each end asks the other once in 15 s whether it lives; the kernel does so for TCP. What the kernel has for TCP's sockets is not in it.

| side | connections | connect | echo on each | end | KiB a connection | of it objects | stacks | goroutines | threads | descriptors | mappings | CPU while idle |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
`, pingSize)
	for _, x := range r.idle {
		for end, name := range []string{"client", "server"} {
			kib := func(of func(*usage) int64) string { return figures.Figure(x.each(end, of) / 1024) }
			from, to, late := &x.first[end], &x.full[end], &x.late[end]
			fmt.Fprintf(b, "| %s | %d | %.0f/s | %.0f/s | %s | %s | %s | %s | %d to %d | %d to %d | %d to %d | %d to %d | %v in %v |\n", x.side, x.conns,
				float64(x.conns-x.few)/x.dialed.Seconds(), float64(x.conns)/x.echoed.Seconds(), name,
				kib((*usage).memory), kib(func(u *usage) int64 { return u.Heap }), kib(func(u *usage) int64 { return u.Stacks }),
				from.Goroutines, to.Goroutines, from.Threads, late.Threads, from.Descriptors, late.Descriptors, from.Mappings, late.Mappings,
				x.idleCPU(end).Round(time.Microsecond), x.settled)
		}
	}
}
