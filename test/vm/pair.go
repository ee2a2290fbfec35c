package vm

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// PairConfig says what two guests to boot.
type PairConfig struct {
	Guest Config // of both, with "-a" and "-b" added to the name
	MTU   int    // 1500 if 0

	// NoRDMA says which of them loads none of the RDMAModules: UDP port 4791, which rdma_rxe takes as soon as it is there,
	// is free for a provider in user space.
	NoRDMA [2]bool
}

// Pair boots two guests whose eth0 are the ends of one wire. The first has the addresses 10.8.0.1 and fd08::1, the second 10.8.0.2 and
// fd08::2; both have the RDMA device rxe0 there, unless NoRDMA says otherwise.
func Pair(ctx context.Context, cfg PairConfig) (a, b *Guest, err error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	cfg.Guest.defaults()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("vm: %w", err)
	}
	var guests [2]*Guest
	errs := make(chan error)
	for i := range guests {
		one := cfg.Guest
		one.Name += [2]string{"-a", "-b"}[i]
		one.network = os.NewFile(uintptr(fds[i]), "wire")
		one.mac = fmt.Sprintf("52:54:00:09:08:%02x", i+1)
		one.NoRDMA = one.NoRDMA || cfg.NoRDMA[i]
		one.Modules = append([]string{"virtio_net"}, one.Modules...)
		go func() {
			defer one.network.Close()
			g, err := Start(ctx, one)
			if err == nil {
				guests[i] = g
				err = g.wire(ctx, i, cfg.MTU, !one.NoRDMA)
			}
			errs <- err
		}()
	}
	for range guests {
		if e := <-errs; err == nil {
			err = e
		}
	}
	if err != nil {
		for _, g := range guests {
			if g != nil {
				_ = g.Close()
			}
		}
		return nil, nil, err
	}
	return guests[0], guests[1], nil
}

// wire configures the end of a pair's wire.
func (g *Guest) wire(ctx context.Context, i, mtu int, rxe bool) error {
	g.Wire = Addrs{
		Interface: "eth0",
		V4:        netip.AddrFrom4([4]byte{10, 8, 0, byte(i + 1)}),
		V6:        netip.MustParseAddr(fmt.Sprintf("fd08::%d", i+1)),
	}
	if err := g.ip(ctx, "", fmt.Sprintf(`link set eth0 mtu %d
addr add %s/24 dev eth0
addr add %s/64 dev eth0 nodad
link set eth0 up
`, mtu, g.Wire.V4, g.Wire.V6)); err != nil {
		return err
	}
	if !rxe {
		return nil
	}
	g.Wire.RDMA = "rxe0"
	return g.AddRXE(ctx, g.Wire.RDMA, g.Wire.Interface)
}
