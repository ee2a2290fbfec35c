package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// UCX is a library in C for messages between processes of parallel programs; between those of one host it has shared memory.
// It always spins, and its program that measures is run for each sample with each process on a processor of its own.
const (
	ucxProgram = "ucx_perftest" // Debian's ucx-utils
	ucxWarmup  = 1000
	ucxLimit   = 10 * time.Second // of one run
)

// selfTimed is a client that times its operations itself.
type selfTimed interface {
	// measure does operations for about so long, and tells what each took, also of processors.
	measure(long time.Duration) (perOp, cpu time.Duration, err error)
}

// ucxClient runs a test of UCX.
type ucxClient struct {
	ctx  context.Context
	test []string
	trip bool // half a round trip is what the test calls its time
	n    int
}

// ucxTest is the test that is as the case.
func (c *benchCase) ucxTest(ctx context.Context) client {
	if c.bytes > 0 {
		return &ucxClient{ctx: ctx, test: []string{"-t", "stream_bw", "-s", strconv.Itoa(c.bytes)}}
	}
	return &ucxClient{ctx: ctx, test: []string{"-t", "tag_lat", "-s", strconv.Itoa(c.ping)}, trip: true}
}

// forUCX tells whether UCX has a test like the case. Without sleeping and without yielding it does not get on with a busy machine.
func (c *benchCase) forUCX() bool { return !c.busy && (c.ping > 0 || c.bytes > 0) }

func ucxThere() bool {
	_, err := exec.LookPath(ucxProgram)
	return err == nil
}

func (u *ucxClient) do(int) error { return errors.New("UCX times itself") }
func (u *ucxClient) close()       {}

func (u *ucxClient) measure(long time.Duration) (perOp, cpu time.Duration, err error) {
	if u.n == 0 {
		u.n = 2000
		if perOp, _, err = u.run(); err != nil {
			return 0, 0, err
		}
		u.n = int(min(max(long/max(perOp, 1), 1000), 5_000_000))
	}
	return u.run()
}

func (u *ucxClient) run() (perOp, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(u.ctx, ucxLimit)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return 0, 0, err
	}
	server := ucxCommand(ctx, 0, "-p", port)
	if err := server.Start(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", ucxProgram, err)
	}
	defer func() {
		cancel() // it may have another client's connection to wait for
		_ = server.Wait()
	}()
	if err := listening(ctx, port); err != nil {
		return 0, 0, err
	}
	args := append([]string{"127.0.0.1", "-p", port, "-f", "-n", strconv.Itoa(u.n), "-w", strconv.Itoa(ucxWarmup)}, u.test...)
	cmd := ucxCommand(ctx, 1, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("%s %s: %w: %s", ucxProgram, strings.Join(args, " "), err, lastLine(out))
	}
	took, err := ucxOverall(out)
	if err != nil {
		return 0, 0, err
	}
	if u.trip {
		took *= 2
	}
	// Of the client, which spins as its peer does, and does so as well before and after what it times.
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return took, 2 * min(used/time.Duration(u.n+ucxWarmup), took), nil
}

// ucxCommand is a process on a processor of its own, if there are two.
func ucxCommand(ctx context.Context, processor int, args ...string) *exec.Cmd {
	if runtime.NumCPU() > 1 {
		args = append(args, "-c", strconv.Itoa(processor))
	}
	cmd := exec.CommandContext(ctx, ucxProgram, args...)
	cmd.Env = append(os.Environ(), "UCX_TLS=posix,sysv,self", "UCX_WARN_UNUSED_ENV_VARS=n")
	return cmd
}

func freePort() (string, error) {
	l, err := net.Listen("tcp4", loopback)
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// listening waits until somebody listens at the port, without connecting: the program serves one client.
func listening(ctx context.Context, port string) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	want := fmt.Sprintf(":%04X 00000000:0000 0A", n) // state LISTEN, see proc_net_tcp of the kernel's documentation
	for ctx.Err() == nil {
		if b, err := os.ReadFile("/proc/self/net/tcp"); err != nil || bytes.Contains(b, []byte(want)) {
			return err
		}
		sleep(ctx, time.Millisecond)
	}
	return fmt.Errorf("%s does not listen: %w", ucxProgram, ctx.Err())
}

// ucxOverall is the overall time of an operation in what -f prints: iterations, percentile, average and overall time in
// microseconds, and rates.
func ucxOverall(out []byte) (time.Duration, error) {
	f := strings.Fields(lastLine(out))
	if len(f) == 8 {
		if us, err := strconv.ParseFloat(f[3], 64); err == nil && us > 0 {
			return time.Duration(us * float64(time.Microsecond)), nil
		}
	}
	return 0, fmt.Errorf("%s prints %q", ucxProgram, lastLine(out))
}

func lastLine(out []byte) (last string) {
	s := bufio.NewScanner(bytes.NewReader(out))
	for s.Scan() {
		if t := strings.TrimSpace(s.Text()); t != "" {
			last = t
		}
	}
	return last
}
