package main

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

type machine struct {
	date                         time.Time
	cpu, kernel, load, mtu, tree string
}

func describeMachine() machine {
	m := machine{
		date: time.Now().UTC(), cpu: figures.CPU(), kernel: figures.Kernel(), load: figures.Load(), mtu: "unknown", tree: figures.Tree(),
	}
	if ifi, err := net.InterfaceByName("lo"); err == nil {
		m.mtu = fmt.Sprint(ifi.MTU)
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
			figures.Spread(r.figures[0]), r.c.unit, figures.Spread(r.figures[1]), r.c.unit, figures.Spread(speed), r.allocs[0], r.allocs[1])
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
