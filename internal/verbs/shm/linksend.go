//go:build linux

package shm

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// message is what could not be sent at once.
type message struct {
	data []byte
	fd   int // a duplicate; -1: none
}

// maxWaiting bounds what waits for a peer that does not read, and maxForeignWaiting what does for one of another user, of whom
// nobody knows yet whether he is wanted.
const (
	maxWaiting        = 16 << 20
	maxForeignWaiting = 1 << 20
)

// tell sends a message that is nothing but a header. It does not allocate.
func (l *link) tell(h header) {
	var b [headerLen]byte
	l.send(putHeader(&b, h), -1)
}

// send sends a message, or has it sent when the peer reads. It does not wait.
func (l *link) send(data []byte, fd int) {
	l.tx.Lock()
	defer l.tx.Unlock()
	if l.tx.fd < 0 {
		return
	}
	if len(l.tx.waiting) == 0 {
		err := sendMessage(l.tx.fd, data, fd)
		if err == nil || !errors.Is(err, unix.EAGAIN) && !noRoom(err) {
			return // an error means that the peer is gone, which the reader finds
		}
	}
	m := message{append([]byte(nil), data...), -1}
	if fd >= 0 {
		var err error
		if m.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			l.shutdown()
			return
		}
	}
	l.tx.waiting = append(l.tx.waiting, m)
	if l.tx.bytes += len(data) + 64; l.tx.bytes > l.mostWaiting() {
		l.shutdown()
		return
	}
	if !l.tx.flushing {
		l.tx.flushing = true
		go l.flush()
	}
}

// ask has the peer say something, if its process runs. It returns how many messages have come before.
func (l *link) ask() (heard uint64) {
	heard = l.heard()
	l.tell(header{Kind: msgPing})
	return heard
}

// heard is how many messages have come.
func (l *link) heard() uint64 {
	l.rx.Lock()
	defer l.rx.Unlock()
	return l.rx.heard
}

func (l *link) mostWaiting() int {
	if trusted(uint32(l.cred.UID)) {
		return maxWaiting
	}
	return maxForeignWaiting
}

// shutdown ends the connection, which the reader of either end finds. l.tx is locked.
func (l *link) shutdown() { _ = unix.Shutdown(l.tx.fd, unix.SHUT_RDWR) }

func sendMessage(sock int, data []byte, fd int) error {
	for {
		var err error
		if fd < 0 {
			err = unix.Send(sock, data, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		} else {
			err = unix.Sendmsg(sock, data, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// noRoom tells whether an error of sendmsg(2) is about what the kernel has: memory, or descriptors of this user's that are on their way.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ETOOMANYREFS)
}

// roomRetry is how long one who was told that there is no room waits: nobody tells when there is some again.
const roomRetry = 10 * time.Millisecond

// flush sends what waits, as the peer reads.
func (l *link) flush() {
	for {
		over := false
		err := l.rc.Write(func(uintptr) bool {
			var wait bool
			wait, over = l.flushNow()
			return !wait
		})
		if err != nil && !over {
			l.tx.Lock()
			l.dropWaiting()
			l.tx.Unlock()
		}
		if err != nil || over {
			return
		}
		time.Sleep(roomRetry)
	}
}

// flushNow sends what it can. It tells whether the rest is to be sent when the peer has read something, and whether there is none.
func (l *link) flushNow() (wait, over bool) {
	l.tx.Lock()
	defer l.tx.Unlock()
	for len(l.tx.waiting) > 0 && l.tx.fd >= 0 {
		m := &l.tx.waiting[0]
		err := sendMessage(l.tx.fd, m.data, m.fd)
		if errors.Is(err, unix.EAGAIN) || noRoom(err) {
			return !noRoom(err), false
		}
		l.tx.bytes -= len(m.data) + 64
		if m.fd >= 0 {
			_ = unix.Close(m.fd)
		}
		l.tx.waiting[0] = message{}
		l.tx.waiting = l.tx.waiting[1:]
	}
	l.dropWaiting() // if anything, of a link that has ended
	if l.tx.closing && l.tx.fd >= 0 {
		l.shutdown()
	}
	return false, true
}

// dropWaiting gives up what was not sent. l.tx is locked.
func (l *link) dropWaiting() {
	for _, m := range l.tx.waiting {
		if m.fd >= 0 {
			_ = unix.Close(m.fd)
		}
	}
	l.tx.waiting, l.tx.flushing = nil, false
}
