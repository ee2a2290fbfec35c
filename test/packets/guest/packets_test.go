//go:build guest

package guest

import (
	"context"
	"flag"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
	"github.com/go-rdma/rdma/internal/verbs/softroce/packettable"
)

var (
	device = flag.String("device", "rxe0", "the RDMA device")
	addr   = flag.String("addr", "10.9.0.1", "its address")
	peer   = flag.String("peer", "10.9.0.2", "the address that packets come from")
	other  = flag.String("stranger", "10.9.0.77", "another address there")
	panics = flag.Bool("panics", false, "send what brings the kernel down")
	netns  = flag.String("netns", "peer", "the network namespace which has that")
)

// listen opens the wire in another network namespace.
func listen(t *testing.T, addr string) *packettable.Peer {
	done := make(chan error)
	peers := make(chan *packettable.Peer, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+*netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
		}
		if err == nil {
			var p *packettable.Peer
			p, err = packettable.Listen(netip.MustParseAddr(addr))
			peers <- p
		}
		_ = unix.Close(fd)
		done <- err
	}()
	require.NoError(t, <-done)
	p := <-peers
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// TestPacketTable judges rdma_rxe by its packets.
func TestPacketTable(t *testing.T) {
	p, s := listen(t, *peer), listen(t, *other)
	r := rdmacore.New(&rdmacore.Config{})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.Drain(ctx))
	})
	packettable.Test(t, packettable.Config{
		Provider: r, Device: *device, Addr: netip.MustParseAddr(*addr), Peer: p, Stranger: s, Linux: true, Panics: *panics,
		Patience: 10 * time.Second, Quiet: 30 * time.Millisecond,
	})
}
