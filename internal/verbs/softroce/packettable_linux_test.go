package softroce_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/packettable"
)

// loAddr gives the loopback interface an address while a test runs. The others of its class A network are this host's too, but no
// interface has them, so that who is there looks like another host.
func loAddr(t *testing.T, a netip.Addr) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	set := func(a netip.Addr) {
		req, err := unix.NewIfreq("lo:table")
		require.NoError(t, err)
		require.NoError(t, req.SetInet4Addr(a.AsSlice()))
		require.NoError(t, unix.IoctlIfreq(fd, unix.SIOCSIFADDR, req))
	}
	set(a)
	t.Cleanup(func() {
		set(netip.IPv4Unspecified()) // takes it away
		require.NoError(t, unix.Close(fd))
	})
}

// TestPacketTable judges the device by its packets, over UDP, wherever PSNs begin. The kernel's rdma_rxe is judged by the same table
// in a guest.
func TestPacketTable(t *testing.T) {
	if !testnet.Own() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this system does not let us have a network namespace")
		}
		t.Skip("this system does not let us have a network namespace")
	}
	here, there := netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")
	loAddr(t, here)
	var peers []*packettable.Peer
	for _, a := range []netip.Addr{there, there.Next()} {
		p, err := packettable.Listen(a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		peers = append(peers, p)
	}
	for _, psn := range []uint32{0, 0x7ffffe, 0xfffffe} {
		t.Run(fmt.Sprintf("%#x", psn), func(t *testing.T) {
			packettable.Test(t, packettable.Config{
				Provider: provider(t, &softroce.Config{FirstPSN: func() uint32 { return psn }}), Device: "softroce0",
				Addr: here, Peer: peers[0], Stranger: peers[1], Quiet: 3 * time.Millisecond,
			})
		})
	}
}
