package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A shape is what is transferred: iters times count transfers of size bytes one way, then as many back. Programs that
// know one way only transfer as many in all.
type shape struct {
	name               string
	size, count, iters int
	warm               int // iters beforehand, where a program can
	stream             bool
	datagrams          bool // one way: a stream to the figures
}

var shapes = []shape{
	{name: "64 B half round trip", size: 64, count: 1, iters: 3000, warm: 300},
	{name: "stream, 4 KiB", size: 4 << 10, count: 256, iters: 6, warm: 1, stream: true},
	{name: "stream, 64 KiB", size: 64 << 10, count: 32, iters: 6, warm: 1, stream: true},
	{name: "stream, 1 MiB", size: 1 << 20, count: 4, iters: 4, warm: 1, stream: true},
	{name: "datagrams, 64 B", size: 64, count: 1, iters: 4000, stream: true, datagrams: true},
	{name: "datagrams, 1 KiB", size: 1 << 10, count: 1, iters: 4000, stream: true, datagrams: true},
}

// transfers of a sample, in both directions.
func (s *shape) transfers() int { return 2 * s.count * s.iters }

// done is what a program transfers in all.
func (p *program) done(s *shape) int {
	if p.warms {
		return s.transfers() + 2*s.count*s.warm
	}
	return s.transfers()
}

// unit of the figure.
func (s *shape) unit() string {
	if s.stream {
		return "MiB/s"
	}
	return "µs"
}

// figure turns microseconds per transfer into it.
func (s *shape) figure(us float64) float64 {
	if s.stream {
		return float64(s.size) / (1 << 20) / us * 1e6
	}
	return us
}

// faster is how many times as fast a is as b.
func (s *shape) faster(a, b float64) float64 {
	if s.stream {
		return a / b
	}
	return b / a
}

// A program is what is measured: a server and a client.
type program struct {
	name    string
	streams bool // it does streams
	pings   bool // and round trips
	warms   bool // it does what shape.warm says

	datagrams bool // it does these, and neither streams nor round trips

	args func(s *shape, addr string, port int, client bool) []string

	// start is called before each run of a server, whose arguments it adds to; nil: the kernel tells when it listens.
	// What it returns waits for that.
	start func() (args []string, listens func(ctx context.Context) error)

	// read finds microseconds per transfer in what the client wrote.
	read func(s *shape, out string) (float64, error)
}

const (
	rdmanetName = "rdmanet"
	softName    = "rdmanet, softroce"
	rstreamName = "rstream"
	blockName   = "rstream -T b"
	writeBWName = "ib_write_bw"
)

// does tells whether the program does what a shape says.
func (p *program) does(s *shape) bool {
	switch {
	case s.datagrams:
		return p.datagrams
	case s.stream:
		return p.streams
	}
	return p.pings
}

// programs are what is compared. exe is this program.
func programs(exe string) []program {
	ps := []program{
		{name: rdmanetName, streams: true, pings: true, warms: true, args: goArgs(exe, 0), read: readGo},
		{name: "rdmanet, BusyPoll 100ms", streams: true, pings: true, warms: true, args: goArgs(exe, 100*time.Millisecond), read: readGo},
		{name: "rdmanet, BusyPoll -1", pings: true, warms: true, args: goArgs(exe, -1), read: readGo},
		{name: softName, streams: true, pings: true, warms: true, args: softArgs(exe), start: readyFile, read: readGo},
		{name: rstreamName, streams: true, pings: true, args: rstreamArgs(), read: readRstream},
		{name: blockName, streams: true, pings: true, args: rstreamArgs("-T", "b"), read: readRstream},
	}
	for _, p := range [][]string{{"ib_send_lat"}, {"ib_send_lat", "-e"}, {"ib_write_lat"}} {
		ps = append(ps, program{name: strings.Join(p, " "), pings: true, args: perftestArgs(p...), read: readPerftest})
	}
	ps = append(ps,
		program{name: rdmanetName, datagrams: true, args: datagramArgs(exe), read: readGo},
		program{name: "ib_send_bw -c UD", datagrams: true, args: perftestArgs("ib_send_bw", "-c", "UD"), read: readPerftest})
	return append(ps, program{name: writeBWName, streams: true, args: perftestArgs(writeBWName), read: readPerftest})
}

func goArgs(exe string, busy time.Duration) func(*shape, string, int, bool) []string {
	return func(s *shape, addr string, port int, client bool) []string {
		role := "-serve"
		if client {
			role = "-dial"
		}
		return []string{
			exe, role, addr + ":" + strconv.Itoa(port), "-busy", busy.String(),
			"-size", strconv.Itoa(s.size), "-count", strconv.Itoa(s.count), "-iters", strconv.Itoa(s.iters),
			"-warm", strconv.Itoa(s.warm),
		}
	}
}

// softNetns is a network namespace in which nobody holds UDP port 4791: rdma_rxe does in the initial one. softAddr
// is the loopback's there.
const (
	softNetns = "soft"
	softAddr  = "127.0.0.1"
)

func makeSoftNetns(ctx context.Context) error {
	for _, args := range [][]string{{"netns", "add", softNetns}, {"-n", softNetns, "link", "set", "lo", "up"}} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// softArgs are those of goArgs on the embedded device.
func softArgs(exe string) func(*shape, string, int, bool) []string {
	args := goArgs(exe, 0)
	return func(s *shape, _ string, port int, client bool) []string {
		return append([]string{"ip", "netns", "exec", softNetns}, append(args(s, softAddr, port, client), "-device", "softroce")...)
	}
}

// readyFile has a server of rdmanet's tell that it listens.
func readyFile() (args []string, listens func(ctx context.Context) error) {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("bench-vm-ready-%d", os.Getpid()))
	_ = os.Remove(name) // mostly it is not there
	return []string{"-ready", name}, func(ctx context.Context) error {
		return until(ctx, func() (bool, error) {
			_, err := os.Stat(name)
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			return err == nil, err
		})
	}
}

func rstreamArgs(more ...string) func(*shape, string, int, bool) []string {
	return func(s *shape, addr string, port int, client bool) []string {
		role := "-b"
		if client {
			role = "-s"
		}
		return append([]string{
			"rstream", role, addr, "-p", strconv.Itoa(port),
			"-S", strconv.Itoa(s.size), "-C", strconv.Itoa(s.count), "-I", strconv.Itoa(s.iters),
		}, more...)
	}
}

func perftestArgs(name ...string) func(*shape, string, int, bool) []string {
	return func(s *shape, addr string, port int, client bool) []string {
		n := s.transfers()
		if !s.stream {
			n = s.iters // it counts round trips
		}
		args := append(append([]string(nil), name...), "-R", "-F", "-p", strconv.Itoa(port),
			"-s", strconv.Itoa(s.size), "-n", strconv.Itoa(max(n, 5)))
		if client {
			args = append(args, addr)
		}
		return args
	}
}

func readGo(_ *shape, out string) (float64, error) {
	var r peerResult
	err := json.Unmarshal([]byte(out), &r)
	return r.USPerTransfer, err
}

var rstreamLine = regexp.MustCompile(`(?m)^custom .*s +[0-9.]+ +([0-9.]+)$`)

// readRstream takes the last column, usec/xfer.
func readRstream(_ *shape, out string) (float64, error) {
	m := rstreamLine.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no line of figures in %q", out)
	}
	return strconv.ParseFloat(m[1], 64)
}

// readPerftest takes the averages: t_avg of latencies, which are halves of round trips, and BW average.
func readPerftest(s *shape, out string) (float64, error) {
	column := 5
	if s.stream {
		column = 3
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) <= column || f[0] != strconv.Itoa(s.size) {
			continue
		}
		v, err := strconv.ParseFloat(f[column], 64)
		if err != nil {
			return 0, err
		}
		if s.stream {
			v = float64(s.size) / (1 << 20) / v * 1e6 // its MB are MiB
		}
		return v, nil
	}
	return 0, fmt.Errorf("no line of figures in %q", out)
}
