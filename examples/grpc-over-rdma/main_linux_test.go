package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
)

// With this variable set the test binary is a program, so that the tests start real processes of it: the example, or what the
// variable names.
const asProgram = "GRPC_OVER_RDMA_TEST_MAIN"

// long asks for the full measure of what is otherwise kept short: RDMA_LONG=1.
var long = os.Getenv("RDMA_LONG") != ""

// With this variable set rdmanet chooses what serves; else it is the embedded device, whatever else this machine has.
const chosenEnv = "GRPC_OVER_RDMA_TEST_CHOSEN"

func provider() string {
	if os.Getenv(chosenEnv) != "" {
		return "shm"
	}
	return "softroce"
}

func TestMain(m *testing.M) {
	testnet.Main()
	if provider() == "softroce" {
		os.Setenv("RDMANET_DEVICE", "softroce")
	}
	switch os.Getenv(asProgram) {
	case "":
		os.Exit(m.Run())
	case "example":
		main()
		os.Exit(0)
	case "interop server":
		interopServer(os.Args[1], os.Args[2])
	case "waiting client":
		waitingClient(os.Args[1])
	}
	os.Exit(3)
}

type result struct {
	code        int
	out, errOut string
}

func program(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), asProgram+"="+as, "TMPDIR="+t.TempDir(),
		"GORACE=atexit_sleep_ms=0") // the race detector's second at the end of each process
	return cmd
}

func runProgram(t *testing.T, args ...string) result {
	t.Helper()
	cmd := program(t, "example", args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	t.Logf("%q: exit code %d\n%s%s", args, cmd.ProcessState.ExitCode(), &out, &errOut)
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// start starts a server and returns its address and the process.
func start(t *testing.T, as string, args ...string) (string, *exec.Cmd) {
	t.Helper()
	cmd := program(t, as, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // at whose end it ends, should the test program not come to Cleanup
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, addr, ok := strings.Cut(strings.TrimSpace(line), "serving at ")
	require.True(t, ok, line)
	return addr, cmd
}

func startServer(t *testing.T, addr, certs string) (string, *exec.Cmd) {
	t.Helper()
	return start(t, "example", "serve", "-addr", addr, "-certs", certs, "-until-stdin-ends")
}

func certs(t *testing.T, hosts ...string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, makeCerts(dir, hosts))
	return dir
}

func TestDemo(t *testing.T) {
	t.Parallel()
	args := []string{"-size", "3"}
	if !long {
		args = append(args, "-idle", "100ms")
	}
	r := runProgram(t, args...)
	require.Zero(t, r.code)
	require.Empty(t, r.errOut)
	for what, times := range map[string]int{
		"carried by RDMA: provider " + provider() + ",": 2,
		"3.0 MiB in ":                  4,
		"1000 messages":                2,
		"ended after":                  4,
		"the same connection after ":   2,
		"a client without a name":      1,
		`the server answered "client"`: 1,
	} {
		require.Equal(t, times, strings.Count(r.out, what), what)
	}
}

// TestChosen runs the tests of two processes again, where nobody says what serves: within one host that is shared memory.
func TestChosen(t *testing.T) {
	if os.Getenv(chosenEnv) != "" {
		return // this is there
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.run=^("+strings.Join([]string{
		"TestDemo", "TestInterop", "TestServerRestarts", "TestServerStops", "TestCloseWhileServerIsSilent", "TestClientFallsSilent", "TestCertificates",
	}, "|")+")$")
	cmd.Env = append(os.Environ(), chosenEnv+"=1", "RDMANET_DEVICE=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 7, bytes.Count(out, []byte("\n--- PASS: Test")), "%s", out)
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-nonsense"}, {"-size", "-1"}, {"nonsense"}, {"demo", "x"}, {"serve", "x"}, {"call"}, {"call", "a", "b"}, {"certs"},
	} {
		require.Equal(t, 2, runProgram(t, args...).code, args)
	}
	require.Zero(t, runProgram(t, "-h").code)
	r := runProgram(t, "serve", "-certs", t.TempDir())
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "make them: grpc-over-rdma certs ")
	r = runProgram(t, "call", "127.0.0.1:1")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "nobody listens on the port")
}

// TestCertificates: nobody talks to whom has no certificate of the authority, or one that is not meant for it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	mine, others := certs(t), certs(t)
	addr, server := startServer(t, "127.0.0.1:0", mine)

	ok := runProgram(t, "call", "-certs", mine, "-size", "1", "-idle", "0", addr)
	require.Zero(t, ok.code)
	require.Contains(t, ok.out, `the server answered "client"`)

	r := runProgram(t, "call", addr)
	require.Equal(t, 1, r.code, "without TLS")
	require.Contains(t, r.errOut, "unary: ")

	r = runProgram(t, "call", "-certs", others, addr)
	require.Equal(t, 1, r.code, "a server of another authority")
	require.Contains(t, r.errOut, "certificate signed by unknown authority")

	// A client of another authority, which takes the server's for its own.
	mixed := t.TempDir()
	for name, from := range map[string]string{"ca.pem": mine, "client.pem": others, "client.key": others} {
		data, err := os.ReadFile(from + "/" + name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(mixed+"/"+name, data, 0o600))
	}
	r = runProgram(t, "call", "-certs", mixed, addr)
	require.Equal(t, 1, r.code, "a client of another authority")
	require.Contains(t, r.errOut, "unary: ")

	require.NoError(t, server.Process.Signal(os.Interrupt))
	require.NoError(t, server.Wait(), "an interrupted server stops in good order")

	elsewhere := certs(t, "elsewhere.example", "192.0.2.1")
	addr, _ = startServer(t, "127.0.0.1:0", elsewhere)
	r = runProgram(t, "call", "-certs", elsewhere, addr)
	require.Equal(t, 1, r.code, "a server with another name")
	require.Contains(t, r.errOut, "certificate is valid for 192.0.2.1, not 127.0.0.1")

	addr, _ = startServer(t, "127.0.0.1:0", "")
	r = runProgram(t, "call", "-certs", mine, addr)
	require.Equal(t, 1, r.code, "a server without TLS")
}

// TestDemoLeavesNothingBehindWhenInterrupted: neither files, keys among them, nor a server.
func TestDemoLeavesNothingBehindWhenInterrupted(t *testing.T) {
	t.Parallel()
	cmd := program(t, "example")
	tmp := t.TempDir()
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n') // the server stands
	require.NoError(t, err)
	_, addr, _ := strings.Cut(line, " at ")
	addr, _, _ = strings.Cut(addr, ",")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for err == nil {
		_, err = lines.ReadString('\n')
	}
	cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	r := runProgram(t, "call", addr)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "nobody listens on the port")
}
