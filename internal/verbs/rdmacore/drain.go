//go:build linux && cgo

package rdmacore

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// shortageRetry is how long a drainer waits before it tries again to take what there was no memory for.
const shortageRetry = 20 * time.Millisecond

// drainer reads a descriptor of C's whenever Go's poller says that something is there.
type drainer struct {
	f    *os.File
	raw  syscall.RawConn
	done chan struct{} // closed when its goroutine has ended

	// aside is called when nothing can be read any more. It returns true when something can again. It may be nil.
	aside func() bool
}

// drain starts a goroutine that calls take until it fails, for another reason than memory, and handle after each success. take is called
// again until it says EAGAIN, then when the descriptor is readable: that is edge-triggered,
// and everything must have been taken. The descriptor is the drainer's from now on.
func drain(fd int, name string, take func() error, handle func(), failed func(error)) (*drainer, error) {
	d, err := newDrainer(fd, name)
	if err == nil {
		go d.run(take, handle, failed)
	}
	return d, err
}

func newDrainer(fd int, name string) (*drainer, error) {
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close() // nothing was read
		return nil, err
	}
	return &drainer{f: f, raw: raw, done: make(chan struct{})}, nil
}

func (d *drainer) run(take func() error, handle func(), failed func(error)) {
	defer close(d.done)
	var err error
	once := func(uintptr) bool {
		err = take()
		return !errors.Is(err, syscall.EAGAIN)
	}
	for {
		// handle runs outside of Read, so that it may close the drainer.
		if d.raw.Read(once) != nil {
			if d.aside != nil && d.aside() {
				continue
			}
			return // closed
		}
		if errors.Is(err, syscall.ENOMEM) {
			time.Sleep(shortageRetry) // what is there stays there
			continue
		}
		if err != nil {
			if failed != nil {
				failed(err)
			}
			return
		}
		handle()
	}
}

// close lets the goroutine end. It does not wait for it, which may be the caller.
func (d *drainer) close() { _ = d.f.Close() }

// wait waits for the goroutine to end.
func (d *drainer) wait() { <-d.done }
