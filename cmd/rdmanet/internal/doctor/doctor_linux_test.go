package doctor

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
)

func TestMain(m *testing.M) {
	testnet.Main()
	os.Exit(m.Run())
}

func fakeRoot(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	return root
}

// A host with a device, and nothing else: the first fault is the one that others stand on.
func TestOrder(t *testing.T) {
	root := fakeRoot(t, map[string]string{
		"sys/class/infiniband/rxe0/node_type":      "1: CA\n",
		"sys/class/infiniband/rxe0/ports/1/state":  "4: ACTIVE\n",
		"sys/class/infiniband_verbs/uverbs0/ibdev": "rxe0\n",
		"sys/module/ib_uverbs/version":             "1",
	})
	r := Run(t.Context(), Config{Devices: "rdmacore", Root: root})
	assert.False(t, r.Good())
	require.NotNil(t, r.First)
	if r.First.Name == "build" || r.First.Name == "libraries" {
		assert.Contains(t, r.First.Fix, "install")
	} else {
		assert.Equal(t, "/dev/infiniband", r.First.Name)
		assert.Equal(t, "rxe0", r.First.Device)
		assert.Contains(t, r.First.Fix, "docker run --device=/dev/infiniband")
	}
	// Without it in the list, the embedded device is all that counts.
	r = Run(t.Context(), Config{Devices: "softroce", Root: root})
	assert.True(t, r.Good())
	assert.Nil(t, r.First)
}

func TestWants(t *testing.T) {
	for _, c := range []struct {
		list                  string
		core, rxe0, soft, shm bool
	}{
		{"", true, true, true, true},
		{"rdmacore", true, true, false, false},
		{"softroce", false, false, true, false},
		{"softroce0", false, false, true, false},
		{"rxe0", true, true, false, false},
		{"mlx5_0/1, softroce", true, false, true, false},
		{"shm", false, false, false, true},
		{"shm0", false, false, false, true},
		{"shm,rdmacore", true, true, false, true},
	} {
		d := &doctor{Config: Config{Devices: c.list}}
		assert.Equal(t, c.core, d.wants("rdmacore", ""), c.list)
		assert.Equal(t, c.rxe0, d.wants("rdmacore", "rxe0"), c.list)
		assert.Equal(t, c.soft, d.wants("softroce", softroceDevice), c.list)
		assert.Equal(t, c.shm, d.wants("shm", shmDevice), c.list)
	}
}

func TestLinks(t *testing.T) {
	lo := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
	for name, c := range map[string]struct {
		port   verbs.PortInfo
		usable bool
		status Status
		fix    string
	}{
		"down":               {verbs.PortInfo{Num: 1, State: "DOWN", Interface: "eth7"}, false, Failed, "ip link set eth7 up"},
		"no interface here":  {verbs.PortInfo{Num: 1, State: "ACTIVE"}, false, Failed, "--network=host"},
		"elsewhere":          {verbs.PortInfo{Num: 1, State: "ACTIVE", Interface: "eth7", GIDs: lo}, false, Failed, "network namespace"},
		"in order":           {verbs.PortInfo{Num: 1, State: "ACTIVE", Interface: "lo", GIDs: lo}, true, OK, ""},
		"one is not served":  {verbs.PortInfo{Num: 1, State: "ACTIVE", Interface: "lo", GIDs: lo[:1]}, true, Note, ""},
		"none is served":     {verbs.PortInfo{Num: 1, State: "ACTIVE", Interface: "lo"}, false, Failed, "ip link set lo down && ip link set lo up"},
		"InfiniBand's table": {verbs.PortInfo{Num: 1, State: "ACTIVE", GIDs: lo}, true, OK, ""},
	} {
		d := &doctor{core: &rdmacore.Inspection{}}
		dev := &rdmacore.DeviceInspection{DeviceInfo: verbs.DeviceInfo{Name: "rxe0"}}
		assert.Equal(t, c.usable, d.link(dev, &c.port), name)
		last := d.report.Checks[len(d.report.Checks)-1]
		assert.Equal(t, c.status, last.Status, "%s: %+v", name, last)
		assert.Contains(t, last.Fix, c.fix, name)
		assert.Equal(t, last.Status == Failed, last.Fix != "", name)
	}
}

func TestMemlock(t *testing.T) {
	for want, m := range map[Status]rdmacore.Memlock{
		Failed:  {Limited: true, Limit: 65536, Fix: "raise it"},
		Warning: {Limited: true, Limit: 8 << 20, Used: 4 << 20, Fix: "raise it"},
		OK:      {Limit: 65536},
	} {
		d := &doctor{core: &rdmacore.Inspection{Memlock: m}}
		d.memlock()
		assert.Equal(t, want, d.report.Checks[0].Status, "%+v", d.report.Checks[0])
	}
}

func TestContainerSign(t *testing.T) {
	none := func(string) string { return "" }
	assert.Empty(t, containerSign(fakeRoot(t, nil), none))
	assert.Equal(t, "/.dockerenv", containerSign(fakeRoot(t, map[string]string{".dockerenv": ""}), none))
	assert.Equal(t, "/run/.containerenv", containerSign(fakeRoot(t, map[string]string{"run/.containerenv": ""}), none))
	assert.Equal(t, "container=lxc", containerSign(fakeRoot(t, nil), func(k string) string {
		return map[string]string{"container": "lxc"}[k]
	}))
}
