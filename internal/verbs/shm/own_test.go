//go:build linux

package shm

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

func TestOwn(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1": true, "127.9.8.7": true, "::1": true,
		"192.0.2.1": false, "2001:db8::1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "ff02::1%lo": false, "255.255.255.255": false,
		"fe80::1": false, "fe80::1%lo": false, "fe80::1%nowhere": false,
	} {
		require.Equal(t, want, own(netip.MustParseAddr(a)), a)
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if !ip.IsLinkLocalUnicast() || ip.Is4() {
			require.True(t, own(ip.Unmap()), ip)
		}
	}
}

// TestOwnAdded: an address counts from when it is there.
func TestOwnAdded(t *testing.T) {
	for a, at := range map[string]string{"192.0.2.5/32": "192.0.2.5", "2001:db8::5/128": "2001:db8::5", "fe80::5/128": "fe80::5%lo"} {
		ip := netip.MustParseAddr(at)
		require.False(t, own(ip), at)
		out, err := exec.Command("ip", "addr", "add", a, "dev", "lo", "nodad").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.True(t, own(ip), at)
		if ip.Zone() != "" {
			require.False(t, own(ip.WithZone("4000")))
			require.False(t, own(ip.WithZone("")), "of which interface?")
		}
		out, err = exec.Command("ip", "addr", "del", a, "dev", "lo").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.False(t, own(ip), at)
	}
}

// TestZones: an address of one interface is not that of another.
func TestZones(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	require.EqualValues(t, lo.Index, zoneIndex("lo"))
	require.EqualValues(t, 17, zoneIndex("17"))
	require.Zero(t, zoneIndex("nowhere"))
	a := netip.MustParseAddr
	require.True(t, sameAddr(a("fe80::1%lo"), a("fe80::1")))
	require.True(t, sameAddr(a("fe80::1%lo"), a("fe80::1").WithZone(strconv.Itoa(lo.Index))))
	require.False(t, sameAddr(a("fe80::1%lo"), a("fe80::1%4000")))
	require.False(t, sameAddr(a("fe80::1%lo"), a("fe80::2%lo")))
	require.False(t, conflict(a("fe80::1%lo"), a("fe80::1%4000")))
	require.True(t, conflict(a("fe80::1%lo"), a("::")))
}

// TestNoSharedMemory: where no segment can be made Listen says so, and what to do; nobody connects to fail.
func TestNoSharedMemory(t *testing.T) {
	const env = "SHM_TEST_NO_MEMORY"
	if os.Getenv(env) == "" {
		runAlone(t, env)
		return
	}
	signal.Ignore(unix.SIGXFSZ)
	var none unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &none))
	none.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &none))
	_, err := New().Listen(context.Background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0")})
	require.ErrorIs(t, err, verbs.ErrNoDevice, "to be done without")
	require.ErrorIs(t, err, unix.EFBIG)
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
}
