// Package rdmacore tests the provider of real devices in a guest with Soft-RoCE: the tests of package guest
// and of the floors above on rxe0, and what it says of a host where something is missing.
package rdmacore

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

const (
	guestPkg   = "github.com/go-rdma/rdma/test/rdmacore/guest"
	corePkg    = "github.com/go-rdma/rdma/internal/verbs/rdmacore"
	devicesPkg = "github.com/go-rdma/rdma/test/rdmacore/cmd/devices"
	rdmanetPkg = "github.com/go-rdma/rdma/rdmanet"
)

// runTests runs a test binary in the guest, shows how its tests went, and returns all that it says.
func runTests(t *testing.T, g *vm.Guest, limit time.Duration, env []string, prog string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	cmd := g.Command(ctx, prog, append([]string{"-test.v", "-test.timeout", limit.String()}, args...)...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "no tests to run")
	for l := range strings.Lines(string(out)) {
		if strings.Contains(l, "--- ") {
			t.Log(strings.TrimRight(l, "\n"))
		}
	}
	return string(out)
}

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

// TestConformance is the suite of providers on rxe0. Over IPv6 it is shorter: what a queue pair does once it is connected
// does not depend on the family.
func TestConformance(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	t.Run("IPv4", func(t *testing.T) {
		runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-test.run=^TestConformance$")
	})
	t.Run("IPv6", func(t *testing.T) {
		which := "^TestConformance$/^(Device|Data|CM|Many|UD|Multicast)$"
		if long {
			which = "^TestConformance$"
		}
		runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V6.String(), "-test.run="+which)
	})
}

// TestChecked repeats the fast path under all checks of cgo's rules for pointers, under the race detector, and
// under the address sanitizer, which watches the C core too.
func TestChecked(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	const run = "-test.run=^TestConformance$/^(Data|Queue|Notify)$"
	t.Run("cgocheck2", func(t *testing.T) {
		t.Setenv("GOEXPERIMENT", "cgocheck2")
		prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest,cgocheck2") // the second tag tells builds apart
		require.NoError(t, err)
		which := "-test.run=^TestConformance$/^Data$"
		if long {
			which = run
		}
		runTests(t, g, 10*time.Minute, []string{"GODEBUG=cgocheck=1"}, prog, "-addr="+p.Near.V4.String(), which)
	})
	for _, flag := range []string{"-race", "-asan"} {
		t.Run(flag[1:], func(t *testing.T) {
			prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest", flag)
			require.NoError(t, err)
			runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), run)
		})
	}
}

// TestDevice has what streams on rxe0 must stand: signals, programs that are started, bulk.
func TestDevice(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-device="+p.Near.RDMA,
		"-test.run=^(TestSRQ|TestOverrun|TestCloseAtOnce|TestSignals|TestExec|TestBulk|TestLatency)$")
}

// TestIdle keeps many connections between two processes; 2,000 of them are more than the shared guest has memory for.
func TestIdle(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	n := 300
	if long {
		n = 2000
		g = vmtest.Start(t, vm.Config{MemoryMB: 6144})
		var err error
		p, err = g.AddPeer(t.Context(), "peer", 1500)
		require.NoError(t, err)
	}
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	echo, err := g.Build(t.Context(), echoPkg)
	require.NoError(t, err)
	runTests(t, g, 10*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-echo="+echo, "-idle="+strconv.Itoa(n), "-test.run=^TestIdle$")
}

// TestAsync delivers each asynchronous event to the provider, with connections on rxe0, also under the address sanitizer: nothing is
// used that was given up with a device, nor forgotten.
func TestAsync(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	for _, flag := range []string{"-race", "-asan"} {
		prog, err := g.BuildTest(t.Context(), corePkg, "-tags=guest", flag)
		require.NoError(t, err)
		runTests(t, g, 3*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-test.run=^TestAsyncEvents$")
	}
}

// TestRemoval takes the device away, in a guest of its own.
func TestRemoval(t *testing.T) {
	g := vmtest.Start(t, vm.Config{})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	prog, err := g.BuildTest(t.Context(), guestPkg, "-tags=guest")
	require.NoError(t, err)
	runTests(t, g, 3*time.Minute, nil, prog, "-addr="+p.Near.V4.String(), "-device="+p.Near.RDMA, "-iface="+p.Near.Interface, "-test.run=^TestRemoval$")
}

// TestRDMANet runs package rdmanet's tests of what no layer above tells providers apart by, on rxe0.
func TestRDMANet(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog, err := g.BuildTest(t.Context(), rdmanetPkg)
	require.NoError(t, err)
	env := []string{"RDMANET_DEVICE=rdmacore", "RDMANET_TEST_ADDRS=" + p.Near.V4.String() + "," + p.Near.V6.String()}
	runTests(t, g, 10*time.Minute, env, prog, "-test.short", "-test.run=^TestMatrix$")
}

// run runs a program in the guest.
func run(t *testing.T, g *vm.Guest, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := g.Command(ctx, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%q: %s", args, out)
	return string(out)
}

// TestMissing takes away, one at a time, what a device needs: the program starts and says what is missing.
func TestMissing(t *testing.T) {
	g := vmtest.Start(t, vm.Config{})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	prog, err := g.Build(t.Context(), devicesPkg)
	require.NoError(t, err)
	addr := p.Near.V4.String()
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	const good = "listen: <nil>\nresolve: <nil>\ndevice: rxe0\n"

	require.Contains(t, run(t, g, prog, "-addr", addr), "rxe0: usable")
	require.Contains(t, run(t, g, prog, "-addr", addr), good)
	for _, c := range []struct {
		name       string
		away, back string   // scripts
		as         []string // what the program is run by
		args       []string
		want       []string
	}{
		{
			name: "libibverbs", away: "mkdir /run/away; mv /usr/lib/x86_64-linux-gnu/libibverbs.so.1* /run/away",
			back: "mv /run/away/* /usr/lib/x86_64-linux-gnu; rmdir /run/away",
			want: []string{"rxe0: rdmacore: no RDMA device serves the address: libibverbs.so.1: cannot open shared object file", "apt-get install libibverbs1 ibverbs-providers librdmacm1"},
		},
		{
			name: "librdmacm", away: "mkdir /run/away; mv /usr/lib/x86_64-linux-gnu/librdmacm.so.1* /run/away",
			back: "mv /run/away/* /usr/lib/x86_64-linux-gnu; rmdir /run/away",
			want: []string{"librdmacm.so.1: cannot open shared object file", "apt-get install librdmacm1"},
		},
		{
			name: "driver in user space", away: "mv /etc/libibverbs.d /run/away", back: "mv /run/away /etc/libibverbs.d",
			want: []string{"libibverbs has no driver for rxe0: apt-get install ibverbs-providers"},
		},
		{
			// Else the kernel loads it again when it is asked for. ib_uverbs cannot be taken from rdma_rxe.
			name: "module rdma_ucm", away: "echo install rdma_ucm /bin/false >/etc/modprobe.d/away.conf; modprobe -r rdma_ucm",
			back: "rm /etc/modprobe.d/away.conf; modprobe rdma_ucm",
			want: []string{"rxe0: usable", "/dev/infiniband/rdma_cm does not exist: modprobe rdma_ucm"},
		},
		{
			name: "character device", away: "mv /dev/infiniband/uverbs0 /dev/away", back: "mv /dev/away /dev/infiniband/uverbs0",
			want: []string{"/dev/infiniband/uverbs0 does not exist: a container needs it passed: docker run --device=/dev/infiniband"},
		},
		{
			name: "permission", away: "chmod 600 /dev/infiniband/uverbs0", back: "chmod 666 /dev/infiniband/uverbs0", as: nobody,
			want: []string{"/dev/infiniband/uverbs0: no permission for user 65534: join the group that owns it (often rdma), or chmod 0666"},
		},
		{
			name: "permission for rdma_cm", away: "chmod 600 /dev/infiniband/rdma_cm", back: "chmod 666 /dev/infiniband/rdma_cm", as: nobody,
			want: []string{"rxe0: usable", "/dev/infiniband/rdma_cm: no permission for user 65534"},
		},
		{
			name: "device cgroup",
			away: "mkdir -p /run/dev; mount -t cgroup -o devices none /run/dev; mkdir /run/dev/x; echo 'c 231:* rwm' >/run/dev/x/devices.deny",
			back: "rmdir /run/dev/x; umount /run/dev",
			as:   []string{"sh", "-c", `echo $$ >/run/dev/x/tasks; exec "$@"`, "sh"},
			want: []string{"/dev/infiniband/uverbs0: the cgroup of this container or service forbids it"},
		},
		{
			name: "locked memory", away: "true", back: "true", args: []string{"-register", "2097152"},
			as: append([]string{"prlimit", "--memlock=1048576"}, nobody...),
			want: []string{"rxe0: usable", "register: rdmacore: registering 2097152 bytes on rxe0: 2097152 bytes of locked memory are needed beside ",
				"in use, and RLIMIT_MEMLOCK is 1048576: ulimit -l unlimited"},
		},
		{
			name: "one of two devices",
			away: "ip link add v8 type veth peer name v9; ip link set v8 up; ip link set v9 up; rdma link add rxe8 type rxe netdev v8; sleep 1; rm /dev/infiniband/uverbs1",
			back: "rdma link del rxe8; ip link del v8",
			want: []string{"rxe0: usable", "rxe8: rdmacore: no RDMA device serves the address: /dev/infiniband/uverbs1 does not exist", good},
		},
		{
			name: "device", away: "rdma link del rxe0", back: "rdma link add rxe0 type rxe netdev " + p.Near.Interface,
			want: []string{"listen: rdmacore: no RDMA device serves the address: this host has no RDMA device (for Soft-RoCE: modprobe rdma_rxe"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := g.Script(t.Context(), c.away)
			require.NoError(t, err, "%s", out)
			defer func() {
				out, err := g.Script(context.Background(), c.back)
				require.NoError(t, err, "%s", out)
				require.Eventually(t, func() bool { return strings.Contains(run(t, g, prog, "-addr", addr), good) },
					time.Minute, time.Second, "it is back")
			}()
			got := run(t, g, append(append(append([]string(nil), c.as...), prog, "-addr", addr), c.args...)...)
			for _, w := range c.want {
				assert.Contains(t, got, w)
			}
		})
	}
}

// TestWithoutHeaders builds as on a machine without the headers: the program runs, and says what to install.
func TestWithoutHeaders(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	for name, c := range map[string]struct{ env, want string }{
		"no headers": {"CGO_CFLAGS=-DRDMACORE_NO_HEADERS", "apt-get install libibverbs-dev librdmacm-dev, then build again with go build -a"},
		"no cgo":     {"CGO_ENABLED=0", "built without cgo: install gcc, libibverbs-dev and librdmacm-dev, then CGO_ENABLED=1 go build -a"},
	} {
		t.Run(name, func(t *testing.T) {
			prog := filepath.Join(g.Share, strings.ReplaceAll(name, " ", "-"))
			cmd := exec.CommandContext(t.Context(), "go", "build", "-o", prog, devicesPkg)
			cmd.Env = append(os.Environ(), c.env)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			got := run(t, g, g.SharePath(filepath.Base(prog)), "-addr", p.Near.V4.String())
			assert.Equal(t, 3, bytes.Count([]byte(got), []byte(c.want)), "of the device, listening and dialing: %s", got)
		})
	}
}
