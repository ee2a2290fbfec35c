package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

// A contest is one of our cases beside programs of perftest that do the same, or nearly.
type contest struct {
	c        benchCase
	unit     string
	more     bool // more is better
	perftest []perftest
}

type perftest struct {
	name string // as it is reported
	args []string
	read func(fields []string) (string, float64) // column, factor
}

func column(i int, factor float64) func([]string) (string, float64) {
	return func(f []string) (string, float64) { return f[i], factor }
}

// The columns of perftest: bytes, iterations, and of latencies least, most, typical, average; of bandwidth peak, average, and millions of
// messages a second.
func contests() []contest {
	return []contest{
		{benchCase{"Write", 8, 1}, "µs", false, []perftest{
			{"ib_write_bw, depth 1", []string{"ib_write_bw", "-t", "1", "-n", "2000"}, column(4, -1)},
			{"ib_write_lat, there and back", []string{"ib_write_lat", "-n", "2000"}, column(4, 2)},
		}},
		{benchCase{"Read", 8, 1}, "µs", false, []perftest{
			{"ib_read_lat", []string{"ib_read_lat", "-n", "2000"}, column(4, 1)},
		}},
		{benchCase{"Write", maxSize, maxDepth}, "MiB/s", true, []perftest{
			{"ib_write_bw, depth 32", []string{"ib_write_bw", "-t", "32", "-n", "1000"}, column(3, 1)},
			{"ib_write_bw, depth 32, each completes", []string{"ib_write_bw", "-t", "32", "-Q", "1", "-n", "1000"}, column(3, 1)},
		}},
		{benchCase{"Read", maxSize, maxDepth}, "MiB/s", true, []perftest{
			{"ib_read_bw, depth 32", []string{"ib_read_bw", "-t", "32", "-n", "1000"}, column(3, 1)},
			{"ib_read_bw, depth 32, each completes", []string{"ib_read_bw", "-t", "32", "-Q", "1", "-n", "1000"}, column(3, 1)},
		}},
	}
}

const (
	guestShare = "/run/share"
	guestAddr  = "10.9.0.1"
	resultFile = "result.json"
	oursName   = "rpma"
)

// outside boots a guest with this program in it, and reports what it found.
func outside(ctx context.Context, o *options) error {
	started := time.Now().UTC()
	load, tree := figures.Load(), figures.Tree()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	share, err := os.MkdirTemp("", "bench-rpma-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(share)
	program, err := os.ReadFile(exe)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(share, "bench"), program, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "./vm/cmd/vm", "-rxe", "-mtu", "4200", "-share", share, "--",
		guestShare+"/bench", "-inside", guestAddr, "-rounds", strconv.Itoa(o.rounds), "-sample", o.sample.String(), "-run", o.run)
	cmd.Dir = filepath.Join("..", "test")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measuring in the guest (from ../test): %w", err)
	}
	b, err := os.ReadFile(filepath.Join(share, resultFile))
	if err != nil {
		return err
	}
	var r guestResult
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	var t strings.Builder
	fmt.Fprintf(&t, "# package rpma on Soft-RoCE beside perftest, %s\n\n", started.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&t, "A guest of %d emulated processors (QEMU) with %s and rxe0, MTU 4200; %s. Host: %s, %d cores, %s, load before %s, after %s; tree %s.\n",
		r.CPUs, r.Kernel, r.Go, figures.CPU(), runtime.NumCPU(), figures.Kernel(), load, figures.Load(), tree)
	fmt.Fprintf(&t, `%d rounds in one run, all programs in turns, two processes each, over one device's own loopback: medians (least to most). Ratio: rpma's figure by the program's,
of each round. Processors are emulated, so ratios count and figures do not. Latencies are medians of a run; that of ib_write_lat is doubled, since it
tells half of a message there and one back, where a write and its acknowledgement are one there and one back.

| case | program | figure | ratio |
|---|---|---|---|
`, o.rounds)
	for _, x := range r.Rows {
		ratio := ""
		if x.Program != oursName {
			ours := r.of(x.Case, oursName)
			v := make([]float64, len(x.Figures))
			for i := range v {
				v[i] = ours[i] / x.Figures[i]
			}
			ratio = figures.Spread(v)
		}
		fmt.Fprintf(&t, "| %s | %s | %s %s | %s |\n", x.Case, x.Program, figures.Spread(x.Figures), x.Unit, ratio)
	}
	return o.write(started, "-rpma-vm", t.String())
}

// guestResult is what the guest tells.
type guestResult struct {
	Kernel, Go string
	CPUs       int
	Rows       []guestRow
}

type guestRow struct {
	Case, Program, Unit string
	Figures             []float64 // by round
}

func (r *guestResult) of(name, program string) []float64 {
	i := slices.IndexFunc(r.Rows, func(x guestRow) bool { return x.Case == name && x.Program == program })
	return r.Rows[i].Figures
}

// measureInside is the guest's part.
func measureInside(ctx context.Context, o *options, addr string) error {
	r := guestResult{Kernel: figures.Kernel(), Go: runtime.Version(), CPUs: runtime.NumCPU()}
	port := 21000
	for _, x := range contests() {
		if !o.pick.MatchString(x.c.name()) {
			continue
		}
		rows := []guestRow{{Case: x.c.name(), Program: oursName, Unit: x.unit}}
		for _, p := range x.perftest {
			rows = append(rows, guestRow{Case: x.c.name(), Program: p.name, Unit: x.unit})
		}
		for round := range o.rounds + 1 {
			for k := range rows {
				i := (k + round) % len(rows)
				var v float64
				var err error
				for range 3 { // perftest's client comes too early now and then
					port++
					if i == 0 {
						v, err = x.ours(ctx, o, addr, port)
					} else {
						v, err = x.perftest[i-1].run(ctx, x.c.size, addr, port)
					}
					if err == nil || ctx.Err() != nil {
						break
					}
				}
				if err != nil {
					return fmt.Errorf("%s, %s: %w", x.c.name(), rows[i].Program, err)
				}
				if round == 0 {
					continue // brings the programs into memory
				}
				fmt.Printf("%s, %s: %s %s\n", x.c.name(), rows[i].Program, figures.Figure(v), x.unit)
				rows[i].Figures = append(rows[i].Figures, v)
			}
		}
		r.Rows = append(r.Rows, rows...)
	}
	b, err := json.Marshal(&r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(guestShare, resultFile), b, 0o644)
}

func (x *contest) ours(ctx context.Context, o *options, addr string, port int) (float64, error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	at, stop, err := startServer(ctx, "rdmacore", addr+":"+strconv.Itoa(port))
	if err != nil {
		return 0, err
	}
	client := exec.CommandContext(ctx, exe, "-device", "rdmacore", "-dial", at, "-case", x.c.name(), "-sample", o.sample.String())
	client.Stderr = os.Stderr
	out, err := client.Output()
	if err = errors.Join(err, stop()); err != nil {
		return 0, err
	}
	var f sampleFigures
	if err := json.Unmarshal(out, &f); err != nil {
		return 0, err
	}
	if x.more {
		return f.PerSecond * float64(x.c.size) / (1 << 20), nil
	}
	return f.P50, nil
}

func (p *perftest) run(ctx context.Context, size int, addr string, port int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args := append(slices.Clone(p.args[1:]), "-R", "-F", "-p", strconv.Itoa(port), "-s", strconv.Itoa(size))
	server := exec.CommandContext(ctx, p.args[0], args...)
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		cancel()
		_ = server.Wait() // what the client says counts
	}()
	time.Sleep(700 * time.Millisecond) // until it listens
	var out bytes.Buffer
	client := exec.CommandContext(ctx, p.args[0], append(args, addr)...)
	client.Stdout, client.Stderr = &out, &out
	if err := client.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) < 5 || f[0] != strconv.Itoa(size) {
			continue
		}
		text, factor := p.read(f)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || v == 0 {
			return 0, fmt.Errorf("%s: %w", strings.TrimSpace(line), errors.Join(err, errors.New("no figure")))
		}
		if factor < 0 { // millions a second
			return 1 / v, nil
		}
		return v * factor, nil
	}
	return 0, fmt.Errorf("no line of figures in %q", out.String())
}
