package netio

import (
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
	_ = w.rc.Read(func(uintptr) bool { return readable() })
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
		var ev [1]unix.EpollEvent
		for _, err := unix.EpollWait(w.ep, ev[:], 0); err == unix.EINTR; _, err = unix.EpollWait(w.ep, ev[:], 0) {
		}
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
