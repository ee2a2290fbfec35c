package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

func dial(addr string) verbs.CMIDAttr {
	return verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort(addr)}
}

func TestResolveInOrderOfPreference(t *testing.T) {
	m := testManager()
	id, err := m.Resolve(t.Context(), "", dial("127.0.0.1:80"))
	require.NoError(t, err)
	assert.Equal(t, RDMACore, id.Provider().Name())

	id, err = m.Resolve(t.Context(), "softroce,rdmacore", dial("127.0.0.1:80"))
	require.NoError(t, err)
	assert.Equal(t, SoftRoCE, id.Provider().Name())

	m.Providers[0].(*fakeProvider).resolveErr = fmt.Errorf("mlx5_0: no route: %w", verbs.ErrNoDevice)
	id, err = m.Resolve(t.Context(), "", dial("127.0.0.1:80"))
	require.NoError(t, err)
	assert.Equal(t, SoftRoCE, id.Provider().Name())

	_, err = m.Resolve(t.Context(), "mlx5_0/1,softroce0", dial("127.0.0.1:80"))
	require.NoError(t, err)
	got := m.Providers[0].(*fakeProvider).resolved
	assert.Equal(t, "mlx5_0", got[len(got)-1].Device)
	assert.Equal(t, 1, got[len(got)-1].Port)
}

func TestResolveNamesEveryCause(t *testing.T) {
	m := testManager()
	m.Providers[0].(*fakeProvider).resolveErr = fmt.Errorf("%w: mlx5_0 has no route to it", verbs.ErrNoDevice)
	m.Providers[1].(*fakeProvider).resolveErr = fmt.Errorf("softroce: UDP port 4791 is taken: %w", verbs.ErrNoDevice)
	_, err := m.Resolve(t.Context(), "", dial("10.1.2.3:80"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	var none *NoDeviceError
	require.ErrorAs(t, err, &none)
	assert.Len(t, none.Tried, 2)
	assert.EqualError(t, err, "no RDMA device serves 10.1.2.3 ("+
		"rdmacore: mlx5_0 has no route to it; softroce: UDP port 4791 is taken)")
	err = m.Dial(t.Context(), "", dial("10.1.2.3:80"), nil)
	assert.EqualError(t, err, "no RDMA device serves 10.1.2.3 (shm: not part of this build; "+
		"rdmacore: mlx5_0 has no route to it; softroce: UDP port 4791 is taken)")

	_, err = m.Resolve(t.Context(), "mlx7_3,mlx5_1", dial("10.1.2.3:80"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "mlx7_3: no device of that name: there are rdmacore, softroce, mlx5_0, mlx5_1, softroce0")
	assert.Contains(t, err.Error(), "mlx5_1: no permission")
}

// What leads nowhere is named by what it is bound to.
func TestResolveNowhere(t *testing.T) {
	m := testManager()
	for _, p := range m.Providers {
		p.(*fakeProvider).resolveErr = verbs.ErrNoDevice
	}
	for local, want := range map[string]string{"192.0.2.1:0": "serves 192.0.2.1 (", "": "serves any address ("} {
		attr := verbs.CMIDAttr{PortSpace: verbs.PSUDP}
		if local != "" {
			attr.Local = netip.MustParseAddrPort(local)
		}
		_, err := m.Resolve(t.Context(), "", attr)
		require.ErrorIs(t, err, verbs.ErrNoDevice)
		require.ErrorContains(t, err, want)
	}
}

// No route is what is wrong with the address, also when other providers could not serve anything.
func TestResolveNoRoute(t *testing.T) {
	m := testManager()
	m.Providers[0].(*fakeProvider).resolveErr = verbs.ErrNoDevice
	m.Providers[1].(*fakeProvider).resolveErr = syscall.ENETUNREACH
	_, err := m.Resolve(t.Context(), "", dial("10.1.2.3:80"))
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.NotErrorIs(t, err, verbs.ErrNoDevice)
	var at *ProviderError
	require.ErrorAs(t, err, &at)
	assert.Equal(t, SoftRoCE, at.Provider)
}

func TestResolveContext(t *testing.T) {
	m := testManager()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Providers[0].(*fakeProvider).resolveErr = errors.New("interrupted")
	_, err := m.Resolve(ctx, "", dial("127.0.0.1:80"))
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, m.Providers[1].(*fakeProvider).resolved, "no provider is asked once the context ended")
}

func TestLookup(t *testing.T) {
	m := testManager()
	info, err := m.LookupRemote(t.Context(), netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, "mlx5_0", info.Name)

	for _, a := range []string{"127.0.0.1", "127.8.8.8", "::1"} {
		info, err = m.LookupLocal(netip.MustParseAddr(a))
		require.NoError(t, err)
		assert.Equal(t, "softroce0", info.Name)
	}
	_, err = m.LookupLocal(netip.MustParseAddr("10.1.2.3"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "softroce0: has no such address")
	assert.Contains(t, err.Error(), "mlx5_1: no permission")
}

// TestLookupLocalOfNamed: what RDMANET_DEVICE names is what is looked at, and nothing is held against it.
func TestLookupLocalOfNamed(t *testing.T) {
	m := testManager()
	loopback := netip.MustParseAddr("127.0.0.1")
	m.Root = sysfs(t, map[string]string{ // of a host where rdma_rxe holds UDP port 4791
		"sys/class/infiniband/rxe0/node_type": "1: CA\n",
		"sys/class/infiniband/rxe0/parent":    "veth7\n",
	})
	_, err := m.LookupLocal(loopback)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "softroce0: not used unless it is named")
	for _, list := range []string{"softroce", "softroce0", "mlx5_1,softroce0/1", "mlx5_0,softroce"} {
		m.Getenv = func(string) string { return list }
		info, err := m.LookupLocal(loopback)
		require.NoError(t, err, list)
		assert.Equal(t, "softroce0", info.Name)
	}
	for list, says := range map[string]string{
		"mlx5_1":       "mlx5_1: no permission",
		"mlx5_0":       "mlx5_0: has no such address",
		"softroce0/2":  "softroce0 has no port 2",
		"nosuchdevice": "no device of that name",
	} {
		m.Getenv = func(string) string { return list }
		_, err := m.LookupLocal(loopback)
		require.ErrorIs(t, err, verbs.ErrNoDevice, list)
		assert.Contains(t, err.Error(), says)
		assert.NotContains(t, err.Error(), "not used unless")
	}
	m.Getenv = func(string) string { return "softroce/7" }
	_, err = m.LookupLocal(loopback)
	require.ErrorAs(t, err, new(*DeviceListError))
}
