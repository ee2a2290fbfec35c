package netio

import (
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Attend says who is woken from now on for what arrives at the socket with the traffic, and for what has arrived and was
// not read. All others are attended by their own goroutines.
func (u *UDP) Attend(who Attention) {
	var s *rxSock
	if who != ByOwn {
		s = u.hot.Load() // another one by now, perhaps
	}
	u.awayMu.Lock()
	defer u.awayMu.Unlock()
	if old := u.away; s != old {
		if old != nil {
			u.attend(old, ByOwn)
		}
		u.away = s
	}
	if s != nil {
		u.attend(s, who)
	}
}

// attend has the socket's goroutine woken, or who sits, or nobody. UDP.awayMu is held.
func (u *UDP) attend(s *rxSock, who Attention) {
	if who == BySitter && u.seatTo(s) != nil {
		who = ByOwn
	}
	s.watch.setQuiet(who != ByOwn)
	if who != BySitter && u.seatAt == s {
		u.seat.setQuiet(true)
	}
}

// seatTo has who sits woken for what arrives at s. There is one seat for all sockets: descriptors are few, and a socket comes with each process that is
// a peer. UDP.awayMu is held.
func (u *UDP) seatTo(s *rxSock) (err error) {
	switch {
	case s.gone.Load():
		return net.ErrClosed
	case u.seat.f == nil:
		err = u.seat.open(s.fd, false)
	case u.seatAt != s:
		err = u.seat.move(s.fd)
	}
	if err != nil {
		u.seatAt = nil
		return err
	}
	u.seatAt = s
	u.seat.setQuiet(false)
	return nil
}

// unseat has nobody sit at a socket any more that is about to be closed.
func (u *UDP) unseat(s *rxSock) {
	u.awayMu.Lock()
	if u.seatAt == s {
		u.seat.leave()
		u.seatAt = nil
	}
	u.awayMu.Unlock()
	u.Stand()
}

// sitting is who waits on a socket's seat, which is one goroutine at a time.
type sitting struct {
	read    func(uintptr) bool // UDP.sitRead
	done    func() bool
	reading atomic.Bool // the one who sits does not sleep, and is about to ask done

	mu    sync.Mutex
	file  *os.File // nil: nobody sits
	stood bool     // the file's deadline has been set
}

// Sit reads the socket with the traffic on the caller's goroutine, which sleeps as the sockets' own do while there is nothing, until
// done says that it is enough or the socket is closed. The handler may be called meanwhile. Attend(BySitter) precedes it, and what follows
// says who else attends. One goroutine sits at a time. Whoever changes what done says calls Stand.
func (u *UDP) Sit(done func() bool) {
	t := &u.sits
	if u.seated() == nil || done() {
		return
	}
	rc, file := u.seat.conn()
	if rc == nil {
		return
	}
	t.done = done
	t.mu.Lock()
	t.file = file
	t.mu.Unlock()
	for again := true; again; {
		_ = rc.Read(t.read) // the deadline is Stand's
		t.mu.Lock()
		if again = t.stood && !done(); !again {
			t.file = nil
		}
		if t.stood {
			t.stood = false
			_ = file.SetReadDeadline(time.Time{}) // it may be closed
		}
		t.mu.Unlock()
	}
	t.done = nil
}

// sitRead is called whenever the socket may be readable. It returns false to sleep.
func (u *UDP) sitRead(uintptr) bool {
	t := &u.sits
	if t.done() {
		return true
	}
	s := u.seated() // it may be another one than when the caller sat down
	if s == nil {
		return true
	}
	t.reading.Store(true)
	u.seat.settle()
	s.drain()
	t.reading.Store(false)
	// Who has got what it waits for is about to answer; before others the network is idle.
	if s.gone.Load() || t.done() {
		return true
	}
	u.idle()
	return false
}

// seated is the socket that who sits reads, or nil.
func (u *UDP) seated() *rxSock {
	u.awayMu.Lock()
	defer u.awayMu.Unlock()
	return u.seatAt
}

// Stand has the one who sits, if anybody does, ask done.
func (u *UDP) Stand() {
	t := &u.sits
	if t.reading.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file != nil && !t.stood {
		t.stood = t.file.SetReadDeadline(past) == nil
	}
}

var past = time.Unix(1, 0)

// conn is what to wait with, or nil.
func (w *watch) conn() (syscall.RawConn, *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, nil
	}
	return w.rc, w.f
}
