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

// Listen takes attr.Local on every provider of the list devices that serves
// it, at one port number. A port that is in use on one of them is in use.
func (m *Manager) Listen(ctx context.Context, devices string, attr verbs.ListenAttr) (*Listener, error) {
	cands, err := m.candidates(devices)
	if err != nil {
		return nil, err
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
		if errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, verbs.ErrNoDevice) {
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
	switch {
	case len(l.Parts) > 0:
		return nil
	case failed != nil:
		return failed
	}
	return &NoDeviceError{Target: attr.Local.Addr().String(), Listed: cands[0].named, Tried: l.Skipped}
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
