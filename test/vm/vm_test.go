package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

func TestOutput(t *testing.T) {
	g := vmtest.Shared(t)
	c := g.Command(t.Context(), "sh", "-c", "echo out; echo err >&2; uname -r; pwd; echo $A")
	c.Env, c.Dir = []string{"A=b c"}, "/usr"
	var out, errout strings.Builder
	c.Stdout, c.Stderr = &out, &errout
	require.NoError(t, c.Run())
	assert.Equal(t, "out\n"+g.Info.Kernel+"\n/usr\nb c\n", out.String())
	assert.Equal(t, "err\n", errout.String())

	both, err := g.Command(t.Context(), "sh", "-c", "echo 1; echo 2 >&2; echo 3").CombinedOutput()
	require.NoError(t, err)
	assert.Equal(t, "1\n2\n3\n", string(both))
}

func TestExitStatus(t *testing.T) {
	g := vmtest.Shared(t)
	exit := new(vm.ExitError)
	_, err := g.Command(t.Context(), "sh", "-c", "echo why >&2; exit 42").Output()
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 42, exit.Code)
	assert.Equal(t, "why", string(exit.Stderr))

	require.ErrorAs(t, g.Command(t.Context(), "sh", "-c", "kill -9 $$").Run(), &exit)
	assert.Equal(t, [2]int{-1, 9}, [2]int{exit.Code, exit.Signal})

	err = g.Command(t.Context(), "no-such-program").Run()
	require.Error(t, err)
	assert.False(t, errors.As(err, &exit))
	assert.Contains(t, err.Error(), "executable file not found")
}

// More than any buffer on the way holds, both ways at once.
func TestStdin(t *testing.T) {
	g := vmtest.Shared(t)
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	c := g.Command(t.Context(), "cat")
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output()
	require.NoError(t, err)
	assert.True(t, bytes.Equal(in, out), "%d bytes came back of %d", len(out), len(in))
}

func TestSignal(t *testing.T) {
	g := vmtest.Shared(t)
	c := g.Command(t.Context(), "sh", "-c", `trap 'echo got it; exit 7' USR1; echo ready; while :; do sleep 0.1; done`)
	r, w := io.Pipe()
	c.Stdout = w
	require.NoError(t, c.Start())
	line := make([]byte, 6)
	_, err := io.ReadFull(r, line)
	require.NoError(t, err)
	require.NoError(t, c.Signal(syscall.SIGUSR1))
	rest := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		rest <- string(b)
	}()
	exit := new(vm.ExitError)
	require.ErrorAs(t, c.Wait(), &exit)
	_ = w.Close()
	assert.Equal(t, 7, exit.Code)
	assert.Equal(t, "got it\n", <-rest)
}

// What a command has started ends with it when its context does, though it holds the output open.
func TestKillAtLimit(t *testing.T) {
	g := vmtest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c := g.Command(ctx, "sh", "-c", "sleep 1001 & sleep 1002")
	c.Stdout = io.Discard
	start := time.Now()
	require.ErrorIs(t, c.Run(), context.DeadlineExceeded)
	assert.Less(t, time.Since(start), time.Minute)
	exit := new(vm.ExitError)
	require.ErrorAs(t, g.Command(t.Context(), "pgrep", "-f", "^sleep 100").Run(), &exit)
	assert.Equal(t, 1, exit.Code, "a sleep is left")
}

func TestManyCommands(t *testing.T) {
	g := vmtest.Shared(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c := g.Command(t.Context(), "cat")
			c.Stdin = strings.NewReader(strings.Repeat("x", i*1000))
			out, err := c.Output()
			assert.NoError(t, err)
			assert.Len(t, out, i*1000)
		})
	}
	wg.Wait()
}

func TestFiles(t *testing.T) {
	g := vmtest.Shared(t)
	content := bytes.Repeat([]byte{0, 1, 2, 255}, 100_000)
	require.NoError(t, g.WriteFile(t.Context(), "/tmp/file", content, 0o600))
	back, err := g.ReadFile(t.Context(), "/tmp/file")
	require.NoError(t, err)
	assert.True(t, bytes.Equal(content, back))

	require.NoError(t, os.WriteFile(filepath.Join(g.Share, "from-host"), []byte("one"), 0o600))
	_, err = g.Script(t.Context(), "test \"$(cat /run/share/from-host)\" = one; printf two >/run/share/from-guest")
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(g.Share, "from-guest"))
	require.NoError(t, err)
	assert.Equal(t, "two", string(b))

	// The guest's root is the host's, and what the guest writes stays in the guest.
	_, err = g.Script(t.Context(), "echo guest >/etc/rdma-vm-test; rm /etc/rdma-vm-test; touch /rdma-vm-test")
	require.NoError(t, err)
	assert.NoFileExists(t, "/rdma-vm-test")
}

func TestBuild(t *testing.T) {
	g := vmtest.Shared(t)
	const pkg = "github.com/go-rdma/rdma/internal/ring"
	path, err := g.BuildTest(t.Context(), pkg)
	require.NoError(t, err)
	out, err := g.Command(t.Context(), "stat", "-f", "-c", "%T", path).Output()
	require.NoError(t, err)
	assert.Equal(t, "tmpfs\n", string(out), "it starts from memory")
	out, err = g.Command(t.Context(), path, "-test.run=^Test(ConnDataOfC|DescriptorOfC|Immediates)$", "-test.v", "-test.short").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: Test")
	again, err := g.BuildTest(t.Context(), pkg)
	require.NoError(t, err)
	assert.Equal(t, path, again)
}

// The guest's seconds are those of the host.
func TestClock(t *testing.T) {
	g := vmtest.Shared(t)
	read := func() (host time.Time, guest float64) {
		out, err := g.Command(t.Context(), "cat", "/proc/uptime").Output()
		require.NoError(t, err)
		_, err = fmt.Sscan(string(out), &guest)
		require.NoError(t, err)
		return time.Now(), guest
	}
	h0, g0 := read()
	time.Sleep(5 * time.Second)
	h1, g1 := read()
	assert.InDelta(t, h1.Sub(h0).Seconds(), g1-g0, 1, "the clock's rate")
	start := time.Now()
	require.NoError(t, g.Command(t.Context(), "sleep", "3").Run())
	assert.GreaterOrEqual(t, time.Since(start), 2900*time.Millisecond)
}

// Modules are loaded as they are asked for, by the kernel itself too.
func TestModules(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	out, err := g.Script(t.Context(), `
tc qdisc add dev `+p.Near.Interface+` root netem loss 1%
tc qdisc show dev `+p.Near.Interface+`
tc qdisc del dev `+p.Near.Interface+` root
lsmod`)
	require.NoError(t, err)
	assert.Contains(t, out, "netem")
	assert.Contains(t, out, "sch_netem")
}

func TestPanic(t *testing.T) {
	g := vmtest.Start(t, vm.Config{Name: "crash", NoRDMA: true})
	err := g.Command(t.Context(), "sh", "-c", "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 100").Run()
	require.ErrorIs(t, err, vm.ErrPanic)
	dead := new(vm.GuestError)
	require.ErrorAs(t, err, &dead)
	assert.Contains(t, dead.Console, "sysrq_handle_crash")
	assert.ErrorIs(t, g.Command(t.Context(), "true").Run(), vm.ErrPanic)
	assert.ErrorIs(t, g.Err(), vm.ErrPanic)
}

func TestClose(t *testing.T) {
	g := vmtest.Start(t, vm.Config{NoRDMA: true})
	c := g.Command(t.Context(), "sleep", "1000")
	require.NoError(t, c.Start())
	require.NoError(t, g.Close())
	assert.ErrorIs(t, c.Wait(), vm.ErrClosed)
	assert.NoDirExists(t, g.Share)
}

// A guest that does not answer any more ends, with its console, and so does what runs in it.
func TestHang(t *testing.T) {
	g := vmtest.Start(t, vm.Config{NoRDMA: true, HangLimit: 10 * time.Second})
	start := time.Now()
	err := g.Command(t.Context(), "sh", "-c", "echo '<2>this is the end' >/dev/kmsg; kill -STOP $PPID; sleep 1000").Run()
	require.ErrorIs(t, err, vm.ErrHung)
	assert.Less(t, time.Since(start), time.Minute)
	assert.ErrorIs(t, g.Err(), vm.ErrHung)
	dead := new(vm.GuestError)
	require.ErrorAs(t, err, &dead)
	assert.Contains(t, dead.Console, "this is the end")
}

// A guest that does not come up ends, and its console is part of the error.
func TestBootFails(t *testing.T) {
	vmtest.Require(t, vm.Needed...)
	_, err := vm.Start(t.Context(), vm.Config{NoRDMA: true, BootLimit: 200 * time.Millisecond})
	assert.ErrorIs(t, err, vm.ErrBoot)

	_, err = vm.Start(t.Context(), vm.Config{NoRDMA: true, Append: "rdinit=/none"})
	require.ErrorIs(t, err, vm.ErrPanic)
	assert.Contains(t, err.Error(), "Unable to mount root fs")
}

// What QEMU runs guests on is what the guest says it is.
func TestAccelerator(t *testing.T) {
	g := vmtest.Shared(t)
	out, err := g.Command(t.Context(), "cat", "/proc/cpuinfo").Output()
	require.NoError(t, err)
	assert.Contains(t, []string{"kvm", "tcg"}, g.Accel)
	assert.Equal(t, g.Accel == "tcg", strings.Contains(string(out), "QEMU TCG CPU"), "%s: %s", g.Accel, out)

	t.Setenv("RDMA_VM_ACCEL", "xen")
	assert.ErrorContains(t, vm.Check(t.Context()), `RDMA_VM_ACCEL="xen": kvm or tcg`)
}
