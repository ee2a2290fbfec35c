//go:build linux

package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// porch is where one goroutine of the process waits for the peer of a link, which knocks instead of ringing a bell: that would
// wake the goroutine that reads the link, and it another one. Who sits has armed its queue by another value of the word on the board.
//
// It is the reading end of a pipe, of which the peer has the other: unlike a socket's, its buffer's being empty again is no news to
// who has written, and wakes nobody there.
type porch struct {
	f    *os.File
	rc   syscall.RawConn
	read func(uintptr) bool
	buf  [64]byte

	holder  atomic.Pointer[cq] // who has taken it
	since   atomic.Int64       // since when it has heard nothing
	evicted atomic.Bool        // it shall leave
	done    func() bool        // of who sits
	reading atomic.Bool        // the one who sits does not sleep, and is about to ask done

	mu    sync.Mutex
	sits  bool
	stood bool // the file's deadline has been set
}

// knocker is the other end of the peer's porch.
type knocker struct {
	mu sync.Mutex
	fd int // -1: none, or closed
}

// Values of the word that says whether a queue is armed.
const (
	unarmed = iota
	armed   // the peer rings
	seated  // the peer knocks
	knocked // it has
)

// idleSeat is how long nothing is heard before another who wants to sit has the one who does leave.
const idleSeat = int64(5 * time.Millisecond)

var past = time.Unix(1, 0)

// openPorch makes a porch, and gives the peer what it knocks with. Without one everything works, too.
func (l *link) openPorch() {
	var pipe [2]int
	if unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return
	}
	defer func() { _ = unix.Close(pipe[1]) }()
	p := &porch{f: os.NewFile(uintptr(pipe[0]), "shm")}
	var err error
	if p.rc, err = p.f.SyscallConn(); err != nil {
		_ = p.f.Close()
		return
	}
	p.read = p.hear
	l.porch = p
	var b [headerLen]byte
	l.send(putHeader(&b, header{Kind: msgPorch}), pipe[1])
}

// gotPorch takes what the peer gives to knock with. It is opened anew: whether one waits for room in the pipe is a matter of how it was
// opened, and not the peer's to say. It has to be of pipe(2): one with a name is of a file system, which may be the peer's own (FUSE) and
// let whoever asks for it wait. Its link in /proc says so without asking it.
func (l *link) gotPorch(fd int) error {
	l.knocker.mu.Lock()
	defer l.knocker.mu.Unlock()
	if l.knocker.fd >= 0 || fd < 0 {
		return errMessage
	}
	what, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !strings.HasPrefix(what, "pipe:[") {
		return fmt.Errorf("%q is no pipe: %w", what, errMessage)
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil { // else bells are rung
		l.knocker.fd = own
	}
	return nil
}

// closePorch is the end of a link. Who sits gets up.
func (l *link) closePorch() {
	l.knocker.mu.Lock()
	if l.knocker.fd >= 0 {
		_ = unix.Close(l.knocker.fd)
		l.knocker.fd = -1
	}
	l.knocker.mu.Unlock()
	if l.porch != nil {
		_ = l.porch.f.Close()
	}
}

var knock = []byte{1}

// knock wakes the one who sits at the peer's. It is false if that is not possible now.
func (l *link) knock() bool {
	k := &l.knocker
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fd < 0 {
		return false
	}
	for {
		_, err := unix.Write(k.fd, knock)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// hear is called whenever somebody may have knocked. It returns false to sleep.
func (p *porch) hear(fd uintptr) bool {
	c := p.holder.Load()
	for {
		switch {
		case p.done() || p.evicted.Load():
			return true
		case c.arm.Load() != knocked:
			return false // a knock comes after the word
		case !p.drop(int(fd)):
			return true
		}
		p.reading.Store(true)
		if c.arm.CompareAndSwap(knocked, unarmed) {
			p.since.Store(nanoseconds())
			c.notified()
		}
		p.reading.Store(false)
	}
}

// drop takes the knocks out of the pipe that are there. One that is on its way is not waited for: the word says what it would, and it will
// only wake somebody for nothing. It is false if the peer is gone.
func (p *porch) drop(fd int) bool {
	for {
		n, err := unix.Read(fd, p.buf[:])
		if errors.Is(err, unix.EAGAIN) {
			return true
		}
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// sit waits until done says so or the place is no good any more.
func (p *porch) sit(done func() bool) {
	p.done = done
	p.since.Store(nanoseconds())
	p.mu.Lock()
	p.sits = true
	p.mu.Unlock()
	for again := true; again; {
		err := p.rc.Read(p.read)
		p.mu.Lock()
		again = p.stood && err != nil && !done() && !p.evicted.Load()
		p.sits = again
		if p.stood {
			p.stood = false
			again = p.f.SetReadDeadline(time.Time{}) == nil && again
		}
		p.mu.Unlock()
	}
	p.done = nil
}

// stand has the one who sits ask done.
func (p *porch) stand() {
	if p.reading.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sits && !p.stood {
		p.stood = p.f.SetReadDeadline(past) == nil
	}
}

// porchSeat is a queue's way to the porch of its link.
type porchSeat struct {
	c *cq
	p *porch // while it has it
}

var _ verbs.Seater = (*cq)(nil)

// Seat implements [verbs.Seater].
func (c *cq) Seat() verbs.Seat {
	if c.dev.open {
		return nil // its peers are many
	}
	return &porchSeat{c: c}
}

// Take implements [verbs.Seat].
func (s *porchSeat) Take() bool {
	l := s.c.dev.link
	if l == nil || l.porch == nil {
		return false
	}
	p := l.porch
	if !p.holder.CompareAndSwap(nil, s.c) {
		if nanoseconds()-p.since.Load() > idleSeat && !p.evicted.Swap(true) {
			p.stand()
		}
		return false
	}
	p.evicted.Store(false)
	if !s.sitDown(p) {
		p.holder.Store(nil)
		return false
	}
	return true
}

// sitDown has the peer knock from now on.
func (s *porchSeat) sitDown(p *porch) bool {
	c := s.c
	if !c.dev.tryRetain() {
		return false
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		s.p, c.knocks = p, true
		p.since.Store(nanoseconds())
		c.arm.CompareAndSwap(armed, seated)
	}
	c.mu.Unlock()
	if closed {
		c.dev.release()
	}
	return !closed
}

// Sit implements [verbs.Seat].
func (s *porchSeat) Sit(done func() bool) { s.p.sit(done) }

// Stand implements [verbs.Seat]. It comes after Take.
func (s *porchSeat) Stand() {
	if p := s.c.dev.link.porch; p.holder.Load() == s.c {
		p.stand()
	}
}

// Leave implements [verbs.Seat].
func (s *porchSeat) Leave() {
	c := s.c
	missed := false // a knock that nobody will hear
	c.mu.Lock()
	c.knocks = false
	if !c.closed && !c.arm.CompareAndSwap(seated, armed) {
		missed = c.arm.CompareAndSwap(knocked, unarmed)
	}
	c.mu.Unlock()
	p := s.p
	s.p = nil
	p.holder.Store(nil)
	if missed {
		c.notified()
	}
	c.dev.release()
}
