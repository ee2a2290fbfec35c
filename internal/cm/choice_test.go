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
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// errNobody is what a provider says of an address that it serves and nobody listens at.
var errNobody = fmt.Errorf("shm: resolving: %w: %w", verbs.ErrNoDevice, &verbs.RejectError{Reason: verbs.RejInvalidServiceID})

// connected tells which providers a dial went to, and connects to the last of them unless fail says otherwise.
func connected(t *testing.T, m *Manager, devices string, fail map[string]error) (providers []string, err error) {
	err = m.Dial(t.Context(), devices, dial("127.0.0.1:80"), func(id verbs.CMID) error {
		name := id.Provider().Name()
		providers = append(providers, name)
		return fail[name]
	})
	return providers, err
}

// Where somebody listens over shared memory nobody else is asked; where nobody does, the others are.
func TestDialChoosesShm(t *testing.T) {
	m, shm, core, soft := threeProviders()
	got, err := connected(t, m, "", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{Shm}, got)
	assert.Empty(t, append(core.resolved, soft.resolved...), "nothing is looked up for others")
	assert.False(t, shm.resolved[0].AnyUser)

	shm.resolveErr = errNobody
	got, err = connected(t, m, "", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{RDMACore}, got)
	core.resolveErr = verbs.ErrNoDevice
	for _, e := range []error{
		errNobody,
		verbs.ErrNoDevice,
		fmt.Errorf("another version: %w", syscall.EPROTONOSUPPORT),
		fmt.Errorf("no descriptors: %w", syscall.EMFILE),
		fmt.Errorf("%w: whoever holds the port does not answer: %w", verbs.ErrNoDevice, syscall.ETIMEDOUT),
	} {
		shm.resolveErr = e
		got, err = connected(t, m, "", nil)
		require.NoError(t, err)
		assert.Equal(t, []string{SoftRoCE}, got, "%v", e)
	}
}

// A listener that is closed between the two steps is one that is not there; what it says by itself is final.
func TestDialAfterFailureOfShm(t *testing.T) {
	m, _, core, _ := threeProviders()
	core.resolveErr = verbs.ErrNoDevice
	refusal := &verbs.RejectError{Reason: verbs.RejInvalidServiceID}
	got, err := connected(t, m, "", map[string]error{Shm: refusal})
	require.NoError(t, err)
	assert.Equal(t, []string{Shm, SoftRoCE}, got)
	got, err = connected(t, m, "", map[string]error{Shm: refusal, SoftRoCE: refusal})
	require.Equal(t, refusal, err, "the last one's words")
	assert.Equal(t, []string{Shm, SoftRoCE}, got)

	for _, final := range []error{
		&verbs.RejectError{Reason: verbs.RejConsumer},
		fmt.Errorf("it died: %w", syscall.ECONNRESET),
		fmt.Errorf("it is stopped: %w", syscall.ETIMEDOUT),
	} {
		got, err = connected(t, m, "", map[string]error{Shm: final})
		require.Equal(t, final, err)
		assert.Equal(t, []string{Shm}, got, "%v", final)
	}
}

// Who has the port and is stopped must not be waited for twice.
func TestDialStoppedShm(t *testing.T) {
	m, shm, core, soft := threeProviders()
	shm.resolveErr = fmt.Errorf("process 7 does not answer: %w", syscall.ETIMEDOUT)
	_, err := connected(t, m, "", nil)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	var at *ProviderError
	require.ErrorAs(t, err, &at)
	assert.Equal(t, Shm, at.Provider)
	assert.Empty(t, append(core.resolved, soft.resolved...))
}

// The last one that was tried fails for itself.
func TestDialFailsOnDevice(t *testing.T) {
	m, shm, _, soft := threeProviders()
	shm.resolveErr = errNobody
	refusal := &verbs.RejectError{Reason: verbs.RejInvalidServiceID}
	got, err := connected(t, m, "", map[string]error{RDMACore: refusal})
	require.Equal(t, refusal, err)
	assert.Equal(t, []string{RDMACore}, got, "only shared memory gives way")
	assert.Empty(t, soft.resolved)
}

func TestDialRefused(t *testing.T) {
	m, shm, core, soft := threeProviders()
	shm.resolveErr = errNobody
	_, err := connected(t, m, "shm", nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NotErrorIs(t, err, verbs.ErrNoDevice)
	require.EqualError(t, err, "connection refused: nobody listens on the port (reason 8)")
	assert.True(t, shm.resolved[0].AnyUser, "who names nothing else takes whoever is there")
	_, _ = connected(t, m, "shm,softroce", nil)
	assert.False(t, shm.resolved[1].AnyUser)

	// No device serves the address: nobody could listen there.
	core.resolveErr = fmt.Errorf("rdmacore: %w: no device has the address", verbs.ErrNoDevice)
	soft.resolveErr = &UnaskedError{"the hardware of eth0 takes UDP port 4791"}
	_, err = connected(t, m, "", nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NotErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorAs(t, err, new(*RefusedError))
	require.EqualError(t, err, "connection refused: nobody listens on the port (reason 8), and no device serves 127.0.0.1 ("+
		"rdmacore: no device has the address; softroce: not used unless it is named: the hardware of eth0 takes UDP port 4791)")

	// Somebody is in the way of a provider on which there may be a listener.
	soft.resolveErr = fmt.Errorf("softroce: %w: %w", verbs.ErrNoDevice, &netio.PortBusyError{Port: 4791, UID: 7})
	_, err = connected(t, m, "", nil)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "it is that, too: whoever waits for a server goes on")
	assert.Contains(t, err.Error(), "shm: connection refused: nobody listens on the port (reason 8)")
	require.Regexp(t, "^UDP port 4791 is in use by uid 7,", err.Error())

	// What is wrong with the address itself comes first.
	soft.resolveErr = syscall.ENETUNREACH
	_, err = connected(t, m, "", nil)
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.NotErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestDialContext(t *testing.T) {
	m, shm, core, soft := threeProviders()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	shm.resolveErr = errors.New("interrupted")
	err := m.Dial(ctx, "", dial("127.0.0.1:80"), nil)
	require.ErrorIs(t, err, context.Canceled)
	var at *ProviderError
	require.ErrorAs(t, err, &at)
	assert.Equal(t, Shm, at.Provider, "whom it waited for")
	assert.Empty(t, append(core.resolved, soft.resolved...))
	require.ErrorAs(t, m.Dial(t.Context(), "shm,,", dial("127.0.0.1:80"), nil), new(*DeviceListError))
}

// Devices of the host are what Resolve and the lookups are about; shared memory is one if it is named.
func TestDevicesWithoutShm(t *testing.T) {
	m, shm, _, _ := threeProviders()
	shm.infos[0].Ports[0].GIDs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	id, err := m.Resolve(t.Context(), "", dial("127.0.0.1:80"))
	require.NoError(t, err)
	assert.Equal(t, RDMACore, id.Provider().Name())
	info, err := m.LookupRemote(t.Context(), netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, RDMACore, info.Provider)
	_, err = m.LookupLocal(netip.MustParseAddr("127.0.0.1"))
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.NotContains(t, err.Error(), Shm)
	assert.Empty(t, shm.resolved)

	m.Getenv = func(string) string { return "shm" }
	info, err = m.LookupLocal(netip.MustParseAddr("127.0.0.1"))
	require.NoError(t, err)
	assert.Equal(t, Shm, info.Provider)
	id, err = m.Resolve(t.Context(), "", dial("127.0.0.1:80"))
	require.NoError(t, err)
	assert.Equal(t, Shm, id.Provider().Name())
}

// Datagrams have nothing to do with shared memory.
func TestListenDatagramsWithoutShm(t *testing.T) {
	m, shm, core, soft := threeProviders()
	attr := listenAt("0.0.0.0:0")
	attr.PortSpace = verbs.PSUDP
	l, err := m.Listen(t.Context(), "", attr)
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 1}, listening(shm, core, soft))
	assert.Empty(t, l.Skipped)
	require.NoError(t, l.Close())
}

// Shared memory alone is for addresses that only this host's processes can mean, and for who wants nothing else.
func TestListenOnShmAlone(t *testing.T) {
	m, shm, core, soft := threeProviders()
	core.listenErr = verbs.ErrNoDevice
	soft.listenErr = &UnaskedError{"this host has the RDMA device mlx5_0"}
	for _, c := range []struct {
		devices, address string
		ok               bool
	}{
		{"", "127.0.0.1:0", true},
		{"", "127.1.2.3:0", true},
		{"", "[::1]:0", true},
		{"", "0.0.0.0:0", false},
		{"", "[::]:0", false},
		{"", "192.0.2.1:0", false},
		{"shm,rdmacore", "0.0.0.0:0", false},
		{"shm,rdmacore", "127.0.0.1:0", true},
		{"shm", "0.0.0.0:0", true},
		{"shm,shm0", "192.0.2.1:0", true},
	} {
		l, err := m.Listen(t.Context(), c.devices, listenAt(c.address))
		if c.ok {
			require.NoError(t, err, "%v", c)
			require.NoError(t, l.Unreached)
			require.NoError(t, l.Close())
		} else {
			require.ErrorIs(t, err, verbs.ErrNoDevice, "%v", c)
			var none *NoDeviceError
			require.ErrorAs(t, err, &none)
			assert.True(t, none.HostOnly)
			assert.NotContains(t, err.Error(), "shm:")
		}
		assert.Equal(t, []int{0, 0, 0}, listening(shm, core, soft), "%v", c)
	}
	l, err := m.ListenBeside(t.Context(), "", listenAt("0.0.0.0:0"))
	require.NoError(t, err)
	require.ErrorIs(t, l.Unreached, verbs.ErrNoDevice)
	assert.Equal(t, []int{1, 0, 0}, listening(shm, core, soft))
	require.NoError(t, l.Close())

	core.listenErr = syscall.EADDRNOTAVAIL
	_, err = m.Listen(t.Context(), "", listenAt("192.0.2.1:0"))
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL, "the cause that is about the address")
}

// A name that another user was first to take costs a listener shared memory, and not its port.
func TestListenWithoutShm(t *testing.T) {
	m, shm, core, soft := threeProviders()
	shm.listenErr = fmt.Errorf("shm: %w: held by uid 7: %w", verbs.ErrNoDevice, syscall.EADDRINUSE)
	l, err := m.Listen(t.Context(), "", listenAt("0.0.0.0:5000"))
	require.NoError(t, err)
	assert.Equal(t, []int{0, 1, 1}, listening(shm, core, soft))
	require.ErrorContains(t, l.WithoutShm(), "held by uid 7")
	require.NoError(t, l.Close())

	shm.listenErr = fmt.Errorf("shm: by process 9: %w", syscall.EADDRINUSE)
	_, err = m.Listen(t.Context(), "", listenAt("0.0.0.0:5000"))
	require.ErrorIs(t, err, syscall.EADDRINUSE, "this user's own is in use")
	assert.Equal(t, []int{0, 0, 0}, listening(shm, core, soft))

	m.Providers = m.Providers[1:]
	l, err = m.Listen(t.Context(), "", listenAt("0.0.0.0:5000"))
	require.NoError(t, err)
	require.NoError(t, l.WithoutShm(), "not part of the build")
	require.NoError(t, l.Close())
}

// The kernel picks the port of a connection without looking at what it leads to: one that was just used for the same way is not to be had
// again at once, another is.
func TestDialPicksAnotherPort(t *testing.T) {
	m, shm, core, _ := threeProviders()
	shm.resolveErr = errNobody
	taken := fmt.Errorf("connecting: %w", syscall.EADDRNOTAVAIL)
	dial := func(local string, fail int) (tries int, err error) {
		attr := verbs.CMIDAttr{Remote: netip.MustParseAddrPort("192.0.2.1:7471"), Local: netip.MustParseAddrPort(local)}
		err = m.Dial(t.Context(), "", attr, func(verbs.CMID) error {
			if tries++; tries <= fail {
				return taken
			}
			return nil
		})
		return tries, err
	}
	for fail := range 3 {
		core.resolved = nil
		tries, err := dial("192.0.2.2:0", fail)
		require.NoError(t, err)
		require.Equal(t, fail+1, tries)
		require.Len(t, core.resolved, tries, "an identifier of its own for each")
	}
	tries, err := dial("192.0.2.2:0", 9)
	require.Equal(t, taken, err)
	require.Equal(t, 3, tries)
	tries, err = dial("192.0.2.2:7472", 9)
	require.Equal(t, taken, err, "the port that was asked for")
	require.Equal(t, 1, tries)
}
