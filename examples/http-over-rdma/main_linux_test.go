package main

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
)

// With this variable set the test binary is the program, so that the tests start
// real processes of it.
const asProgram = "HTTP_OVER_RDMA_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	testnet.Main()
	os.Exit(m.Run())
}

type result struct {
	code        int
	out, errOut string
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+t.TempDir(),
		"GORACE=atexit_sleep_ms=0") // the race detector's second at the end of each process
	return cmd
}

func runProgram(t *testing.T, args ...string) result {
	t.Helper()
	cmd := program(t, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	t.Logf("%q: exit code %d\n%s%s", args, cmd.ProcessState.ExitCode(), &out, &errOut)
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// startServer serves dir and returns the URL and the process.
func startServer(t *testing.T, dir string) (string, *exec.Cmd) {
	t.Helper()
	cmd := program(t, "serve", "-addr", "127.0.0.1:0", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, url, ok := strings.Cut(strings.TrimSpace(line), " at ")
	require.True(t, ok, line)
	return url, cmd
}

func TestDemo(t *testing.T) {
	r := runProgram(t, "-size", "5")
	require.Zero(t, r.code)
	require.Empty(t, r.errOut)
	for what, times := range map[string]int{
		"large.bin: 5.0 MiB in ":                               2,
		"fetched 97 files in 17 directories":                   2,
		"carried by RDMA: provider shm, device shm0, ":         1,
		"carried by RDMA: provider softroce, device softroce0": 1,
		"the sha-256 of every file is right":                   2,
		"http-over-rdma get http://":                           1,
	} {
		require.Equal(t, times, strings.Count(r.out, what), what)
	}
}

func TestDemoLeavesNothingBehindWhenInterrupted(t *testing.T) {
	cmd := program(t, "-size", "64")
	tmp := t.TempDir()
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n') // the server stands
	require.NoError(t, err)
	_, url, _ := strings.Cut(strings.TrimSpace(line), " at ")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for err == nil {
		_, err = lines.ReadString('\n')
	}
	cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, 1, runProgram(t, "get", url).code, "the server has gone too")
}

func TestGet(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, makeTree(t.Context(), dir, 3<<20))
	url, server := startServer(t, dir)

	r := runProgram(t, "get", "-v", url)
	require.Zero(t, r.code)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(sums)), "\n") {
		require.Contains(t, r.out, line+"\n")
	}

	// A part of the tree, to which the sums do not apply.
	r = runProgram(t, "get", url+"tree/b")
	require.Zero(t, r.code)
	require.Contains(t, r.out, "fetched 32 files in 5 directories")
	require.Contains(t, r.out, "nothing verified")

	// A changed file, one that is not listed, one that is gone.
	name := filepath.Join(dir, "large.bin")
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	data[2<<20] ^= 1
	require.NoError(t, os.WriteFile(name, data, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "extra"), nil, 0o644))
	require.NoError(t, os.Remove(filepath.Join(dir, "tree/c/3 & 50%/file #7.bin")))
	r = runProgram(t, "get", url)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "large.bin: sha-256 is ")
	require.Contains(t, r.errOut, "extra: not in SHA256SUMS")
	require.Contains(t, r.errOut, "tree/c/3 & 50%/file #7.bin: in SHA256SUMS, but not found")
	require.NotContains(t, r.out, "is right")

	require.NoError(t, server.Process.Signal(os.Interrupt))
	require.NoError(t, server.Wait(), "an interrupted server stops in good order")
	r = runProgram(t, "get", url)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "nobody listens on the port")
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{
		{"-nonsense"}, {"-size", "-1"}, {"nonsense"}, {"demo", "x"}, {"serve"}, {"get"}, {"get", "a", "b"},
	} {
		require.Equal(t, 2, runProgram(t, args...).code)
	}
	require.Zero(t, runProgram(t, "-h").code)
	for _, args := range [][]string{
		{"serve", filepath.Join(t.TempDir(), "missing")},
		{"serve", "-addr", "nonsense", t.TempDir()},
		{"get", "nonsense"}, {"get", "https://127.0.0.1/"},
	} {
		r := runProgram(t, args...)
		require.Equal(t, 1, r.code)
		require.Contains(t, r.errOut, "http-over-rdma: ")
	}
}

// TestAddresses: what the server prints can be dialed, and an address is no URL.
func TestAddresses(t *testing.T) {
	dir := t.TempDir()
	cmd := program(t, "serve", "-addr", ":0", dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, url, ok := strings.Cut(strings.TrimSpace(line), " at ")
	require.True(t, ok, line)
	require.NotContains(t, url, "[::]")
	require.Zero(t, runProgram(t, "get", url).code)
	addr := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	r := runProgram(t, "get", addr)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "try "+url)

	require.Equal(t, []string{"127.0.0.1:1"}, usable("127.0.0.1:1"))
	for _, a := range usable("0.0.0.0:1") {
		require.NotContains(t, a, "[")
	}
}

func TestPortInUse(t *testing.T) {
	url, _ := startServer(t, t.TempDir())
	addr := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	_, _, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	r := runProgram(t, "serve", "-addr", addr, t.TempDir())
	require.Equal(t, 1, r.code)
	require.Contains(t, r.errOut, "already in use by process ")
}

func TestServerKilled(t *testing.T) {
	dir := t.TempDir()
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<40)) // more than the test has time for
	require.NoError(t, sparse.Close())
	url, server := startServer(t, dir)

	client := program(t, "get", url)
	var errOut bytes.Buffer
	client.Stderr = &errOut
	require.NoError(t, client.Start())
	time.Sleep(300 * time.Millisecond) // somewhere in the transfer, or before it: an error either way
	require.NoError(t, server.Process.Kill())
	killed := time.Now()
	require.Error(t, client.Wait())
	require.Less(t, time.Since(killed), 30*time.Second)
	require.Equal(t, 1, client.ProcessState.ExitCode())
	require.Contains(t, errOut.String(), "http-over-rdma: ")
	t.Log(errOut.String())
}
