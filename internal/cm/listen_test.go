package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

func listenAt(addr string) verbs.ListenAttr {
	return verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort(addr), Backlog: 8}
}

// threeProviders has all the providers that any build has.
func threeProviders() (m *Manager, shm, core, soft *fakeProvider) {
	shm = &fakeProvider{name: Shm, infos: []verbs.DeviceInfo{device(Shm, "shm0")}, next: 7000, step: 1}
	core = &fakeProvider{name: RDMACore, infos: []verbs.DeviceInfo{device(RDMACore, "mlx5_0")}, next: 9000, step: 1}
	soft = &fakeProvider{name: SoftRoCE, infos: []verbs.DeviceInfo{device(SoftRoCE, "softroce0")}, next: 8000, step: 1}
	return &Manager{Root: noRoot, Getenv: noEnv, Providers: []verbs.Provider{shm, core, soft}}, shm, core, soft
}

func listening(ps ...*fakeProvider) (n []int) {
	for _, p := range ps {
		n = append(n, p.listening)
	}
	return n
}

func TestListenEverywhereAtOnePort(t *testing.T) {
	m, shm, core, soft := threeProviders()
	l, err := m.Listen(t.Context(), "", listenAt("0.0.0.0:0"))
	require.NoError(t, err)
	require.Len(t, l.Parts, 3)
	for _, p := range l.Parts {
		assert.EqualValues(t, 9000, p.Addr().Port(), p.Provider)
	}
	assert.EqualValues(t, 9000, l.Addr().Port(), "rdmacore picks")
	assert.Equal(t, []int{1, 1, 1}, listening(shm, core, soft))
	require.NoError(t, l.Close())
	assert.Equal(t, []int{0, 0, 0}, listening(shm, core, soft))
}

func TestListenPortTakenOnOne(t *testing.T) {
	m, shm, core, soft := threeProviders()
	soft.taken = map[uint16]bool{9000: true, 9001: true}
	l, err := m.Listen(t.Context(), "", listenAt("0.0.0.0:0"))
	require.NoError(t, err)
	assert.EqualValues(t, 9002, l.Addr().Port(), "a picked number that is taken elsewhere is given up for another")
	assert.Equal(t, []int{1, 1, 1}, listening(shm, core, soft))

	_, err = m.Listen(t.Context(), "", listenAt("0.0.0.0:9001"))
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	var at *ProviderError
	require.ErrorAs(t, err, &at)
	assert.Equal(t, SoftRoCE, at.Provider)
	assert.Equal(t, []int{1, 1, 1}, listening(shm, core, soft), "what was taken is released")
	require.NoError(t, l.Close())
}

func TestListenGivesUpPicking(t *testing.T) {
	m, shm, core, soft := threeProviders()
	core.step = 0
	soft.taken = map[uint16]bool{9000: true}
	_, err := m.Listen(t.Context(), "", listenAt("0.0.0.0:0"))
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.Equal(t, []int{0, 0, 0}, listening(shm, core, soft))
}

func TestListenSkipsAndRecords(t *testing.T) {
	m, _, core, _ := threeProviders()
	core.listenErr = verbs.ErrNoDevice
	m.Providers = m.Providers[1:] // no shm in this build
	l, err := m.Listen(t.Context(), "", listenAt("0.0.0.0:0"))
	require.NoError(t, err)
	require.Len(t, l.Parts, 1)
	assert.Equal(t, SoftRoCE, l.Parts[0].Provider)
	var names []string
	for _, c := range l.Skipped {
		names = append(names, c.Name)
	}
	assert.ElementsMatch(t, []string{Shm, RDMACore}, names)
	require.NoError(t, l.Close())

	_, err = m.Listen(t.Context(), "shm,rdmacore", listenAt("0.0.0.0:0"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "not part of this build")

	core.listenErr = syscall.EADDRNOTAVAIL
	_, err = m.Listen(t.Context(), "shm,rdmacore", listenAt("10.1.2.3:0"))
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

// UDP port 4791 in other hands is a matter of the device, not of the listener's port.
func TestListenWithoutUDPPort(t *testing.T) {
	m, _, core, soft := threeProviders()
	soft.listenErr = fmt.Errorf("softroce: %w: %w", verbs.ErrNoDevice, &netio.PortBusyError{Port: 4791, UID: 7})
	soft.resolveErr = soft.listenErr
	l, err := m.Listen(t.Context(), "rdmacore,softroce", listenAt("0.0.0.0:0"))
	require.NoError(t, err)
	assert.Len(t, l.Parts, 1)
	require.NoError(t, l.Close())

	core.listenErr = verbs.ErrNoDevice
	_, err = m.Listen(t.Context(), "rdmacore,softroce", listenAt("0.0.0.0:0"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorAs(t, err, new(*netio.PortBusyError))
	assert.True(t, strings.HasPrefix(err.Error(), "UDP port 4791 is in use by uid 7,"), "the cause comes first: %v", err)
	_, err = m.Resolve(t.Context(), "softroce", dial("127.0.0.1:80"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "uid 7")
}

func TestListenTwiceTheSame(t *testing.T) {
	m, _, _, soft := threeProviders()
	l, err := m.Listen(t.Context(), "softroce,softroce,softroce0", listenAt("0.0.0.0:1234"))
	require.NoError(t, err)
	assert.Len(t, l.Parts, 1)
	assert.Equal(t, 1, soft.listening)
	require.NoError(t, l.Close())
}

func TestListenBadList(t *testing.T) {
	m, _, _, _ := threeProviders()
	l, err := m.Listen(t.Context(), "softroce,,", listenAt("0.0.0.0:1234"))
	assert.Nil(t, l)
	var bad *DeviceListError
	require.True(t, errors.As(err, &bad))
}
