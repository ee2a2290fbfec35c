package cm

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

func testManager() *Manager {
	return &Manager{
		Root: noRoot, Getenv: noEnv,
		Providers: []verbs.Provider{
			&fakeProvider{name: RDMACore, infos: []verbs.DeviceInfo{
				device(RDMACore, "mlx5_0"),
				{Name: "mlx5_1", Provider: RDMACore, Unusable: errors.New("no permission for /dev/infiniband/uverbs1")},
			}},
			&fakeProvider{name: SoftRoCE, infos: []verbs.DeviceInfo{device(SoftRoCE, "softroce0", "127.0.0.1", "::1")}},
		},
	}
}

func TestDeviceListSyntax(t *testing.T) {
	m := testManager()
	for list, element := range map[string]string{
		" ":                  "",
		",":                  "",
		"softroce,":          "",
		"shm,,softroce":      "",
		"mlx5_0/":            "mlx5_0/",
		"mlx5_0/0":           "mlx5_0/0",
		"mlx5_0/256":         "mlx5_0/256",
		"mlx5_0/x":           "mlx5_0/x",
		"mlx5_0/+1":          "mlx5_0/+1",
		"mlx5_0/1/2":         "mlx5_0/1/2",
		"/1":                 "/1",
		"softroce/1":         "softroce/1",
		"shm/1":              "shm/1",
		"softroce;rdmacore":  "",
		"softroce rdmacore":  "softroce rdmacore",
		"softroce:1":         "softroce:1",
		"rdmacore, mlx5_0/y": "mlx5_0/y",
	} {
		_, err := m.candidates(list)
		if list == "softroce;rdmacore" { // a strange name, but a name
			require.NoError(t, err)
			continue
		}
		var bad *DeviceListError
		require.ErrorAs(t, err, &bad, list)
		assert.Equal(t, element, bad.Element, list)
		assert.Equal(t, []string{"rdmacore", "softroce", "mlx5_0", "mlx5_1", "softroce0"}, bad.Have)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.False(t, bad.Env)
	}
}

func TestDeviceListElements(t *testing.T) {
	m := testManager()
	cs, err := m.candidates("shm, mlx5_0/1,mlx5_0/2,mlx5_1,softroce0,softroce,mlx9_0")
	require.NoError(t, err)
	require.Len(t, cs, 7)
	type row struct {
		provider, device string
		port             int
		err              string
	}
	want := []row{
		{"", "", 0, "not part of this build"},
		{"rdmacore", "mlx5_0", 1, ""},
		{"rdmacore", "mlx5_0", 2, "device mlx5_0 has no port 2"},
		{"rdmacore", "mlx5_1", 0, "no permission for /dev/infiniband/uverbs1"},
		{"softroce", "softroce0", 0, ""},
		{"softroce", "", 0, ""},
		{"", "mlx9_0", 0, "no device of that name: there are rdmacore, softroce, mlx5_0, mlx5_1, softroce0"},
	}
	for i, w := range want {
		c := cs[i]
		got := row{c.providerName(), c.device, c.port, ""}
		if c.err != nil {
			got.err = c.err.Error()
		}
		assert.Equal(t, w, got)
		assert.True(t, c.named)
	}
}

// finder must not be asked for all its devices.
type finder struct {
	*fakeProvider
	t *testing.T
}

func (f finder) Devices() ([]verbs.DeviceInfo, error) {
	f.t.Error("all devices were listed")
	return nil, nil
}

func (f finder) Find(name string) (info verbs.DeviceInfo, ok bool) {
	for _, info := range f.infos {
		if info.Name == name {
			return info, true
		}
	}
	return info, false
}

// TestNamedDevice: naming a device does not take a look at others, which may mean to open them.
func TestNamedDevice(t *testing.T) {
	m := testManager()
	m.Providers[0] = finder{m.Providers[0].(*fakeProvider), t}
	cs, err := m.candidates("mlx5_0/1,mlx5_1,softroce0")
	require.NoError(t, err)
	require.Len(t, cs, 3)
	assert.Equal(t, "rdmacore", cs[0].providerName())
	require.NoError(t, cs[0].err)
	require.ErrorContains(t, cs[1].err, "no permission")
	assert.Equal(t, "softroce", cs[2].providerName())
}

func TestDeviceEnvironment(t *testing.T) {
	m := testManager()
	m.Getenv = func(key string) string {
		assert.Equal(t, "RDMANET_DEVICE", key)
		return "softroce0"
	}
	cs, err := m.candidates("")
	require.NoError(t, err)
	require.Len(t, cs, 1)
	assert.Equal(t, "softroce0", cs[0].device)
	assert.False(t, cs[0].implied(), "a device of the environment is named")

	cs, err = m.candidates("rdmacore")
	require.NoError(t, err)
	require.Len(t, cs, 1, "the environment never stands in for an explicit list")
	assert.Equal(t, "rdmacore", cs[0].name)

	m.Getenv = func(string) string { return "softroce/7" }
	_, err = m.candidates("")
	var bad *DeviceListError
	require.ErrorAs(t, err, &bad)
	assert.True(t, bad.Env)
	assert.Contains(t, err.Error(), `RDMANET_DEVICE "softroce/7"`)

	m.Getenv = noEnv
	cs, err = m.candidates("")
	require.NoError(t, err)
	require.Len(t, cs, len(Known))
	for i, c := range cs {
		assert.Equal(t, Known[i], c.name)
		assert.True(t, c.implied())
	}
}

func TestDevices(t *testing.T) {
	m := testManager()
	m.Providers = append(m.Providers, &fakeProvider{name: "broken", infoErr: errors.New("sysfs is not mounted")})
	ds := m.Devices()
	require.Len(t, ds, 4)
	assert.Equal(t, "broken", ds[3].Name)
	assert.EqualError(t, ds[3].Unusable, "sysfs is not mounted")
}

func FuzzDeviceList(f *testing.F) {
	for _, s := range []string{"", "softroce", "shm,rdmacore", "mlx5_0/1", "a/b/c", ",", "\x00", "softroce0/1,é"} {
		f.Add(s)
	}
	m := testManager()
	f.Fuzz(func(t *testing.T, list string) {
		cs, err := m.candidates(list)
		if (err == nil) == (cs == nil) {
			t.Fatalf("%d candidates and error %v", len(cs), err)
		}
		for _, c := range cs {
			if (c.p == nil) && c.err == nil {
				t.Fatalf("candidate %q: neither provider nor error", c.name)
			}
		}
	})
}
