//go:build linux && cgo

package rdmacore

import (
	"context"
	"fmt"
	"sync"
)

// eventChannel is the event channel that all connections share, and the goroutine that reads it. Both stay, once there are any, as
// long as the process: there is always something to hear of (see watch).
type eventChannel struct {
	c     *core
	ec    *coreEC
	drain *drainer
	buf   eventBuffer
	ev    cmEvent

	mu      sync.Mutex
	ids     map[uint64]listening // by token
	watched map[*coreCtx]bool    // librdmacm's contexts of devices
}

// listening is who hears of the events of an identifier, on the channel's goroutine.
type listening interface{ onCM(ev *cmEvent) }

// channel returns the event channel.
func (c *core) channel() (*eventChannel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ec != nil {
		return c.ec, nil
	}
	ec, fd, err := coreCreateEC()
	if err != nil {
		return nil, c.p.host.cannotManage(err)
	}
	ch := &eventChannel{c: c, ec: ec, ids: make(map[uint64]listening), watched: make(map[*coreCtx]bool)}
	if ch.drain, err = newDrainer(fd, "rdma_cm"); err != nil {
		coreDestroyEC(ec)
		return nil, err
	}
	c.ec = ch
	go ch.run()
	return ch, nil
}

func (ch *eventChannel) run() {
	ch.drain.run(func() (err error) { ch.ev, err = ch.buf.next(ch.ec); return err }, ch.dispatch, nil)
}

func (ch *eventChannel) dispatch() {
	ch.mu.Lock()
	id := ch.ids[ch.ev.token]
	ch.mu.Unlock()
	if id != nil {
		id.onCM(&ch.ev)
	}
}

func (ch *eventChannel) add(token uint64, id listening) {
	ch.mu.Lock()
	ch.ids[token] = id
	ch.mu.Unlock()
}

func (ch *eventChannel) remove(token uint64) {
	ch.mu.Lock()
	delete(ch.ids, token)
	ch.mu.Unlock()
}

// idle counts connections whose owner is gone and whose peer must still be told.
type idle struct {
	mu sync.Mutex
	n  int
	ch chan struct{} // closed when there are none
}

func (i *idle) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n += n
	if i.n == 0 && i.ch != nil {
		close(i.ch)
		i.ch = nil
	}
}

// Drain waits until the peers of all closed connections have been told, or
// will not answer any more, or ctx ends. A program that is about to exit calls it.
func (p *Provider) Drain(ctx context.Context) error {
	i := &p.core.idle
	for {
		i.mu.Lock()
		n, ch := i.n, i.ch
		if n > 0 && ch == nil {
			ch = make(chan struct{})
			i.ch = ch
		}
		i.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("rdmacore: %d connections are still being ended: %w", n, ctx.Err())
		}
	}
}

// reapers is how many identifiers may be in the kernel at once to be destroyed.
const reapers = 8

// reaper runs functions that may block in the kernel, on few goroutines, which live while there are any.
type reaper struct {
	mu      sync.Mutex
	queue   []func()
	running int
}

func (r *reaper) do(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, f)
	if r.running < reapers {
		r.running++
		go r.run()
	}
}

func (r *reaper) run() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 {
		f := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		f()
		r.mu.Lock()
	}
	r.queue = nil
	r.running--
}
