package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/testnet"
)

// With this variable set the test binary is the program.
const asProgram = "MCKEY_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	testnet.Main()
	leak.Start()
	goleak.VerifyTestMain(m, goleak.Cleanup(leak.Exit))
}

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

func (o *output) until(t *testing.T, words string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(o.String(), words) }, 20*time.Second, time.Millisecond, words)
}

// run is one run of the program, in this process and without a pause.
type run struct {
	out, errOut output
	code        chan int
	stop        context.CancelCauseFunc
}

func start(t *testing.T, args string) *run {
	t.Helper()
	r := &run{code: make(chan int, 1)}
	o, err := parse("mckey", strings.Fields(args), &r.out, &r.errOut)
	if err != nil {
		r.code <- 1
		return r
	}
	ctx, stop := context.WithCancelCause(t.Context())
	r.stop = stop
	go func() {
		r.code <- (&test{options: o, out: &r.out, errOut: &r.errOut}).main(ctx)
		stop(nil)
	}()
	return r
}

func (r *run) ends(t *testing.T, code int) {
	t.Helper()
	select {
	case got := <-r.code:
		require.Equal(t, code, got, "%s%s", &r.out, &r.errOut)
	case <-time.After(30 * time.Second):
		require.Fail(t, "still running", "%s%s", &r.out, &r.errOut)
	}
}

// says are the lines of a run that C's mckey prints too.
func says(role, group string, members int, data string) string {
	s := "mckey: starting " + role + "\nmckey: joining\n" +
		strings.Repeat("mckey: joined dgid: "+group+" mlid 0x0 sl 0\n", members)
	if data != "" {
		s += data + " data transfers\ndata transfers complete\n"
	}
	return s + "test complete\nreturn status 0\n"
}

func TestTransfer(t *testing.T) {
	for i, c := range []struct {
		receiver, sender string
		members, senders int
	}{
		{"", "", 1, 1},
		{"-c 4 -C 25", "-C25", 4, 1},
		{"-C 24", "-c 3 -C 8 -o", 1, 3}, // several senders
		{"-p 2", "-p 0x2", 1, 1},
		{"-S 4096 -C 1000", "-S4096 -C1000", 1, 1},
		{"-S 1", "-S 1 -l", 1, 1},
		{"-device softroce", "-device=softroce0", 1, 1},
	} {
		t.Run(c.receiver+" "+c.sender, func(t *testing.T) {
			group := fmt.Sprintf("239.255.74.%d", i+1)
			r := start(t, "-m "+group+" -b 127.0.0.1 "+c.receiver)
			r.out.until(t, "receiving data transfers")
			s := start(t, "-s -b 127.0.0.1 -m "+group+" "+c.sender)
			s.ends(t, 0)
			require.Equal(t, says("client", "::ffff:"+group, c.senders, "initiating"), s.out.String())
			r.ends(t, 0)
			require.Equal(t, says("server", "::ffff:"+group, c.members, "receiving"), r.out.String())
			require.Empty(t, s.errOut.String()+r.errOut.String())
		})
	}
}

// Without -b, where there is no route for groups: the embedded device finds an interface.
func TestByRoute(t *testing.T) {
	r := start(t, "-m 239.255.74.20 -c 2")
	r.out.until(t, "receiving data transfers")
	s := start(t, "-m 239.255.74.20 -s")
	s.ends(t, 0)
	r.ends(t, 0)
	require.Equal(t, says("server", "::ffff:239.255.74.20", 2, "receiving"), r.out.String())
}

func TestFreshGroup(t *testing.T) {
	r := start(t, "-m 0.0.0.0 -b 127.0.0.1 -c 2")
	r.out.until(t, "receiving data transfers")
	found := regexp.MustCompile(`joined dgid: (::ffff:[\d.]+) `).FindAllStringSubmatch(r.out.String(), -1)
	require.Len(t, found, 2)
	require.Equal(t, found[0], found[1], "all members of one run join one group")
	s := start(t, "-M "+found[0][1]+" -b 127.0.0.1 -s") // by its identifier
	s.ends(t, 0)
	r.ends(t, 0)
	require.Equal(t, says("client", found[0][1], 1, "initiating"), s.out.String())
}

// Nothing is transferred, as in C.
func TestNothing(t *testing.T) {
	for _, args := range []string{"-C 0", "-S 0", "-s -C 0", "-s -S 0"} {
		r := start(t, "-m 239.255.74.21 -b 127.0.0.1 "+args)
		r.ends(t, 0)
		role := "server"
		if strings.Contains(args, "-s") {
			role = "client"
		}
		require.Equal(t, says(role, "::ffff:239.255.74.21", 1, ""), r.out.String())
	}
	r := start(t, "-m 239.255.74.21 -b 127.0.0.1 -s -c 0")
	r.ends(t, 0)
	require.Equal(t, says("client", "", 0, "initiating"), r.out.String())
}

// What C's mckey of rdma-core 44 prints too, and what is explained besides.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		args        string
		code        int
		out, errOut string // "; " stands for an end of line
		explained   string
	}{
		{"-m 239.1.2.3 -b 127.0.0.1 -s -S 4097", -1, "joining; mckey: message_size 4097 is larger than active mtu 4096", "", ""},
		{"-m 239.1.2.3 -b 192.0.2.1", -1, "joining", "addr bind failure: Cannot assign requested address", "must be one of this host's"},
		{"-m 239.1.2.3 -b 192.0.2.1 -p 2", -1, "joining", "addr bind failure: Cannot assign requested address", "no interface has the address"},
		{"-m 239.1.2.3 -b ::1", -1, "joining", "resolve addr failure: Invalid argument", "different families"},
		{"-m 10.1.2.3 -b 127.0.0.1", -1, "joining", "failure joining: Invalid argument", "224.0.0.0 to 239.255.255.255"},
		{"-m 10.1.2.3", -1, "joining", "resolve addr failure: Invalid argument", "224.0.0.0 to 239.255.255.255"},
		{"-M 239.1.2.3 -b 127.0.0.1", -1, "joining", "failure joining: Invalid argument", "::ffff:239.1.2.3"},
		{"-M zzz -b 127.0.0.1", -1, "joining", "failure joining: Invalid argument", "::ffff:239.1.2.3"},
		{"-m ff15::1 -b ::1", -1, "joining", "failure joining: Network is unreachable", "ip -6 route add multicast"},
		{"-m 239.1.2.3 -b 127.0.0.1 -device nonsense", -1, "joining", "addr bind failure: No such device", "softroce"},
		{"-s", -2, "getaddrinfo failed (Name or service not known) - invalid hostname or IP address", "", "-m 239.1.2.3"},
		{"-m 239.1.2.3 -b 127.0.0.1 -timeout 20ms", -110, "joining; mckey: joined dgid: ::ffff:239.1.2.3 mlid 0x0 sl 0; receiving data transfers", "", "0 of 10 messages"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := start(t, c.args)
			r.ends(t, c.code)
			role := "server"
			if strings.Contains(c.args, "-s") {
				role = "client"
			}
			want := "mckey: starting " + role + "\n"
			if strings.HasPrefix(c.out, "joining") {
				want += "mckey: "
			}
			want += strings.ReplaceAll(c.out, "; ", "\n") + "\n"
			require.Equal(t, want+fmt.Sprintf("test complete\nreturn status %d\n", c.code), r.out.String())
			require.True(t, c.errOut == "" || strings.HasPrefix(r.errOut.String(), "mckey: "+c.errOut+"\n"), r.errOut.String())
			require.Contains(t, r.errOut.String(), c.explained)
		})
	}
}

// A name that does not exist, and one whose servers do not answer.
func TestNames(t *testing.T) {
	r := start(t, "-m localhost.invalid. -b 127.0.0.1")
	select {
	case code := <-r.code:
		require.Contains(t, []int{-2, -3}, code)
	case <-time.After(time.Minute):
		require.Fail(t, "a name is looked up for a minute")
	}
	require.Contains(t, r.out.String(), " - invalid hostname or IP address\ntest complete\n")
}

func TestOptions(t *testing.T) {
	var out, errOut output
	o, err := parse("mckey", strings.Fields("x -m 239.1.2.3 -sol -c4 -C 7 -S9 -p2 y -b127.0.0.1 -v -timeout 2.5 -device=a,b -- -x -s"), &out, &errOut)
	require.NoError(t, err)
	require.Equal(t, &options{
		group: "239.1.2.3", send: true, sendOnly: true, noLoopback: true, connections: 4, messages: 7, size: 9, space: psIPoIB,
		bind: "127.0.0.1", verbose: true, timeout: 2500 * time.Millisecond, device: "a,b",
	}, o)
	o, err = parse("mckey", strings.Fields("-M ff15::1 -b ::1 -p 0x111 -timeout 1m"), &out, &errOut)
	require.NoError(t, err)
	require.Equal(t, &options{
		group: "ff15::1", unmapped: true, bind: "::1", connections: 1, messages: 10, size: 100, space: psUDP, timeout: time.Minute,
	}, o)
	require.Empty(t, out.String()+errOut.String())
	for args, why := range map[string]string{
		"-x": "invalid option -- 'x'", "-m": "option requires an argument -- 'm'", "-sC": "option requires an argument -- 'C'",
		"-c x": "-c x: a number is needed", "-C -5": "-C -5: a number is needed", "-S 1k": "-S 1k: a number is needed",
		"-c 99999999999": "a number is needed", "-p 5": "0x111 (UDP) or 0x2 (IPOIB)", "-p zzz": "0x111 (UDP) or 0x2 (IPOIB)",
		"-timeout x": "a duration is needed", "-timeout -1": "a duration is needed", "-device": "option requires an argument -- 'device'",
	} {
		r := start(t, args)
		r.ends(t, 1)
		require.Contains(t, r.errOut.String(), why)
		require.True(t, strings.HasPrefix(r.out.String(), "usage: mckey\n\t-m multicast_address\n"), r.out.String())
		require.Contains(t, r.out.String(), "\t[-p port_space - 0x111 for UDP (default), 0x2 for IPOIB]\n")
	}
	r := start(t, "-M 0")
	r.ends(t, 1)
	require.Equal(t, "unmapped multicast address requires binding to source address\n", r.out.String())
}

func TestVerbose(t *testing.T) {
	r := start(t, "-m 239.255.74.30 -b 127.0.0.1 -C 60 -S 40 -v")
	r.out.until(t, "receiving data transfers")
	long := start(t, "-m 239.255.74.30 -b 127.0.0.1 -C 5 -S 41 -s") // too long for the receiver
	long.ends(t, 0)
	s := start(t, "-m 239.255.74.30 -b 127.0.0.1 -C 50 -S 40 -s -v")
	s.ends(t, 0)
	short := start(t, "-m 239.255.74.30 -b 127.0.0.1 -C 10 -S 8 -s") // too short for numbers
	short.ends(t, 0)
	r.ends(t, 0)
	require.Regexp(t, `(?m)^mckey: sent 50 messages of 2000 bytes in all, in .*: \d+ a second, [\d.]+ MB/s$`, s.out.String())
	out := r.out.String()
	require.Regexp(t, `(?m)^mckey: received 60 messages of 2080 bytes in all, in .*, and 5 that were longer than message_size$`, out)
	require.Regexp(t, `(?m)^mckey: from 127\.0\.0\.1:qp0x[0-9a-f]{6} 50 messages, 0 lost \(0\.00 %\)$`, out)
	require.Regexp(t, `(?m)^mckey: from 127\.0\.0\.1:qp0x[0-9a-f]{6} 10 messages, which have no numbers`, out)
}

// A signal leaves the group and ends the program, and the status is a shell's.
func TestInterrupted(t *testing.T) {
	for sig, code := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143} {
		r := start(t, "-m 239.255.74.31 -b 127.0.0.1 -v")
		r.out.until(t, "receiving data transfers")
		r.stop(interrupted{sig})
		r.ends(t, code)
		require.Contains(t, r.errOut.String(), "the group was left")
		require.NotContains(t, r.errOut.String(), "fail")
	}
	o, err := parse("mckey", strings.Fields("-s -m 239.255.74.31 -b 127.0.0.1"), os.Stdout, os.Stderr)
	require.NoError(t, err)
	ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, interrupted{os.Interrupt})
	defer stop()
	var out output
	require.Equal(t, 130, (&test{options: o, out: &out, errOut: &out, settle: time.Hour}).main(ctx))

	// The program itself.
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, strings.Fields("-m 239.255.74.31 -b 127.0.0.1")...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	var both output
	cmd.Stdout, cmd.Stderr = &both, &both
	require.NoError(t, cmd.Start())
	both.until(t, "receiving data transfers")
	require.Contains(t, igmp(t), "1F4AFFEF") // 239.255.74.31
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	exit := new(exec.ExitError)
	require.True(t, errors.As(cmd.Wait(), &exit), "%s", &both)
	require.Equal(t, 130, exit.ExitCode(), "%s", &both)
	require.NotContains(t, igmp(t), "1F4AFFEF")
}

func igmp(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/net/igmp")
	require.NoError(t, err)
	return string(b)
}
