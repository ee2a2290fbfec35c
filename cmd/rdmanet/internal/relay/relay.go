package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// Relay joins each connection that a listener accepts with one of its own.
type Relay struct {
	Dial     func(ctx context.Context) (net.Conn, error)
	Timeout  time.Duration // of Dial; 0: none
	MaxConns int           // more wait to be accepted; 0: no limit
	Grace    time.Duration // how long connections may go on when Serve is to end

	// Opened, Ended and Failed, if not nil, are told of connections, which are numbered from 1. Failed is one for which there
	// was none of ours, or none to accept (number 0). They may be called from several goroutines.
	Opened func(id uint64, from, to net.Conn)
	Ended  func(id uint64, t Traffic, took time.Duration, err error)
	Failed func(id uint64, err error)

	// Waiting, if not nil, is told how many connections are left for the time of Grace.
	Waiting func(n int)

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	over  bool // no connection lives on
	wg    sync.WaitGroup
}

// Serve relays until ctx ends, or the listener, which it closes. It returns when no connection is left.
func (r *Relay) Serve(ctx context.Context, l net.Listener) error {
	r.conns = make(map[net.Conn]struct{})
	dialing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unhook := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer unhook()

	var room chan struct{}
	if r.MaxConns > 0 {
		room = make(chan struct{}, r.MaxConns)
	}
	err := r.accept(ctx, l, func(id uint64, c net.Conn) {
		if room != nil {
			defer func() { <-room }()
		}
		r.serve(dialing, id, c)
	}, room)
	_ = l.Close()
	r.finish(stop)
	return err
}

// accept runs serve for each connection. Before it accepts one it takes a place in room.
func (r *Relay) accept(ctx context.Context, l net.Listener, serve func(id uint64, c net.Conn), room chan struct{}) error {
	var pause time.Duration
	for id := uint64(0); ; {
		if room != nil {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
		}
		c, err := l.Accept()
		if err == nil {
			pause = 0
			id++
			number := id
			r.wg.Go(func() { serve(number, c) })
			continue
		}
		if room != nil {
			<-room
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !passes(err):
			return err
		}
		// As net/http does it: what is short may come back.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		r.failed(0, fmt.Errorf("%w; trying again in %v", err, pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// passes tells whether accepting may work again later.
func passes(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// finish lets connections end by themselves for the time of Grace, and ends the rest.
func (r *Relay) finish(stopDialing func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.wg.Wait()
	}()
	r.mu.Lock()
	n := len(r.conns) / 2
	r.mu.Unlock()
	if r.Grace > 0 {
		if n > 0 && r.Waiting != nil {
			r.Waiting(n)
		}
		t := time.NewTimer(r.Grace)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		}
	}
	stopDialing()
	r.mu.Lock()
	r.over = true
	for c := range r.conns {
		Abort(c)
	}
	r.mu.Unlock()
	<-done
}

// serve relays one connection.
func (r *Relay) serve(ctx context.Context, id uint64, from net.Conn) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	to, err := r.Dial(ctx)
	if err != nil {
		Abort(from)
		r.failed(id, err)
		return
	}
	if !r.add(from, to) {
		Abort(from)
		Abort(to)
		return
	}
	if r.Opened != nil {
		r.Opened(id, from, to)
	}
	start := time.Now()
	t, err := Join(from, to)
	r.remove(from, to)
	if r.Ended != nil {
		r.Ended(id, t, time.Since(start), err)
	}
}

func (r *Relay) failed(id uint64, err error) {
	if r.Failed != nil {
		r.Failed(id, err)
	}
}

func (r *Relay) add(cs ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	for _, c := range cs {
		r.conns[c] = struct{}{}
	}
	return true
}

func (r *Relay) remove(cs ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		delete(r.conns, c)
	}
}
