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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

// result is what the guest tells.
type result struct {
	Kernel, Go string
	CPUs       int
	Rows       []row
}

// row is a program's figures in one shape, by round.
type row struct {
	Shape, Program string
	Figures        []float64

	// CPU microseconds per transfer beyond what a run of few transfers takes: of both processes, and of
	// the whole guest, whose kernel does the device's work.
	Own, Guest []float64

	Peers []peerResult // rdmanet's: client, server, client, ...
}

// sample is one run of both programs.
type sample struct {
	us         float64
	own, guest time.Duration
	outs       [2]string // of client and server
}

// a contestant is a program in a shape.
type contestant struct {
	p    *program
	s    shape
	few  shape // the fewest transfers that make sense
	idle sample
	row  row
}

func newContestant(p *program, s shape, scale float64) contestant {
	c := contestant{p: p, s: s, few: s, row: row{Shape: s.name, Program: p.name}}
	c.s.iters = max(1, int(float64(s.iters)*scale))
	c.few.count, c.few.iters = 1, 5 // perftest's least
	if s.stream {
		c.few.iters = 3
	}
	return c
}

// measure is the guest's part.
func measure(ctx context.Context, o *options, addr string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	pick := regexp.MustCompile(o.run)
	r := result{Kernel: figures.Kernel(), Go: runtime.Version(), CPUs: runtime.NumCPU()}
	if err := makeSoftNetns(ctx); err != nil {
		return err
	}
	all := programs(exe)
	m := &measurement{addr: addr, port: 20000}
	for _, s := range shapes {
		var cs []contestant
		for i := range all {
			p := &all[i]
			if !p.does(&s) || !pick.MatchString(s.name+", "+p.name) {
				continue
			}
			cs = append(cs, newContestant(p, s, o.scale))
		}
		if err := m.compare(ctx, o, cs); err != nil {
			return err
		}
		for i := range cs {
			r.Rows = append(r.Rows, cs[i].row)
		}
	}
	b, err := json.Marshal(&r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(guestShare, resultFile), b, 0o644)
}

type measurement struct {
	addr string
	port int
}

// compare takes the samples of all contestants in turns, in another order each round.
func (m *measurement) compare(ctx context.Context, o *options, cs []contestant) error {
	for range 2 { // the first brings the programs into memory
		for i := range cs {
			idle, err := m.sample(ctx, &cs[i], &cs[i].few, "")
			if err != nil {
				return err
			}
			cs[i].idle = idle
		}
	}
	for round := range o.rounds {
		order := make([]int, len(cs))
		for i := range order {
			order[i] = (i + round) % len(cs)
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			c := &cs[i]
			profile := ""
			if o.profile != "" && round == o.rounds-1 && strings.HasPrefix(c.p.name, rdmanetName) {
				profile = filepath.Join(o.profile, strings.NewReplacer(" ", "-", ",", "").Replace(c.s.name+" "+c.p.name))
			}
			x, err := m.sample(ctx, c, &c.s, profile)
			if err != nil {
				return err
			}
			if err := c.add(&x); err != nil {
				return err
			}
			fmt.Printf("%s, %s, round %d: %s %s\n", c.s.name, c.p.name, round+1, figures.Figure(c.s.figure(x.us)), c.s.unit())
		}
	}
	return nil
}

func (c *contestant) add(x *sample) error {
	n := float64(max(1, c.p.done(&c.s)-c.p.done(&c.few)))
	c.row.Figures = append(c.row.Figures, c.s.figure(x.us))
	c.row.Own = append(c.row.Own, max(0, float64((x.own-c.idle.own).Microseconds())/n))
	c.row.Guest = append(c.row.Guest, max(0, float64((x.guest-c.idle.guest).Microseconds())/n))
	if !strings.HasPrefix(c.p.name, rdmanetName) {
		return nil
	}
	for _, out := range x.outs {
		var r peerResult
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			return err
		}
		c.row.Peers = append(c.row.Peers, r)
	}
	return nil
}

// sample runs both programs once. That a client is refused although the server listens, and perftest's
// then crashes, is seen on a busy host: so it is tried again.
func (m *measurement) sample(ctx context.Context, c *contestant, s *shape, profile string) (x sample, err error) {
	for range attempts {
		if x, err = m.try(ctx, c, s, profile); err == nil || ctx.Err() != nil {
			return x, err
		}
		fmt.Println("tried again:", err)
	}
	return x, err
}

const attempts = 3

func (m *measurement) try(ctx context.Context, c *contestant, s *shape, profile string) (x sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerLimit)
	defer cancel()
	m.port++
	port := m.port
	var more []string // a server's arguments
	listens := func(ctx context.Context) error { return kernelListens(ctx, port) }
	if c.p.start != nil {
		more, listens = c.p.start()
	}
	var outs [2]bytes.Buffer
	start := func(client bool) (*exec.Cmd, error) {
		args := c.p.args(s, m.addr, port, client)
		if !client {
			args = append(args, more...)
		}
		if profile != "" {
			args = append(args, "-cpuprofile", profile+map[bool]string{true: "-client", false: "-server"}[client]+".pprof")
		}
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &outs[0], os.Stderr
		if !client {
			cmd.Stdout = &outs[1]
		}
		cmd.WaitDelay = time.Second
		return cmd, cmd.Start()
	}
	fail := func(what string, err error) (sample, error) {
		return x, fmt.Errorf("%s, %s: %s: %w\nclient: %s\nserver: %s", s.name, c.p.name, what, err, outs[0].String(), outs[1].String())
	}
	busy := busyTime()
	server, err := start(false)
	if err != nil {
		return fail("server", err)
	}
	defer func() {
		if server.ProcessState == nil {
			cancel()
			_ = server.Wait()
		}
	}()
	if err := listens(ctx); err != nil {
		return fail("server", err)
	}
	client, err := start(true)
	if err != nil {
		return fail("client", err)
	}
	if err := client.Wait(); err != nil {
		return fail("client", err)
	}
	if err := server.Wait(); err != nil {
		return fail("server", err)
	}
	for _, p := range []*os.ProcessState{client.ProcessState, server.ProcessState} {
		x.own += p.UserTime() + p.SystemTime()
	}
	x.guest = busyTime() - busy
	x.outs = [2]string{outs[0].String(), outs[1].String()}
	if x.us, err = c.p.read(s, x.outs[0]); err != nil {
		return fail("client", err)
	}
	return x, nil
}

// settle is for what a server does once it is seen to listen.
const settle = 200 * time.Millisecond

// kernelListens waits until somebody listens on an RDMA port, as the kernel's connection manager has it.
func kernelListens(ctx context.Context, port int) error {
	return until(ctx, func() (bool, error) {
		out, err := exec.CommandContext(ctx, "rdma", "resource", "show", "cm_id").Output()
		if err != nil {
			return false, fmt.Errorf("rdma resource: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "state LISTEN") && strings.Contains(line+" ", ":"+strconv.Itoa(port)+" ") {
				return true, nil
			}
		}
		return false, nil
	})
}

// until waits until a server listens.
func until(ctx context.Context, listens func() (bool, error)) error {
	for {
		ok, err := listens()
		if err != nil {
			return err
		}
		if ok {
			time.Sleep(settle)
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("nobody listens"), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// busyTime is the time that the guest's processors were not idle, all together.
func busyTime() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var ticks int64
	for i, f := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal guest guest_nice; the last two are in user and nice
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100) // USER_HZ
}
