package cm

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// sysfs makes a root directory with the given files.
func sysfs(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	return root
}

func softOnly(root string) *Manager {
	return &Manager{Root: root, Getenv: noEnv, Providers: []verbs.Provider{
		&fakeProvider{name: SoftRoCE, infos: []verbs.DeviceInfo{device(SoftRoCE, "softroce0", "127.0.0.1")}, next: 7000, step: 1},
	}}
}

// refused tells why softroce is not used for the loopback interface or all interfaces.
func checkRefused(t *testing.T, m *Manager, cause string) {
	t.Helper()
	_, err := m.Resolve(t.Context(), "", dial("127.0.0.1:80"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), cause)
	assert.Contains(t, err.Error(), "rdmacore, which would use the device, is not part of this build")

	for _, local := range []string{"0.0.0.0:0", "[::]:0", "127.0.0.1:0"} {
		_, err = m.Listen(t.Context(), "", listenAt(local))
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		assert.Contains(t, err.Error(), cause)
	}
	_, err = m.LookupLocal(netip.MustParseAddr("127.0.0.1"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), cause)

	// Naming it, or its device, forces it.
	checkServed(t, m, "softroce")
	checkServed(t, m, "softroce0")
	checkServed(t, m, "rdmacore,softroce")
	m.Getenv = func(string) string { return "softroce" }
	checkServed(t, m, "")
	m.Getenv = noEnv
}

func checkServed(t *testing.T, m *Manager, devices string) {
	t.Helper()
	_, err := m.Resolve(t.Context(), devices, dial("127.0.0.1:80"))
	require.NoError(t, err)
	l, err := m.Listen(t.Context(), devices, listenAt("127.0.0.1:0"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestSoftRoCEUnaskedWithoutDevices(t *testing.T) {
	checkServed(t, softOnly(noRoot), "")
	checkServed(t, softOnly(t.TempDir()), "")
}

func TestSoftRoCENeverSilentlyWithRxe(t *testing.T) {
	m := softOnly(sysfs(t, map[string]string{
		"sys/class/infiniband/rxe0/node_type":                  "1: CA\n",
		"sys/class/infiniband/rxe0/parent":                     "veth7\n",
		"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0":  "veth7\n",
		"sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0":  "RoCE v2\n",
		"sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1":  "\n",
		"sys/class/infiniband/rxe0/ports/1/gid_attrs/types/99": "",
	}))
	checkRefused(t, m, "rdma_rxe (device rxe0) holds UDP port 4791")
}

func TestSoftRoCENeverSilentlyWithRoCE(t *testing.T) {
	// The device of the interface that serves 127.0.0.1: what goes there passes it.
	lo := interfaceOf(netip.MustParseAddr("127.0.0.1"))
	require.NotEmpty(t, lo)
	m := softOnly(sysfs(t, map[string]string{
		"sys/class/infiniband/mlx5_0/node_type":                 "1: CA\n",
		"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "enp1s0f0np0\n",
	}))
	checkRefused(t, m, "this host has the RDMA device mlx5_0 (enp1s0f0np0)")
}

// A device without a network interface, an iWARP device: nothing takes UDP port 4791.
func TestSoftRoCEBesideOtherDevices(t *testing.T) {
	checkServed(t, softOnly(sysfs(t, map[string]string{
		"sys/class/infiniband/siw0/node_type":                 "4: RNIC\n",
		"sys/class/infiniband/siw0/ports/1/gid_attrs/ndevs/0": "lo\n",
		"sys/class/infiniband/qib0/node_type":                 "1: CA\n",
	})), "")
}

func TestSoftRoCEByInterface(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		cause string // empty: served
	}{
		"own": {map[string]string{
			"sys/class/infiniband/mlx5_3/ports/2/gid_attrs/ndevs/5": "ens7\n",
		}, "the hardware of ens7 (RDMA device mlx5_3) takes UDP port 4791"},
		"other": {map[string]string{
			"sys/class/infiniband/mlx5_3/ports/2/gid_attrs/ndevs/5": "other0\n",
		}, ""},
		"under a VLAN of a bond": {map[string]string{
			"sys/class/infiniband/mlx5_3/ports/2/gid_attrs/ndevs/5": "port1\n",
			"sys/class/net/ens7/lower_bond0/x":                      "",
			"sys/class/net/bond0/lower_port1/x":                     "",
			"sys/class/net/port1/lower_bond0/x":                     "", // a loop must not hang
		}, "the hardware of port1 (RDMA device mlx5_3) takes UDP port 4791"},
		"IPoIB": {map[string]string{
			"sys/class/infiniband/mlx5_3/device/net/ens7/mtu": "2044\n",
		}, "the hardware of ens7 (RDMA device mlx5_3) takes UDP port 4791"},
	} {
		t.Run(name, func(t *testing.T) {
			m := softOnly(sysfs(t, c.files))
			err := m.guardNetdev(m.rdmaDevices(), "ens7")
			if c.cause == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, verbs.ErrNoDevice)
			assert.Contains(t, err.Error(), c.cause)
		})
	}
}

// The interface is found by the address, for every address this host has.
func TestSoftRoCEByAddress(t *testing.T) {
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range ifs {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
			require.True(t, ok)
			if ip = ip.Unmap(); ip.IsLinkLocalUnicast() {
				ip = ip.WithZone(ifi.Name)
			}
			assert.Equal(t, ifi.Name, interfaceOf(ip), "%s", ip)
			m := softOnly(sysfs(t, map[string]string{
				"sys/class/infiniband/mlx5_3/ports/2/gid_attrs/ndevs/5": ifi.Name + "\n",
			}))
			_, err = m.Resolve(t.Context(), "", verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(ip, 80)})
			require.ErrorIs(t, err, verbs.ErrNoDevice, "%s", ip)
			_, err = m.Listen(t.Context(), "", verbs.ListenAttr{Local: netip.AddrPortFrom(ip, 0)})
			require.ErrorIs(t, err, verbs.ErrNoDevice, "%s", ip)
		}
	}
}
