package softroce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
)

const (
	// shortPause is the time between two reports of a shortage to a listener.
	shortPause = time.Second
	// watchAgain is the time until a process is watched that could not be, for want of a descriptor.
	watchAgain = time.Second
)

// short is told that descriptors or memory ran out, and something was lost for it. The listeners hear of it, since
// whoever dials can know only that time runs out.
func (in *instance) short(err error) {
	if !in.up.Load() {
		return
	}
	now := in.dev.clock.Now()
	in.shortMu.Lock()
	in.shortErr, in.shortAt = err, now
	tell := in.shortTold.IsZero() || now.Sub(in.shortTold) >= shortPause
	if tell {
		in.shortTold = now
	}
	in.shortMu.Unlock()
	if !tell {
		return
	}
	var fs []func(error)
	in.mu.Lock()
	for _, ls := range in.listeners {
		for _, l := range ls {
			if l.short != nil {
				fs = append(fs, l.short)
			}
		}
	}
	in.mu.Unlock()
	if len(fs) > 0 {
		go func() { // this may be inside a consumer's call
			for _, f := range fs {
				f(err)
			}
		}()
	}
}

// blame adds to the error of a wait in vain, which began at since, that something ran out meanwhile.
func (in *instance) blame(err error, since time.Time) error {
	if !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	in.shortMu.Lock()
	defer in.shortMu.Unlock()
	if in.shortErr == nil || in.shortAt.Before(since) {
		return err
	}
	return fmt.Errorf("%w, and this process ran short meanwhile: %w", err, in.shortErr)
}

// lateWatch is a watch that there is no descriptor for as yet.
type lateWatch struct {
	in   *instance
	slot uint8
	died func()

	mu    sync.Mutex
	over  bool
	timer Timer
	stop  func()
}

// watchLater watches a process as soon as that can be done.
func (in *instance) watchLater(slot uint8, died func()) (stop func()) {
	w := &lateWatch{in: in, slot: slot, died: died}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = in.dev.clock.AfterFunc(watchAgain, w.try)
	return w.end
}

func (w *lateWatch) try() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || !w.in.dev.tryRetain() {
		return
	}
	defer w.in.dev.letGo()
	stop, err := w.in.share.Watch(w.slot, w.died)
	switch {
	case err == nil:
		w.stop = stop
	case errors.Is(err, share.ErrUnclaimed):
		w.died()
	case errors.Is(err, share.ErrDropped):
		w.timer = w.in.dev.clock.AfterFunc(watchAgain, w.try)
	}
}

func (w *lateWatch) end() {
	w.mu.Lock()
	w.over = true
	w.timer.Stop()
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		stop()
	}
}
