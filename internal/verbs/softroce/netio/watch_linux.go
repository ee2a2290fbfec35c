package netio

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// watch has a goroutine wait in the runtime's poller until a socket is readable. Between the two is an epoll instance of its own,
// which can be told to pay the socket no attention for a while: the runtime's cannot.
type watch struct {
	fd int
	ep int
	f  *os.File // nil: not open yet
	rc syscall.RawConn

	mu     sync.Mutex // held while off or closed changes
	off    atomic.Bool
	closed bool
}

// open begins to watch fd, which stays the caller's, or is quiet at first.
func (w *watch) open(fd int, on bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return net.ErrClosed
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	w.fd, w.ep = fd, ep
	w.off.Store(!on)
	if err = w.ctl(unix.EPOLL_CTL_ADD, on); err == nil {
		err = unix.SetNonblock(ep, true) // the runtime's poller takes no others
	}
	if err != nil {
		_ = unix.Close(ep)
		return err
	}
	f := os.NewFile(uintptr(ep), "udp")
	if w.rc, err = f.SyscallConn(); err != nil {
		_ = f.Close()
		return err
	}
	w.f = f
	return nil
}

// run calls readable whenever the socket may be, until it returns true or the watch is closed.
func (w *watch) run(readable func() (done bool)) {
	// The callback parks again by returning false.
	_ = w.rc.Read(func(uintptr) bool {
		w.settle()
		return readable()
	})
}

// settle is called before the socket is read because it was said to be readable, inside a call of rc's, so that ep is open.
func (w *watch) settle() {
	if tellsOnce() {
		w.takeReady()
	}
}

// takeReady takes the socket off the list of what is ready.
func (w *watch) takeReady() {
	var ev [1]unix.EpollEvent
	for _, err := unix.EpollWait(w.ep, ev[:], 0); err == unix.EINTR; _, err = unix.EpollWait(w.ep, ev[:], 0) {
	}
}

// tellsOnce tells whether this kernel's epoll instance says that it is readable only when something comes into its list of what is
// ready, which stays there until it is asked for. gVisor's does. Linux says it at each arrival.
var tellsOnce = sync.OnceValue(func() bool {
	once, err := nestedTellsOnce()
	return once || err != nil
})

// nestedTellsOnce tries it: one epoll instance watches another, as the runtime's poller does.
func nestedTellsOnce() (once bool, err error) {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	open := func(fd int, e error) int {
		if e != nil {
			err = errors.Join(err, e)
			return -1
		}
		fds = append(fds, fd)
		return fd
	}
	event := open(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))
	inner, outer := open(unix.EpollCreate1(unix.EPOLL_CLOEXEC)), open(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	if err != nil {
		return false, err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}
	if err := errors.Join(unix.EpollCtl(inner, unix.EPOLL_CTL_ADD, event, &ev), unix.EpollCtl(outer, unix.EPOLL_CTL_ADD, inner, &ev)); err != nil {
		return false, err
	}
	var told [2]int
	for i := range told {
		word := binary.NativeEndian.AppendUint64(nil, 1)
		if _, err := unix.Write(event, word); err != nil {
			return false, err
		}
		var evs [1]unix.EpollEvent
		if told[i], err = unix.EpollWait(outer, evs[:], 0); err != nil {
			return false, err
		}
		if _, err := unix.Read(event, word); err != nil {
			return false, err
		}
	}
	return told[1] == 0, nil
}

func (w *watch) ctl(op int, on bool) error {
	ev := unix.EpollEvent{Fd: int32(w.fd)}
	if on {
		ev.Events = unix.EPOLLIN | unix.EPOLLET
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.ep, op, w.fd, &ev))
}

// move watches another fd instead of the one that was watched.
func (w *watch) move(fd int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return net.ErrClosed
	}
	_ = w.ctl(unix.EPOLL_CTL_DEL, false) // it may have been left
	w.fd = fd
	return w.ctl(unix.EPOLL_CTL_ADD, !w.off.Load())
}

// leave watches nothing any more, until move.
func (w *watch) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		_ = w.ctl(unix.EPOLL_CTL_DEL, false) // an error means that there is nothing to leave
	}
}

// quiet tells whether arrivals go unnoticed.
func (w *watch) quiet() bool { return w.off.Load() }

// setQuiet has arrivals go unnoticed, or noticed again, the last ones included.
func (w *watch) setQuiet(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || on == w.off.Load() {
		return
	}
	if w.ctl(unix.EPOLL_CTL_MOD, !on) != nil {
		return
	}
	w.off.Store(on)
	if on {
		// What was told to the runtime's poller is still in the list of what is ready, and only what comes into the list is told.
		w.takeReady()
	}
}

func (w *watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		if w.f != nil {
			_ = w.f.Close()
		}
	}
}

// Yield lets other threads run.
func (u *UDP) Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
