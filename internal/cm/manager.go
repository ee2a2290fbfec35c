package cm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Names of providers, in the order in which an empty Device list tries them.
const (
	Shm      = "shm"
	RDMACore = "rdmacore"
	SoftRoCE = "softroce"
)

// Known lists every provider that some build has, best first.
var Known = []string{Shm, RDMACore, SoftRoCE}

// connectTries is how often a connection is tried again that fails for want of another port of its own.
const connectTries = 2

// Manager chooses among providers. Its fields are not changed once it is in use.
type Manager struct {
	// Providers of this build, best first.
	Providers []verbs.Provider

	// Root is the directory that stands for / when sysfs and procfs are read. Empty: "/".
	Root string

	// Getenv reads the environment. Nil: os.Getenv.
	Getenv func(string) string
}

func (m *Manager) getenv(key string) string {
	if m.Getenv != nil {
		return m.Getenv(key)
	}
	return os.Getenv(key)
}

// Provider returns the provider of that name, or nil.
func (m *Manager) Provider(name string) verbs.Provider { return m.provider(name) }

func (m *Manager) provider(name string) verbs.Provider {
	for _, p := range m.Providers {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// Devices describes every device of every provider, usable or not. A provider
// that cannot list its devices is an unusable device of its own name.
func (m *Manager) Devices() []verbs.DeviceInfo {
	var all []verbs.DeviceInfo
	for _, p := range m.Providers {
		infos, err := p.Devices()
		if err != nil {
			infos = []verbs.DeviceInfo{{Name: p.Name(), Provider: p.Name(), Unusable: err}}
		}
		all = append(all, infos...)
	}
	return all
}

// Resolve finds the best device of the list devices that serves attr.Remote
// and returns an identifier bound to it. Shared memory, which is between two processes and no device of the host's, is
// looked at only if the list names it. The error of a list that does not
// serve the address is a [*NoDeviceError].
func (m *Manager) Resolve(ctx context.Context, devices string, attr verbs.CMIDAttr) (id verbs.CMID, err error) {
	cands, err := m.candidates(devices)
	if err != nil {
		return nil, err
	}
	err = m.try(ctx, withoutShm(cands), attr, func(got verbs.CMID) error {
		id = got
		return nil
	})
	return id, err
}

// Dial has connect make a connection of an identifier bound to the best provider of the list devices that serves
// attr.Remote. The identifier is connect's to close, and what connect returns is returned. Only
// where nobody listens over shared memory does the next provider have its turn: a server may be on one of them, and it costs nothing to
// find out. That nobody listens on any is a [*RefusedError].
func (m *Manager) Dial(ctx context.Context, devices string, attr verbs.CMIDAttr, connect func(verbs.CMID) error) error {
	cands, err := m.candidates(devices)
	if err != nil {
		return err
	}
	return m.try(ctx, cands, attr, connect)
}

// try calls use with an identifier of one candidate after the other, as Dial says.
func (m *Manager) try(ctx context.Context, cands []candidate, attr verbs.CMIDAttr, use func(verbs.CMID) error) error {
	none := &NoDeviceError{Target: target(&attr), Listed: cands[0].named}
	var failed error // the first cause that is about the address, not about devices
	refused := -1    // the index in none.Tried of who said that nobody listens
	for i := range cands {
		c := &cands[i]
		// Who names nothing but shared memory takes whoever holds the port, as with TCP. Else a name that somebody was first to take
		// must not keep a dial from a server which could not have it.
		attr.AnyUser = c.isShm() && len(cands) == 1
		id, err := m.resolveOn(ctx, c, attr)
		for again := connectTries; err == nil; again-- {
			if err = use(id); again > 0 && attr.Local.Port() == 0 && errors.Is(err, syscall.EADDRNOTAVAIL) && ctx.Err() == nil {
				// As package net does it: the port that was picked has just been another connection's to the same address.
				id, err = m.resolveOn(ctx, c, attr)
				continue
			}
			if err == nil || !c.isShm() || !nobodyListens(err) {
				return err
			}
		}
		if ctx.Err() != nil {
			return &ProviderError{Provider: c.providerName(), Device: c.device, Err: ctx.Err()}
		}
		// Somebody listens, and is stopped: nobody else will answer for it. Of whom nobody knows whose process it is that is no device.
		if c.isShm() && errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, verbs.ErrNoDevice) {
			return &ProviderError{Provider: Shm, Err: err}
		}
		if c.isShm() && nobodyListens(err) {
			refused = len(none.Tried)
			err = &verbs.RejectError{Reason: verbs.RejInvalidServiceID} // no more is to be said
		} else if failed == nil && !errors.Is(err, verbs.ErrNoDevice) {
			failed = &ProviderError{Provider: c.providerName(), Device: c.device, Err: err}
		}
		none.Tried = append(none.Tried, Cause{c.name, err})
	}
	switch {
	case failed != nil:
		return failed
	case refused >= 0 && !errors.Is(none, syscall.EADDRINUSE): // else somebody is in the way of a provider on which there may be a listener
		others := slices.Delete(slices.Clone(none.Tried), refused, refused+1)
		return &ProviderError{Provider: Shm, Err: &RefusedError{Target: none.Target, Others: others}}
	}
	return none
}

// nobodyListens tells whether err is that, and not another refusal.
func nobodyListens(err error) bool {
	var rej *verbs.RejectError
	if errors.As(err, &rej) {
		return rej.Reason == verbs.RejInvalidServiceID
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// target is what an identifier shall lead to or, if that is nowhere, be bound to.
func target(attr *verbs.CMIDAttr) string {
	for _, a := range []netip.Addr{attr.Remote.Addr(), attr.Local.Addr()} {
		if a.IsValid() {
			return a.String()
		}
	}
	return "any address"
}

func (m *Manager) resolveOn(ctx context.Context, c *candidate, attr verbs.CMIDAttr) (verbs.CMID, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.implied() {
		if err := m.guard(c.p, attr.Local.Addr(), attr.Remote.Addr()); err != nil {
			return nil, err
		}
	}
	attr.Device, attr.Port = c.device, c.port
	return c.p.Resolve(ctx, &attr)
}

// Drain waits until every provider has told the peers of closed connections
// what they must be told, or ctx ends.
func (m *Manager) Drain(ctx context.Context) error {
	for _, p := range m.Providers {
		if d, ok := p.(interface{ Drain(context.Context) error }); ok {
			if err := d.Drain(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Counters returns what a provider counted for one of its devices.
func (m *Manager) Counters(provider, device string) verbs.DeviceCounters {
	if c, ok := m.provider(provider).(verbs.Counter); ok {
		return c.Counters(device)
	}
	return verbs.DeviceCounters{}
}

// Counted calls f with each device that Counters tells of.
func (m *Manager) Counted(f func(provider, device string)) {
	for _, p := range m.Providers {
		c, ok := p.(verbs.Counter)
		if !ok {
			continue
		}
		for _, device := range c.Counted() {
			f(p.Name(), device)
		}
	}
}

// LookupRemote describes the device from which addr is reached.
func (m *Manager) LookupRemote(ctx context.Context, addr netip.Addr) (*verbs.DeviceInfo, error) {
	id, err := m.Resolve(ctx, "", verbs.CMIDAttr{
		PortSpace: verbs.PSTCP,
		Remote:    netip.AddrPortFrom(addr, 0), // the way there is asked for, whoever listens
		Handler:   func(verbs.Event) {},
	})
	if err != nil {
		return nil, err
	}
	info := *id.Device().Info()
	return &info, id.Close()
}

// LookupLocal describes the device that owns addr, an address of this host: the best one of the list that RDMANET_DEVICE is.
func (m *Manager) LookupLocal(addr netip.Addr) (*verbs.DeviceInfo, error) {
	cands, err := m.candidates("")
	if err != nil {
		return nil, err
	}
	cands = withoutShm(cands)
	none := &NoDeviceError{Target: addr.String(), Listed: cands[0].named}
	for i := range cands {
		c := &cands[i]
		err := c.err
		var infos []verbs.DeviceInfo
		if err == nil {
			infos, err = c.p.Devices()
		}
		if err != nil {
			none.Tried = append(none.Tried, Cause{c.name, err})
			continue
		}
		for i := range infos {
			info := &infos[i]
			switch {
			case c.device != "" && info.Name != c.device:
				continue
			case info.Unusable != nil:
				err = info.Unusable
			case !owns(info, addr, c.port):
				err = errors.New("has no such address")
			default:
				err = nil
				if c.implied() {
					err = m.guard(c.p, addr, addr)
				}
				if err == nil {
					return info, nil
				}
			}
			none.Tried = append(none.Tried, Cause{info.Name, err})
		}
	}
	return nil, none
}

// owns tells whether a port of the device has the address. The whole of
// 127.0.0.0/8 belongs to the one who has any of it.
func owns(info *verbs.DeviceInfo, addr netip.Addr, port int) bool {
	for _, p := range info.Ports {
		if port != 0 && p.Num != port {
			continue
		}
		for _, g := range p.GIDs {
			g = g.Unmap()
			if g.WithZone("") == addr.WithZone("") || g.Is4() && addr.Is4() && g.IsLoopback() && addr.IsLoopback() {
				return true
			}
		}
	}
	return false
}
