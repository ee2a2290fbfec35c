//go:build linux

package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// serve reads until the link ends.
func (l *link) serve() {
	over := false
	read := func(fd uintptr) bool { // made once
		for {
			more, err := l.next(int(fd))
			if err != nil {
				over = true
			}
			if over || l.anyDue() {
				return true
			}
			if !more {
				return false
			}
		}
	}
	for !over && l.rc.Read(read) == nil {
		l.notify()
	}
	l.rx.Lock()
	err := l.rx.err
	l.rx.Unlock()
	if err == nil || errors.Is(err, io.EOF) {
		err = syscall.ECONNRESET
	}
	l.dev.p.unlink(l)
	l.broken(err)
	l.tx.Lock()
	l.tx.fd = -1
	l.tx.Unlock()
	l.closePorch()
	_ = l.f.Close()
	l.dev.settle()
}

func (l *link) anyDue() bool {
	l.rx.Lock()
	defer l.rx.Unlock()
	return len(l.rx.due) > 0
}

// notify calls the queues' Notify that messages asked for.
func (l *link) notify() {
	for {
		l.rx.Lock()
		n := len(l.rx.due)
		var c *cq
		if n > 0 {
			c = l.rx.due[n-1]
			l.rx.due[n-1] = nil
			l.rx.due = l.rx.due[:n-1]
		}
		l.rx.Unlock()
		if c == nil {
			return
		}
		c.notified()
	}
}

// mostPumped bounds what a consumer's call takes of what a peer sends. The rest the reader takes.
const mostPumped = 64

// pump takes messages that are there, inside a consumer's call.
func (l *link) pump() {
	_ = l.rc.Control(func(fd uintptr) {
		for range mostPumped {
			if more, err := l.next(int(fd)); err != nil || !more {
				return // the reader finds an error again
			}
		}
	})
	l.rx.Lock()
	due := l.rx.due
	l.rx.due = nil
	l.rx.Unlock()
	for _, c := range due {
		l.dev.notifier.add(c)
	}
}

// next takes one message. more is false if there is none.
func (l *link) next(fd int) (more bool, err error) {
	l.rx.Lock()
	defer l.rx.Unlock()
	if l.rx.err != nil {
		return false, l.rx.err
	}
	p := &l.rx.packet
	n, oobn, truncated, err := p.receive(fd)
	switch {
	case err == unix.EAGAIN: //nolint:errorlint // a bare errno
		return false, nil
	case err == unix.ECONNRESET: //nolint:errorlint // likewise: the peer left something unread; what it sent comes all the same
		return true, nil
	case err != nil:
		l.rx.err = os.NewSyscallError("recvmsg", err)
	case n == 0:
		l.rx.err = io.EOF
	default:
		l.rx.heard++
		l.rx.err = l.take(p.data[:n], p.oob[:oobn], truncated)
	}
	if l.rx.err != nil {
		return false, l.rx.err
	}
	return true, nil
}

// take handles a message, and closes what came with it.
func (l *link) take(data, oob []byte, truncated bool) error {
	fds := descriptors(oob)
	if truncated || len(fds) > 1 {
		closeAside(fds)
		return errMessage
	}
	if len(fds) == 0 {
		return l.handle(data, -1)
	}
	if k := kind(data[0]); k != msgSegment && k != msgPorch {
		closeAside(fds)
		return fmt.Errorf("message of kind %d with a descriptor: %w", k, syscall.EPROTO)
	}
	if err := l.handle(data, fds[0]); err != nil {
		closeAside(fds)
		return err
	}
	return os.NewSyscallError("close", unix.Close(fds[0])) // it is what it has to be
}

// closeAside closes what may be anything: a file system of the peer's (FUSE) lets whoever closes wait as long as it likes. The link that it came
// by ends.
func closeAside(fds []int) {
	for _, fd := range fds {
		go func() { _ = unix.Close(fd) }()
	}
}

// descriptors takes the descriptors out of control messages.
func descriptors(oob []byte) (got []int) {
	if len(oob) == 0 {
		return nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range cmsgs {
		if fds, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			got = append(got, fds...)
		}
	}
	return got
}
