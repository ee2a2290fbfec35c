package trace

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs/softroce/trace/tracetest"
)

const childEnv = "TRACE_TEST_CHILD"

// childMain is a process that is traced as its environment says.
func childMain(what string) {
	r := FromEnv()
	fmt.Println("tracing", r != nil)
	for i := 0; what == "endless"; i++ {
		r.Received(packet(v4a, v4b, uint32(i), 100), "")
		time.Sleep(100 * time.Microsecond)
	}
	if r != nil {
		r.Received(packet(v4a, v4b, 1, 100), "")
		r.Flush()
	}
}

// run starts a process, waits until it traces or not, and returns its log when it has ended.
func run(t *testing.T, what, name string) (cmd *exec.Cmd, traces bool, wait func() (log string)) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+what, Env+"="+name, "GORACE=atexit_sleep_ms=0")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	wait = func() string {
		_ = cmd.Wait() // killed, perhaps
		return log.String()
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, line == "tracing true\n", wait
}

// TestKilled: what a killed process leaves can be read, up to shortly before its end.
func TestKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.pcapng")
	cmd, traces, wait := run(t, "endless", name)
	require.True(t, traces)
	time.Sleep(400 * time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	killed := time.Now()
	require.Empty(t, wait())
	ps := tracetest.Read(t, name, true)
	require.NotEmpty(t, ps)
	for i, p := range ps {
		require.True(t, p.Good())
		require.EqualValues(t, i, psn(p))
	}
	require.WithinDuration(t, killed, ps[len(ps)-1].At, flushEvery+settle+250*time.Millisecond)
}

// TestTwoProcesses: one name, two files; the next process begins the file anew.
func TestTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "t.pcapng")
	first, traces, waitFirst := run(t, "endless", name)
	require.True(t, traces)
	second, traces, waitSecond := run(t, "one", name)
	require.True(t, traces)
	log := waitSecond()
	other := filepath.Join(dir, fmt.Sprintf("t.%d.pcapng", second.Process.Pid))
	require.Contains(t, log, other)
	require.Equal(t, 1, strings.Count(log, "\n"), log)
	require.Len(t, tracetest.Read(t, other, false), 1)
	require.Eventually(t, func() bool { return len(tracetest.Read(t, name, true)) > 0 }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, first.Process.Kill())
	waitFirst()
	require.NotEmpty(t, tracetest.Read(t, name, true))

	_, traces, wait := run(t, "one", name)
	require.True(t, traces)
	require.Empty(t, wait())
	require.Len(t, tracetest.Read(t, name, false), 1)
	st, err := os.Stat(name)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, st.Mode().Perm(), "others must not read what was said")

	cmd, traces, wait := run(t, "one", filepath.Join(dir, "%p-%%p.pcapng"))
	require.True(t, traces)
	require.Empty(t, wait())
	require.Len(t, tracetest.Read(t, filepath.Join(dir, fmt.Sprintf("%d-%%p.pcapng", cmd.Process.Pid)), false), 1)
}

// TestUnusable: files that cannot be had, and one that is somebody's.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.txt")
	require.NoError(t, os.WriteFile(precious, []byte("It was a dark and stormy night"), 0o644))
	short := filepath.Join(dir, "short")
	require.NoError(t, os.WriteFile(short, []byte{0x0A}, 0o644))
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for name, want := range map[string]string{
		filepath.Join(dir, "missing", "t.pcapng"): "no such file or directory",
		dir:      "is a directory",
		precious: "it exists and is no trace: remove it, or choose another name",
		short:    "it exists and is no trace",
		pipe:     "nobody reads the pipe",
	} {
		_, traces, wait := run(t, "one", name)
		require.False(t, traces, name)
		log := wait()
		require.Contains(t, log, "RDMANET_PCAP: no trace is written")
		require.Contains(t, log, want)
		require.Contains(t, log, name)
		require.Equal(t, 1, strings.Count(log, "\n"), log)
	}
	b, err := os.ReadFile(precious)
	require.NoError(t, err)
	require.Equal(t, "It was a dark and stormy night", string(b))
	require.Nil(t, FromEnv(), "nobody asked")
}

// TestPipe: somebody watches, and leaves.
func TestPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	f, err := os.OpenFile(pipe, os.O_RDWR, 0) // opens without a writer
	require.NoError(t, err)
	_, traces, wait := run(t, "one", pipe)
	require.True(t, traces)
	require.Empty(t, wait())
	require.NoError(t, f.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	data, err := io.ReadAll(f)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Len(t, tracetest.Parse(t, data, false), 1)

	_, traces, wait = run(t, "endless", pipe)
	require.True(t, traces)
	require.NoError(t, f.SetReadDeadline(time.Time{}))
	_, err = f.Read(make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	cmdLog := make(chan string, 1)
	go func() { cmdLog <- wait() }()
	select {
	case log := <-cmdLog:
		require.Fail(t, "the process ended", "%s", log)
	case <-time.After(300 * time.Millisecond):
	}
}

func TestExpand(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	for in, want := range map[string]string{
		"t": "t", "%p": pid, "a%p.%p": "a" + pid + "." + pid, "%%p": "%p", "%%%p": "%" + pid, "%x%": "%x%",
	} {
		require.Equal(t, want, expand(in))
	}
}
