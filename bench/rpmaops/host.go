package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

// onHost measures between this process and another one.
func onHost(ctx context.Context, o *options) (err error) {
	started := time.Now().UTC()
	load, tree := figures.Load(), figures.Tree()
	addr, stop, err := startServer(ctx, o.device, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	e, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	found := make(map[string][]*sampleFigures)
	for range o.rounds {
		for _, c := range allCases() {
			if !o.pick.MatchString(c.name()) {
				continue
			}
			f, err := c.measure(ctx, e, o.sample)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			found[c.name()] = append(found[c.name()], f)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# package rpma on %s, %s\n\n", o.device, started.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "%s, %d cores, %s, %s; load before %s, after %s; tree %s. %d samples of about %v each, all cases in turns, two processes, over 127.0.0.1: medians (least to most).\n\n",
		figures.CPU(), runtime.NumCPU(), figures.Kernel(), runtime.Version(), load, figures.Load(), tree, o.rounds, o.sample)
	fmt.Fprintf(&b, "Depth 1 is Do, one after the other; depth %d is Post and Poll. A latency is from posting to completion, flush included.\n\n", maxDepth)
	fmt.Fprint(&b, "| operation | per second | MiB/s | p50 µs | p99 µs |\n|---|---|---|---|---|\n")
	for _, c := range allCases() {
		fs := found[c.name()]
		if len(fs) == 0 {
			continue
		}
		column := func(get func(*sampleFigures) float64) string {
			var v []float64
			for _, f := range fs {
				v = append(v, get(f))
			}
			return figures.Spread(v)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.name(), column(func(f *sampleFigures) float64 { return f.PerSecond }),
			column(func(f *sampleFigures) float64 { return f.PerSecond * float64(c.size) / (1 << 20) }),
			column(func(f *sampleFigures) float64 { return f.P50 }), column(func(f *sampleFigures) float64 { return f.P99 }))
	}
	return o.write(started, "-rpma", b.String())
}

// startServer starts this program as the other process, and returns where it listens, and what waits for its end.
func startServer(ctx context.Context, device, at string) (addr string, stop func() error, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-device", device, "-serve", at)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(errors.New("the server says nothing"), cmd.Wait())
	}
	return strings.TrimSpace(addr), cmd.Wait, nil
}
