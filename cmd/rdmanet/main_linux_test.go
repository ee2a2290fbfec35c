package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/testnet"
)

// With this variable set the test binary is the program.
const asProgram = "RDMANET_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	testnet.Main()
	goleak.VerifyTestMain(m)
}

// patience is for one step of a process on a busy machine.
const patience = 60 * time.Second

// output collects what a program prints, and lets tests wait for words of it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a program that runs.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err output
	done     chan struct{}
}

// start runs the program as a process of its own.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "RDMANET_DEVICE=softroce")
	return startCommand(t, cmd)
}

// startCommand starts any command.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.err
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // ProcessState has it
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%q printed:\n%s%s", cmd.Args, p.out.String(), p.err.String())
		}
	})
	return p
}

// says waits until the program has printed something, and returns the submatches.
func (p *process) says(re string) []string {
	p.t.Helper()
	var m []string
	r := regexp.MustCompile(re)
	require.Eventually(p.t, func() bool {
		m = r.FindStringSubmatch(p.out.String() + p.err.String())
		return m != nil
	}, patience, 2*time.Millisecond, "%s: %s%s", re, &p.out, &p.err)
	return m
}

// ends waits for the end of the program, and returns its status and what it printed.
func (p *process) ends() (status int, out, errOut string) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.FailNow(p.t, "it does not end")
	}
	return p.cmd.ProcessState.ExitCode(), p.out.String(), p.err.String()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// runTool runs the program to its end.
func runTool(t *testing.T, args ...string) (status int, out, errOut string) {
	t.Helper()
	return start(t, args...).ends()
}

// need asks for programs that the project's CI installs.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CI") == "true" {
				require.FailNow(t, "this test needs "+p+": .ci/run installs it")
			}
			t.Skip("this test needs ", p)
		}
	}
}

// asRoot asks for the right to be another user.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			require.FailNow(t, "only root can be another user")
		}
		t.Skip("only root can be another user")
	}
}

func TestDevices(t *testing.T) {
	status, out, errOut := runTool(t, "devices")
	assert.Equal(t, 0, status, errOut)
	assert.Contains(t, out, "softroce0 (softroce)\n  limits:   32768 queue pairs, ")
	assert.Contains(t, out, "messages of 2 GiB")
	assert.Contains(t, out, "addresses: 127.0.0.1")

	status, out, errOut = runTool(t, "devices", "--json")
	assert.Equal(t, 0, status, errOut)
	var devs []jsonDevice
	require.NoError(t, json.Unmarshal([]byte(out), &devs))
	found := false
	for _, d := range devs {
		if d.Name == "softroce0" {
			found = true
			assert.Nil(t, d.Unusable)
			require.Len(t, d.Ports, 1)
			assert.Equal(t, "ACTIVE", d.Ports[0].State)
			assert.NotEmpty(t, d.Ports[0].GIDs)
		}
	}
	assert.True(t, found, out)
}

// What cannot be is refused with a word on what can, on standard error, and another status than a failure's.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pong"}, `there is no command "pong"`},
		{[]string{"ping"}, "Name a host, or --listen"},
		{[]string{"ping", "-s", "65537", "127.0.0.1"}, "a ping has 1 to 65536 bytes"},
		{[]string{"ping", "-i", "1h", "127.0.0.1"}, "takes one that is silent"},
		{[]string{"ping", "-I", "here", "127.0.0.1"}, "--from"},
		{[]string{"ping", "--flood"}, "unknown flag: --flood"},
		{[]string{"ping", "a", "b"}, "accepts at most 1 arg"},
		{[]string{"proxy", "tcp://:1"}, "accepts 2 arg(s)"},
		{[]string{"proxy", ":1", "rdma://:2"}, `endpoint ":1": write network://address`},
		{[]string{"proxy", "tcp://:1", "rdma://server"}, "missing port in address"},
		{[]string{"proxy", "tcp://:1", "rdma://server:2", "--grace", "-1s"}, "must not be negative"},
		{[]string{"bench"}, "Name a host, or --listen"},
		{[]string{"bench", "-w", "0", "127.0.0.1"}, "--size and --write"},
		{[]string{"doctor", "me"}, `unknown command "me"`},
	} {
		status, out, errOut := runTool(t, c.args...)
		assert.Equal(t, statusUsage, status, c.args)
		assert.Empty(t, out)
		assert.Contains(t, errOut, c.want)
		assert.Contains(t, errOut, "--help shows how it is used", c.args)
	}
}

// Each command has examples, and the program's own help lists them all.
func TestHelp(t *testing.T) {
	status, all, _ := runTool(t)
	assert.Equal(t, 0, status)
	for _, c := range []string{"devices", "doctor", "ping", "proxy", "bench"} {
		assert.Contains(t, all, "\n  "+c+" ")
		status, out, _ := runTool(t, c, "--help")
		assert.Equal(t, 0, status)
		assert.Contains(t, out, "Examples:\n", c)
		for l := range strings.Lines(out) {
			assert.LessOrEqual(t, len(l), 140, l)
		}
	}
}

func TestPing(t *testing.T) {
	s := start(t, "ping", "--listen", "127.0.0.1:0")
	addr := s.says(`listening on (127\.0\.0\.1:\d+) .*\[softroce\]`)[1]

	status, out, errOut := runTool(t, "ping", "-c", "3", "-i", "1ms", addr)
	assert.Equal(t, 0, status, errOut)
	assert.Regexp(t, `^`+addr+` from 127\.0\.0\.1 on softroce0 \(softroce\), 64 bytes: connected in `, out)
	assert.Equal(t, 3, strings.Count(out, "64 bytes from "+addr+": seq="), out)
	assert.Contains(t, out, ": 3 pings, 3 came back, ")
	s.says(`127\.0\.0\.1:\d+: 3 pings\n`)

	for _, size := range []string{"1", "2", "100", "4097", "65536"} {
		status, out, errOut = runTool(t, "ping", "-c", "20", "-i", "0", "-s", size, "--json", addr)
		require.Equal(t, 0, status, errOut)
		var sum pingSummary
		require.NoError(t, json.Unmarshal([]byte(out), &sum))
		assert.Equal(t, 20, sum.Back)
		assert.Equal(t, "softroce", sum.Provider)
		d := sum.RoundTripUS
		assert.Greater(t, d.Min, 0.0)
		assert.LessOrEqual(t, d.Min, d.Median)
		assert.LessOrEqual(t, d.Median, d.P99)
		assert.LessOrEqual(t, d.P99, d.Max)
	}

	t.Run("Ctrl-C shows the summary", func(t *testing.T) {
		p := start(t, "ping", addr)
		p.says("seq=1 ")
		p.signal(syscall.SIGINT)
		status, out, errOut := p.ends()
		assert.Equal(t, 0, status)
		assert.Regexp(t, `: (\d+) pings, (\d+) came back`, out)
		assert.Empty(t, errOut)
	})
	t.Run("several at once", func(t *testing.T) {
		var all []*process
		for range 4 {
			all = append(all, start(t, "ping", "-c", "100", "-i", "0", "-q", addr))
		}
		for _, p := range all {
			status, out, errOut := p.ends()
			assert.Equal(t, 0, status, errOut)
			assert.Contains(t, out, "100 came back")
		}
	})
	t.Run("the server dies", func(t *testing.T) {
		s := start(t, "ping", "--listen", "127.0.0.1:0")
		p := start(t, "ping", "-i", "20ms", s.says(`listening on (\S+)`)[1])
		p.says("seq=2 ")
		s.signal(syscall.SIGKILL)
		status, out, errOut := p.ends()
		assert.Equal(t, 1, status)
		assert.Contains(t, errOut, "the peer ended the connection")
		assert.Contains(t, out, " came back, ")
	})
	s.signal(syscall.SIGTERM)
	status, _, errOut = s.ends()
	assert.Equal(t, 0, status)
	assert.Empty(t, errOut)

	t.Run("nobody listens", func(t *testing.T) {
		status, _, errOut := runTool(t, "ping", addr)
		assert.Equal(t, 1, status)
		assert.Contains(t, errOut, "run rdmanet ping --listen there, or rping -s -P")
	})
	t.Run("another protocol", func(t *testing.T) {
		s := start(t, "bench", "--listen", "127.0.0.1:0")
		status, _, errOut := runTool(t, "ping", s.says(`rdma (\S+)`)[1])
		assert.Equal(t, 1, status)
		assert.Contains(t, errOut, "who listens on that port speaks another protocol")
	})
	t.Run("no route", func(t *testing.T) {
		status, _, errOut := runTool(t, "ping", "192.0.2.1")
		assert.Equal(t, 1, status)
		assert.Contains(t, errOut, "network is unreachable")
	})
}

// Within one host what serves is shared memory, if nobody says otherwise, and the tool says so.
func TestOverShm(t *testing.T) {
	own := func(args ...string) *process {
		return startCommand(t, toolCommand([]string{"RDMANET_DEVICE="}, args...))
	}
	s := own("ping", "--listen", "127.0.0.1:0")
	addr := s.says(`listening on (127\.0\.0\.1:\d+) .*\[shm softroce\]`)[1]
	for device, want := range map[string]string{"": "on shm0 (shm)", "softroce": "on softroce0 (softroce)"} {
		status, out, errOut := own("ping", "-c", "20", "-i", "0", "-s", "65536", "-d", device, addr).ends()
		require.Equal(t, 0, status, errOut)
		assert.Contains(t, out, want)
		assert.Contains(t, out, ": 20 pings, 20 came back, ")
	}
	s.says(`connected on shm0\n`)
	s.says(`connected on softroce0\n`)
	s.signal(syscall.SIGINT)
	status, _, _ := s.ends()
	assert.Equal(t, 0, status)
	status, _, errOut := own("ping", addr).ends()
	assert.Equal(t, 1, status)
	assert.Contains(t, errOut, "run rdmanet ping --listen there, or rping -s -P")

	s = own("bench", "--listen", "127.0.0.1:0")
	addr = s.says(`rdma (\S+)`)[1]
	status, out, errOut := own("bench", "-t", "20ms", "--rounds", "1", addr).ends()
	require.Equal(t, 0, status, errOut)
	assert.Contains(t, out, addr+", RDMA on shm0 (shm), 1 rounds of 20ms\n")

	status, out, _ = own("devices").ends()
	assert.Equal(t, 0, status)
	assert.Contains(t, out, "shm0 (shm)\n")
}

func TestBench(t *testing.T) {
	s := start(t, "bench", "--listen", "--tcp", "127.0.0.1:0")
	addr := s.says(`listening on rdma (127\.0\.0\.1:\d+), tcp 127\.0\.0\.1:\d+\n`)[1]

	status, out, errOut := runTool(t, "bench", "--tcp", "-t", "50ms", "--rounds", "2", addr)
	require.Equal(t, 0, status, errOut)
	assert.Empty(t, errOut, "no progress where no terminal is")
	assert.Contains(t, out, addr+", RDMA on softroce0 (softroce), 2 rounds of 50ms\n")
	assert.Regexp(t, `(?s)round trip, 64 B, in µs.*\n +rdma +\d.*\n +tcp +\d.*stream, writes of 64 KiB.*\n +rdma +\d+ .*\n +tcp +\d+ `, out)
	assert.Contains(t, out, "RDMA beside TCP: round trips take ")

	status, out, errOut = runTool(t, "bench", "--json", "-t", "50ms", "--rounds", "1", "-s", "5000", "-w", "1048576", addr)
	require.Equal(t, 0, status, errOut)
	var got struct {
		RDMA carrier  `json:"rdma"`
		TCP  *carrier `json:"tcp"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	assert.Nil(t, got.TCP)
	assert.Equal(t, "softroce0", got.RDMA.Device)
	assert.Greater(t, got.RDMA.MiBPerS, 1.0)
	assert.Greater(t, got.RDMA.RoundTripUS.Max, got.RDMA.RoundTripUS.Min)

	t.Run("Ctrl-C", func(t *testing.T) {
		p := start(t, "bench", "-t", "1h", addr)
		time.Sleep(300 * time.Millisecond) // it measures by then, or connects: either ends
		p.signal(syscall.SIGINT)
		status, out, _ := p.ends()
		assert.Equal(t, 130, status)
		assert.Empty(t, out)
	})
	s.signal(syscall.SIGINT)
	status, _, _ = s.ends()
	assert.Equal(t, 0, status)

	t.Run("no TCP there", func(t *testing.T) {
		s := start(t, "bench", "--listen", "127.0.0.1:0")
		status, _, errOut := runTool(t, "bench", "--tcp", "-t", "1ms", s.says(`rdma (\S+)`)[1])
		assert.Equal(t, 1, status)
		assert.Contains(t, errOut, "was the server started with --tcp?")
	})
}

// A line that changes is for a terminal only: here script(1) is one.
func TestProgress(t *testing.T) {
	need(t, "script")
	s := start(t, "bench", "--listen", "127.0.0.1:0")
	addr := s.says(`rdma (\S+)`)[1]
	cmd := exec.Command("script", "-qec", os.Args[0]+" bench -t 700ms --rounds 1 "+addr, "/dev/null")
	cmd.Env = append(os.Environ(), asProgram+"=1", "RDMANET_DEVICE=softroce")
	status, out, _ := startCommand(t, cmd).ends()
	assert.Equal(t, 0, status)
	assert.Contains(t, out, "\rround 1 of 1, rdma: ")
	assert.Contains(t, out, "\r\x1b[K", "it is taken away")
}
