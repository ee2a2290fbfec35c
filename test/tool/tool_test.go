// Package tool tests cmd/rdmanet in a guest with Soft-RoCE: beside rping of librdmacm, on rxe0 and on softroce, and its doctor
// where something is missing.
package tool

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

var built sync.Map // by guest

// tool is the program in the guest. It is of a module of its own, which this one does not know.
func tool(t *testing.T, g *vm.Guest) string {
	t.Helper()
	build, _ := built.LoadOrStore(g, sync.OnceValues(func() (string, error) {
		out, err := exec.Command("go", "build", "-C", "../../cmd/rdmanet", "-o", filepath.Join(g.Share, "rdmanet"), ".").CombinedOutput()
		return string(out), err
	}))
	out, err := build.(func() (string, error))()
	require.NoError(t, err, out)
	return g.SharePath("rdmanet")
}

var lastPort atomic.Int32

// port returns one that no other test uses: those of dead programs are not free at once.
func port() string { return strconv.Itoa(int(18000 + lastPort.Add(1))) }

// TestRping has rping at either end, and the tool on the device rxe0, which is rping's too, and on softroce, which is on a wire.
func TestRping(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	prog := tool(t, g)
	ctx, cancel := context.WithTimeout(t.Context(), 2*vmtest.Patience)
	defer cancel()
	for name, c := range map[string]struct {
		netns, device, own, show string
	}{
		"rdmacore": {"", "rdmacore", p.Near.V4.String(), "on " + p.Near.RDMA + " (rdmacore)"},
		"softroce": {p.Netns, "softroce", p.Far.V4.String(), "on softroce0 (softroce)"},
	} {
		t.Run(name, func(t *testing.T) {
			ping := func(args ...string) *vmtest.Process {
				return vmtest.Run(t, g.Command(ctx, prog, append([]string{"ping", "-d", c.device}, args...)...).In(c.netns))
			}
			for _, persistent := range []bool{false, true} {
				at := port()
				args := []string{"-oL", "rping", "-s", "-v", "-a", p.Near.V4.String(), "-p", at, "-S", "3000"}
				if persistent {
					args = append(args, "-P")
				}
				s := vmtest.Run(t, g.Command(ctx, "stdbuf", args...))
				n, err := strconv.Atoi(at)
				require.NoError(t, err)
				require.NoError(t, g.WaitListen(ctx, n))
				out := ping("-c", "5", "-i", "10ms", "-s", "3000", p.Near.V4.String()+":"+at).Succeeds()
				assert.Contains(t, out, c.show)
				assert.Contains(t, out, "5 pings, 5 came back")
				if persistent {
					assert.Contains(t, ping("-c", "5", "-i", "0", "-s", "64", p.Near.V4.String()+":"+at).Succeeds(), "5 came back")
					s.Kill()
				}
			}
			at := port()
			s := ping("--listen", c.own+":"+at)
			s.Says("listening on " + c.own + ":" + at)
			for _, size := range []string{"64", "60000"} {
				out, err := vmtest.Run(t, g.Command(ctx, "rping", "-c", "-V", "-v", "-C", "5", "-S", size, "-a", c.own, "-p", at)).Ends()
				require.NoError(t, err)
				assert.Equal(t, 5, strings.Count(out, "ping data: rdma-ping-"))
			}
			s.Says(": 5 pings")
			s.Kill()
		})
	}
}

type check struct{ Name, Device, Status, Detail, Fix string }

type report struct {
	Works  []string
	Checks []check
	First  *check
}

// TestDoctor takes away, one at a time, what a device needs. The doctor names it first, and what to do.
func TestDoctor(t *testing.T) {
	g := vmtest.Start(t, vm.Config{})
	p, err := g.AddPeer(t.Context(), "peer", 1500)
	require.NoError(t, err)
	prog := tool(t, g)
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	examine := func(as []string, args ...string) (r report, status int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), vmtest.Patience)
		defer cancel()
		all := append(append(append([]string(nil), as...), prog, "doctor", "--json"), args...)
		out, err := g.Command(ctx, all[0], all[1:]...).Output()
		if exit := new(vm.ExitError); err != nil {
			require.ErrorAs(t, err, &exit, "%s", out)
			status = exit.Code
		}
		require.NoError(t, json.Unmarshal(out, &r), "%s", out)
		return r, status
	}
	works := func() bool {
		r, status := examine(nil)
		return status == 0 && slices.Equal(r.Works, []string{"rxe0", "shm"})
	}
	require.True(t, works())
	r, status := examine(nil, "-d", "softroce")
	assert.Equal(t, 1, status, "rdma_rxe has its port: %+v", r)

	const lib = "/usr/lib/x86_64-linux-gnu"
	for _, c := range []struct {
		name, away, back string
		as               []string
		first, device    string // the check
		fix              string
	}{
		{
			name: "device", away: "rdma link del rxe0", back: "rdma link add rxe0 type rxe netdev " + p.Near.Interface,
			first: "RDMA devices", fix: "rdma link add rxe0 type rxe",
		},
		{
			name: "libibverbs", away: "mkdir /run/away; mv " + lib + "/libibverbs.so.1* /run/away", back: "mv /run/away/* " + lib + "; rmdir /run/away",
			first: "libraries", fix: "apt-get install libibverbs1 ibverbs-providers librdmacm1",
		},
		{
			name: "driver in user space", away: "mv /etc/libibverbs.d /run/away", back: "mv /run/away /etc/libibverbs.d",
			first: "device opens", device: "rxe0", fix: "apt-get install ibverbs-providers",
		},
		{
			name: "module rdma_ucm", away: "echo install rdma_ucm /bin/false >/etc/modprobe.d/away.conf; modprobe -r rdma_ucm",
			back:  "rm /etc/modprobe.d/away.conf; modprobe rdma_ucm",
			first: "/dev/infiniband", device: "rdma_cm", fix: "modprobe rdma_ucm",
		},
		{
			name: "character device", away: "mv /dev/infiniband/uverbs0 /dev/away", back: "mv /dev/away /dev/infiniband/uverbs0",
			first: "/dev/infiniband", device: "rxe0", fix: "docker run --device=/dev/infiniband",
		},
		{
			name: "permission", away: "chmod 600 /dev/infiniband/uverbs0", back: "chmod 666 /dev/infiniband/uverbs0", as: nobody,
			first: "/dev/infiniband", device: "rxe0", fix: "chmod 0666 /dev/infiniband/uverbs0",
		},
		{
			name: "device cgroup",
			away: "mkdir -p /run/dev; mount -t cgroup -o devices none /run/dev; mkdir /run/dev/x; echo 'c 231:* rwm' >/run/dev/x/devices.deny",
			back: "rmdir /run/dev/x; umount /run/dev",
			as:   []string{"sh", "-c", `echo $$ >/run/dev/x/tasks; exec "$@"`, "sh"}, first: "/dev/infiniband", device: "rxe0",
			fix: "DeviceAllow=char-infiniband_* in systemd",
		},
		{
			name: "locked memory", away: "true", back: "true", as: append([]string{"prlimit", "--memlock=1048576"}, nobody...),
			first: "locked memory", fix: "ulimit -l unlimited",
		},
		{
			name: "link", away: "ip link set " + p.Near.Interface + " down", back: "ip link set " + p.Near.Interface + " up",
			first: "link", device: "rxe0/1", fix: "ip link set " + p.Near.Interface + " up",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := g.Script(t.Context(), c.away)
			require.NoError(t, err, "%s", out)
			defer func() {
				out, err := g.Script(context.Background(), c.back)
				require.NoError(t, err, "%s", out)
			}()
			r, status := examine(c.as, "-d", "rdmacore")
			assert.Equal(t, 1, status)
			assert.Empty(t, r.Works)
			require.NotNil(t, r.First, "%+v", r)
			assert.Equal(t, c.first, r.First.Name)
			assert.Equal(t, c.device, r.First.Device)
			assert.Contains(t, r.First.Fix, c.fix)
			assert.Equal(t, "failed", r.First.Status)
		})
	}
	require.Eventually(t, works, 2*time.Minute, time.Second, "all is back")
}
