package rdmacore

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

const providerName = "rdmacore"

// Config is the world of a provider. The zero Config is this host.
type Config struct {
	// Root is the directory that stands for / when sysfs, procfs and /dev are looked at to
	// explain a failure. Empty: "/".
	Root string
}

// Provider is the C libraries as a [verbs.Provider]. Devices are open while anything uses them, and a little longer.
type Provider struct {
	host host
	core core // what is behind it; empty in a build without cgo

	// whyNot returns why the libraries cannot be used, or nil. Tests replace it.
	whyNot func() error
}

var (
	_ verbs.Provider = (*Provider)(nil)
	_ verbs.Finder   = (*Provider)(nil)
)

// New returns a provider.
func New(cfg *Config) *Provider {
	p := &Provider{host: host{root: cfg.Root}, whyNot: load}
	p.core.init(p)
	return p
}

// Default returns the process's provider.
var Default = sync.OnceValue(func() *Provider { return New(&Config{}) })

// Name implements [verbs.Provider].
func (p *Provider) Name() string { return providerName }

// Devices implements [verbs.Provider]. Devices that the kernel has and the libraries
// cannot use are listed with the reason.
func (p *Provider) Devices() ([]verbs.DeviceInfo, error) {
	names := p.host.devices()
	if len(names) == 0 {
		return nil, nil
	}
	var infos []verbs.DeviceInfo
	if why := p.whyNot(); why != nil {
		for _, name := range names {
			info := p.host.describe(name)
			info.Unusable = noDevice(why)
			infos = append(infos, info)
		}
		return infos, nil
	}
	return p.core.devices(names)
}

// Find implements [verbs.Finder].
func (p *Provider) Find(name string) (info verbs.DeviceInfo, ok bool) {
	if !slices.Contains(p.host.devices(), name) {
		return info, false
	}
	info = p.host.describe(name)
	if why := p.whyNot(); why != nil {
		info.Unusable = noDevice(why)
	} else if why := p.host.unusable(name); why != nil {
		info.Unusable = noDevice(why)
	}
	return info, true
}

// noDevice makes why a cause of [verbs.ErrNoDevice].
func noDevice(why error) error { return fmt.Errorf("rdmacore: %w: %w", verbs.ErrNoDevice, why) }

// check returns why nothing can be done with the provider at all, or with the device if one is named.
func (p *Provider) check(device string, port int) error {
	names := p.host.devices()
	if len(names) == 0 {
		if device != "" {
			return noDevice(fmt.Errorf("no device %q: %w", device, errNoDevices))
		}
		return noDevice(errNoDevices)
	}
	if device != "" && !slices.Contains(names, device) {
		return noDevice(fmt.Errorf("no device %q, only %q", device, names))
	}
	if why := p.whyNot(); why != nil {
		return noDevice(why)
	}
	if device != "" && port != 0 {
		if info := p.host.describe(device); !slices.ContainsFunc(info.Ports, func(p verbs.PortInfo) bool { return p.Num == port }) {
			return noDevice(fmt.Errorf("device %s has no port %d", device, port))
		}
	}
	return nil
}

// spaceFailure explains a failure that may be due to the port space: that of IPoIB is there on InfiniBand only, and the kernel
// has but EINVAL to say.
func (p *Provider) spaceFailure(ps verbs.PortSpace, err error) error {
	names := p.host.devices()
	if ps != verbs.PSIPoIB || !errors.Is(err, syscall.EINVAL) || slices.ContainsFunc(names, p.host.infiniBand) {
		return err
	}
	return fmt.Errorf("port space %v needs InfiniBand, and none of the devices %q is (RoCE has port space %v): %w",
		ps, names, verbs.PSUDP, errors.ErrUnsupported)
}
