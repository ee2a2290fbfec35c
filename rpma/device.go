package rpma

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Device describes an RDMA device. It is a description, not a handle: it holds
// nothing open and does not change.
type Device struct {
	Name     string // "mlx5_0", "softroce0"
	Provider string // the way to reach it: "rdmacore", "softroce", "shm"
	Unusable error  // nil, or why the device cannot be used and what to do about it
	Ports    []Port

	MaxQP      int // queue pairs
	MaxCQE     int // completions a queue holds
	MaxMsgSize int // bytes per message

	ODP               bool // on-demand paging
	NativeFlush       bool // FLUSH without emulation
	NativeAtomicWrite bool // ATOMIC_WRITE without emulation
}

// Port describes one port of a device.
type Port struct {
	Num       int
	MTU       int          // bytes: the limit of a datagram's payload; a route may allow less
	State     string       // "ACTIVE", "DOWN"
	Interface string       // network interface; empty when the port serves all of the host
	GIDs      []netip.Addr // the port's addresses
}

// Devices describes all RDMA devices there are, usable or not. It never fails
// only because some are unusable.
func Devices() ([]Device, error) {
	var ds []Device
	for _, info := range cm.Default().Devices() {
		ds = append(ds, *newDevice(&info))
	}
	return ds, nil
}

// LookupLocal describes the device that owns an address of this host: a host name or an
// IP address, with or without a port number.
func LookupLocal(address string) (*Device, error) {
	return lookup(context.Background(), address, func(_ context.Context, a netip.Addr) (*verbs.DeviceInfo, error) {
		return cm.Default().LookupLocal(a)
	})
}

// LookupRemote describes the device from which a peer's address is reached: a host
// name or an IP address, with or without a port number.
func LookupRemote(ctx context.Context, address string) (*Device, error) {
	return lookup(ctx, address, cm.Default().LookupRemote)
}

// lookup tries what the address means, one after the other.
func lookup(ctx context.Context, address string, f func(context.Context, netip.Addr) (*verbs.DeviceInfo, error)) (*Device, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		host := address
		if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
			host = host[1 : n-1]
		}
		address = net.JoinHostPort(host, "0")
	}
	addrs, err := cm.LookupDial(ctx, nil, cm.AnyFamily, address)
	var first error
	for _, a := range addrs {
		info, err := f(ctx, a.Addr())
		if err == nil {
			return newDevice(info), nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = err
	}
	return nil, fmt.Errorf("rpma: lookup %s: %w", address, first)
}

func newDevice(info *verbs.DeviceInfo) *Device {
	d := &Device{
		Name: info.Name, Provider: info.Provider, Unusable: info.Unusable,
		MaxQP: info.MaxQP, MaxCQE: info.MaxCQE, MaxMsgSize: int(min(info.MaxMsgSize, math.MaxInt)),
		ODP: info.ODP, NativeFlush: info.NativeFlush, NativeAtomicWrite: info.NativeAtomicWrite,
	}
	for _, p := range info.Ports {
		d.Ports = append(d.Ports, Port{
			Num: p.Num, MTU: int(p.MTU), State: p.State, Interface: p.Interface, GIDs: slices.Clone(p.GIDs),
		})
	}
	return d
}
