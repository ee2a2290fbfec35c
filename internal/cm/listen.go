package cm

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// portTries bounds how often a port that one provider picked may be taken on another.
const portTries = 16

// Listener is a port taken on one provider or several.
type Listener struct {
	Parts []Part
	// Skipped tells why other providers of the list do not take part.
	Skipped []Cause
	// Unreached tells why processes of other hosts do not reach it though its address is not for this one alone, or is nil.
	Unreached error
}

// Part is the listener of one provider.
type Part struct {
	verbs.Listener
	Provider string
	Device   string // empty: all of the provider's
}

// Addr is the bound address, the same on all parts.
func (l *Listener) Addr() netip.AddrPort { return l.Parts[0].Addr() }

// Close gives the port up on every provider.
func (l *Listener) Close() error {
	var errs []error
	for _, p := range l.Parts {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// WithoutShm is why shared memory does not take part though it is part of this build, or nil.
func (l *Listener) WithoutShm() error {
	for _, c := range l.Skipped {
		if c.Name == Shm && !errors.Is(c.Err, errNotInBuild) {
			return c.Err
		}
	}
	return nil
}

// Listen takes attr.Local on every provider of the list devices that serves
// it, at one port number. A port that is in use on one of them is in use. Shared memory alone will do for a loopback address, or if
// nothing else is named: elsewhere it would look as if the listener could be reached.
func (m *Manager) Listen(ctx context.Context, devices string, attr verbs.ListenAttr) (*Listener, error) {
	l, err := m.ListenBeside(ctx, devices, attr)
	if err == nil && l.Unreached != nil {
		_ = l.Close() // why it is not wanted says more
		return nil, l.Unreached
	}
	return l, err
}

// ListenBeside is Listen for who listens by other means, too: shared memory alone will do, and Unreached tells of it.
func (m *Manager) ListenBeside(ctx context.Context, devices string, attr verbs.ListenAttr) (*Listener, error) {
	cands, err := m.candidates(devices)
	if err != nil {
		return nil, err
	}
	if attr.PortSpace == verbs.PSUDP || attr.PortSpace == verbs.PSIPoIB {
		cands = withoutShm(cands) // which has no datagrams
	}
	// The C libraries pick a free number from a space they share with others
	// (the kernel's); the other providers' spaces are nearly empty, so they follow.
	slices.SortStableFunc(cands, func(a, b candidate) int {
		return rank(&a) - rank(&b)
	})
	for try := 1; ; try++ {
		l, err := m.listenOnce(ctx, cands, attr)
		if err == nil || attr.Local.Port() != 0 || try == portTries ||
			ctx.Err() != nil || !errors.As(err, new(*followError)) {
			return l, err
		}
	}
}

func rank(c *candidate) int {
	if c.providerName() == RDMACore {
		return 0
	}
	return 1
}

// followError is a port number that one provider picked and another did not have.
type followError struct{ ProviderError }

func (m *Manager) listenOnce(ctx context.Context, cands []candidate, attr verbs.ListenAttr) (*Listener, error) {
	l := new(Listener)
	if err := m.listenAll(ctx, l, cands, attr); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// listenAll adds a part to l for each candidate that serves the address.
func (m *Manager) listenAll(ctx context.Context, l *Listener, cands []candidate, attr verbs.ListenAttr) error {
	picked := attr.Local.Port() == 0
	var failed error // the first cause that is about the address, not about devices
	for i := range cands {
		c := &cands[i]
		if l.covers(c) {
			continue
		}
		part, err := m.listenOn(ctx, c, attr)
		if err == nil {
			l.Parts = append(l.Parts, Part{part, c.providerName(), c.device})
			attr.Local = netip.AddrPortFrom(attr.Local.Addr(), part.Addr().Port())
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		at := ProviderError{c.providerName(), c.device, err}
		if errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, verbs.ErrNoDevice) { // else in use by what is in the way of the device
			if picked && len(l.Parts) > 0 {
				return &followError{at}
			}
			return &at
		}
		l.Skipped = append(l.Skipped, Cause{c.name, err})
		if failed == nil && !errors.Is(err, verbs.ErrNoDevice) {
			failed = &at
		}
	}
	elsewhere := func(c candidate) bool { return !c.isShm() }
	onlyShm := len(l.Parts) == 1 && l.Parts[0].Provider == Shm && slices.ContainsFunc(cands, elsewhere) && !attr.Local.Addr().Unmap().IsLoopback()
	if len(l.Parts) > 0 && !onlyShm {
		return nil
	}
	if failed == nil {
		failed = &NoDeviceError{Target: attr.Local.Addr().String(), Listed: cands[0].named, Tried: l.Skipped, HostOnly: onlyShm}
	}
	if onlyShm {
		l.Unreached = failed
		return nil
	}
	return failed
}

// covers tells whether a listener is already there for what c asks.
func (l *Listener) covers(c *candidate) bool {
	return c.p != nil && slices.ContainsFunc(l.Parts, func(p Part) bool {
		return p.Provider == c.p.Name() && (p.Device == "" || p.Device == c.device)
	})
}

func (m *Manager) listenOn(ctx context.Context, c *candidate, attr verbs.ListenAttr) (verbs.Listener, error) {
	if c.err != nil {
		return nil, c.err
	}
	if c.implied() {
		if err := m.guard(c.p, attr.Local.Addr(), netip.Addr{}); err != nil {
			return nil, err
		}
	}
	attr.Device, attr.Port = c.device, c.port
	return c.p.Listen(ctx, &attr)
}
