package rdmanet

import (
	"context"
	"io"
	"net/netip"
	"time"
)

// Of a name with addresses of both families, the first address's is
// preferred; the other's start when it has failed or been slow (RFC 8305).

const (
	defaultFallbackDelay = 300 * time.Millisecond
	// minPerAddress is the least time an address gets while others wait.
	minPerAddress = 2 * time.Second
)

// attempts is a dial to whichever of some addresses works, of a connection of type C.
type attempts[C io.Closer] struct {
	fallbackDelay time.Duration // as in a Dialer
	one           func(ctx context.Context, addr netip.AddrPort) (C, error)
}

// any connects to whichever address works.
func (x *attempts[C]) any(ctx context.Context, addrs []netip.AddrPort) (C, error) {
	preferred, others := byFamily(addrs)
	if x.fallbackDelay < 0 || len(others) == 0 {
		return x.inOrder(ctx, addrs)
	}
	delay := x.fallbackDelay
	if delay == 0 {
		delay = defaultFallbackDelay
	}
	return x.race(ctx, preferred, others, delay)
}

// byFamily splits addresses into those of the first one's family and the rest.
func byFamily(addrs []netip.AddrPort) (first, rest []netip.AddrPort) {
	for _, a := range addrs {
		if a.Addr().Is4() == addrs[0].Addr().Is4() {
			first = append(first, a)
		} else {
			rest = append(rest, a)
		}
	}
	return first, rest
}

// inOrder tries one address after the other. If none works, the first error is returned.
func (x *attempts[C]) inOrder(ctx context.Context, addrs []netip.AddrPort) (none C, first error) {
	for i, a := range addrs {
		c, err := x.within(ctx, a, len(addrs)-i)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return none, first
}

// within connects to one address in its share of the time left for n.
func (x *attempts[C]) within(ctx context.Context, a netip.AddrPort, n int) (C, error) {
	ctx, cancel := share(ctx, n)
	defer cancel()
	return x.one(ctx, a)
}

// share gives one of n addresses its part of the time left.
func share(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok || n < 2 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(n), minPerAddress))
}

// race tries the preferred addresses, and the others beside them once delay has
// passed or the preferred have failed.
func (x *attempts[C]) race(ctx context.Context, preferred, others []netip.AddrPort, delay time.Duration) (C, error) {
	c, err, _ := either(ctx,
		func(ctx context.Context) (C, error) { return x.inOrder(ctx, preferred) },
		func(ctx context.Context) (C, error) { return x.inOrder(ctx, others) }, delay)
	return c, err
}

// either tries the first way to connect, and the second beside it once delay has passed or the first has failed; with
// a negative delay only then. A connection that comes too late is closed. If neither works, both errors are
// returned, nil for a way that was not tried; if one does, the error of one that had failed before.
func either[C io.Closer](ctx context.Context, first, second func(context.Context) (C, error), delay time.Duration) (c C, err1, err2 error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the slower one

	type result struct {
		c     C
		err   error
		first bool
	}
	results := make(chan result)
	over := make(chan struct{})
	defer close(over)
	start := func(way func(context.Context) (C, error), first bool) {
		go func() {
			c, err := way(ctx)
			select {
			case results <- result{c, err, first}:
			case <-over:
				if err == nil {
					c.Close()
				}
			}
		}()
	}
	start(first, true)
	var late <-chan time.Time
	if delay >= 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		late = timer.C
	}
	running, started := 1, false
	for {
		select {
		case <-late:
		case r := <-results:
			if r.err == nil {
				return r.c, err1, err2
			}
			running--
			if r.first {
				err1 = r.err
			} else {
				err2 = r.err
			}
		}
		if !started && ctx.Err() == nil {
			started = true
			running++
			start(second, false)
		}
		if running == 0 {
			return c, err1, err2
		}
	}
}
