package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// fakeRoot makes a root directory with the given files.
func fakeRoot(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	return root
}

// twoDevices are a RoCE device and an iWARP one, of which only the first has a character device.
var twoDevices = map[string]string{
	"sys/class/infiniband/rxe0/node_type":                 "1: CA\n",
	"sys/class/infiniband/rxe0/ports/1/state":             "4: ACTIVE\n",
	"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0": "eth1\n",
	"sys/class/infiniband/iw0/node_type":                  "4: RNIC\n",
	"sys/class/infiniband/iw0/ports/2/state":              "1: DOWN\n",
	"sys/class/infiniband/iw0/ports/1/state":              "4: ACTIVE\n",
	"sys/class/infiniband_verbs/uverbs0/ibdev":            "rxe0\n",
	"sys/class/infiniband_verbs/abi_version":              "6\n",
}

func TestNoDevices(t *testing.T) {
	for what, p := range map[string]*Provider{
		"no sysfs":   New(&Config{Root: fakeRoot(t, nil)}),
		"empty list": New(&Config{Root: fakeRoot(t, map[string]string{"sys/class/infiniband_verbs/abi_version": "6"})}),
	} {
		infos, err := p.Devices()
		require.NoError(t, err, what)
		require.Empty(t, infos, what)
		checkNone(t, p, "", "this host has no RDMA device (for Soft-RoCE: modprobe rdma_rxe")
		checkNone(t, p, "mlx5_0", `no device "mlx5_0": this host has no RDMA device`)
	}
}

// checkNone wants every way to a device to fail with this cause.
func checkNone(t *testing.T, p *Provider, device, cause string) {
	t.Helper()
	a := netip.MustParseAddrPort("10.1.2.3:80")
	_, err := p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Device: device, Remote: a})
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), cause)
	_, err = p.Listen(context.Background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Device: device, Local: a})
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), cause)
	if device != "" {
		_, err = p.Open(device)
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		assert.Contains(t, err.Error(), cause)
	}
}

// TestUnusableLibraries: devices are listed all the same, with what is missing.
func TestUnusableLibraries(t *testing.T) {
	p := New(&Config{Root: fakeRoot(t, twoDevices)})
	why := errors.New("the libraries are on holiday")
	p.whyNot = func() error { return why }
	infos, err := p.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 2)
	for i, want := range []verbs.DeviceInfo{
		{Name: "iw0", Transport: verbs.TransportIWARP, Ports: []verbs.PortInfo{{Num: 1, State: "ACTIVE"}, {Num: 2, State: "DOWN"}}},
		{Name: "rxe0", Transport: verbs.TransportIB, Ports: []verbs.PortInfo{{Num: 1, State: "ACTIVE", Interface: "eth1"}}},
	} {
		got := infos[i]
		require.ErrorIs(t, got.Unusable, why)
		require.ErrorIs(t, got.Unusable, verbs.ErrNoDevice)
		got.Unusable = nil
		want.Provider = "rdmacore"
		require.Equal(t, want, got)
	}
	checkNone(t, p, "", "the libraries are on holiday")
	checkNone(t, p, "rxe0", "the libraries are on holiday")
	checkNone(t, p, "rxe7", `no device "rxe7", only ["iw0" "rxe0"]`)
	p.whyNot = func() error { return nil }
	_, err = p.Resolve(context.Background(), &verbs.CMIDAttr{Device: "iw0", Port: 3, PortSpace: verbs.PSTCP})
	require.ErrorContains(t, err, "device iw0 has no port 3")
}

// TestCannotOpen: each reason why a device cannot be opened says what to do.
func TestCannotOpen(t *testing.T) {
	root := fakeRoot(t, twoDevices)
	h := host{root: root}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"rxe9", syscall.ENODEV, "the kernel has no device rxe9 (any more)"},
		{"iw0", syscall.ENODEV, "the kernel offers no verbs for iw0 to programs: modprobe -a ib_uverbs rdma_ucm"},
		{"rxe0", syscall.ENOENT, "/dev/infiniband/uverbs0 does not exist: a container needs it passed: docker run --device=/dev/infiniband"},
	} {
		err := h.cannotOpen(c.name, c.err)
		require.ErrorContains(t, err, c.want)
		require.ErrorIs(t, err, c.err)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/infiniband"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(root, "dev/infiniband/uverbs0"), nil, 0o666))
	require.ErrorContains(t, h.cannotOpen("rxe0", errNoDriver), "libibverbs has no driver for rxe0: apt-get install ibverbs-providers")
	require.ErrorContains(t, h.cannotOpen("rxe0", syscall.EAGAIN), "rdma.max")
	require.ErrorIs(t, h.cannotOpen("rxe0", syscall.EMFILE), syscall.EMFILE)
}

// TestFind: a device is described as far as the file system tells, and nothing is opened by way of the libraries.
func TestFind(t *testing.T) {
	root := fakeRoot(t, twoDevices)
	p := New(&Config{Root: root})
	p.whyNot = func() error { return nil }
	_, ok := p.Find("rxe1")
	require.False(t, ok)
	info, ok := p.Find("rxe0")
	require.True(t, ok)
	require.ErrorIs(t, info.Unusable, verbs.ErrNoDevice)
	require.ErrorContains(t, info.Unusable, "/dev/infiniband/uverbs0 does not exist")
	info, _ = p.Find("iw0")
	require.ErrorContains(t, info.Unusable, "the kernel offers no verbs for iw0")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/infiniband"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(root, "dev/infiniband/uverbs0"), nil, 0o666))
	info, _ = p.Find("rxe0")
	require.Equal(t, verbs.DeviceInfo{
		Name: "rxe0", Provider: "rdmacore", Transport: verbs.TransportIB,
		Ports: []verbs.PortInfo{{Num: 1, State: "ACTIVE", Interface: "eth1"}},
	}, info)
	p.whyNot = func() error { return errors.New("the libraries are on holiday") }
	info, _ = p.Find("rxe0")
	require.ErrorContains(t, info.Unusable, "the libraries are on holiday")
}

func TestExplainNode(t *testing.T) {
	for _, c := range []struct {
		node string
		err  error
		want string
	}{
		{"uverbs1", syscall.EACCES, "no permission for user " + fmt.Sprint(os.Getuid()) + ": join the group that owns it (often rdma), or chmod 0666 /dev/infiniband/uverbs1"},
		{"uverbs1", syscall.EPERM, "the cgroup of this container or service forbids it: docker run --device=/dev/infiniband"},
		{"uverbs1", syscall.ENXIO, "left over from a device or module that is gone: modprobe -a ib_uverbs rdma_ucm"},
		{"uverbs1", syscall.ENOENT, "/dev/infiniband/uverbs1 does not exist: a container needs it passed"},
		{"rdma_cm", syscall.ENOENT, "/dev/infiniband/rdma_cm does not exist: modprobe rdma_ucm"},
		{"uverbs1", syscall.EMFILE, "/dev/infiniband/uverbs1: too many open files"},
	} {
		err := explainNode(c.node, &fs.PathError{Op: "open", Path: "x", Err: c.err})
		require.ErrorContains(t, err, c.want)
		require.ErrorIs(t, err, c.err)
		require.NotContains(t, err.Error(), "open x", "what was opened is said once")
	}
}

// TestCannotManage: the connection manager has a device of its own.
func TestCannotManage(t *testing.T) {
	root := fakeRoot(t, twoDevices)
	h := host{root: root}
	require.ErrorContains(t, h.cannotManage(syscall.ENODEV), "/dev/infiniband/rdma_cm does not exist: modprobe rdma_ucm")
	require.ErrorIs(t, host{root: fakeRoot(t, nil)}.cannotManage(syscall.ENODEV), errNoDevices)
}

func TestMemlock(t *testing.T) {
	h := host{}
	other := errors.New("other")
	require.Equal(t, other, h.memlock(1<<20, other))
	limit, ok := memlockLimit()
	if !ok {
		require.Equal(t, error(syscall.ENOMEM), h.memlock(math.MaxInt32, syscall.ENOMEM), "there is no limit to blame")
		return
	}
	require.Equal(t, error(syscall.ENOMEM), h.memlock(1, syscall.ENOMEM), "the limit is not to blame")
	err := h.memlock(math.MaxInt32, syscall.ENOMEM)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, fmt.Sprintf("2147483647 bytes of locked memory are needed beside %d in use, and RLIMIT_MEMLOCK is %d: ulimit -l unlimited",
		h.status("VmPin:"), limit))
}

func TestStatus(t *testing.T) {
	h := host{root: fakeRoot(t, map[string]string{"proc/self/status": "Name:\tx\nVmLck:\t       4 kB\nVmPin:\t    2048 kB\nVmHWM:\t1 kB\n"})}
	require.EqualValues(t, 2<<20, h.status("VmPin:"))
	require.Zero(t, h.status("VmNone:"))
	require.Zero(t, host{root: t.TempDir()}.status("VmPin:"))
}
