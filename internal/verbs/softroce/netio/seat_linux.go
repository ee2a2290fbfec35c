package netio

import (
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
			old.attend(ByOwn)
		}
		u.away = s
	}
	if s != nil {
		s.attend(who)
	}
}

// attend has the socket's goroutine woken, or who sits, or nobody. UDP.awayMu is held.
func (s *rxSock) attend(who Attention) {
	if who == BySitter {
		if s.seat.f == nil && s.seat.open(s.fd, false) != nil {
			who = ByOwn
		} else {
			s.seat.setQuiet(false)
		}
	}
	s.watch.setQuiet(who != ByOwn)
	if who != BySitter && s.seat.f != nil {
		s.seat.setQuiet(true)
	}
}

// sitting is who waits on a socket's seat, which is one goroutine at a time.
type sitting struct {
	read    func(uintptr) bool // UDP.sitRead
	done    func() bool
	sock    *rxSock
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
	u.awayMu.Lock()
	s := u.away
	u.awayMu.Unlock()
	if s == nil || done() {
		return
	}
	rc, file := s.seat.conn()
	if rc == nil {
		return
	}
	t.done, t.sock = done, s
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
	t.done, t.sock = nil, nil
}

// sitRead is called whenever the socket may be readable. It returns false to sleep.
func (u *UDP) sitRead(uintptr) bool {
	t := &u.sits
	if t.done() {
		return true
	}
	t.reading.Store(true)
	closed := t.sock.drain()
	t.reading.Store(false)
	// Who has got what it waits for is about to answer; before others the network is idle.
	if closed || t.done() {
		return true
	}
	u.idle()
	return false
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
