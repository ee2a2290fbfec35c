//go:build linux

package shm

import (
	"os"
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
// The porches of both ends are the ends of a pair of sockets, made by the active side.
type porch struct {
	f      *os.File
	rc     syscall.RawConn
	packet packet
	read   func(uintptr) bool

	holder  atomic.Pointer[cq] // who has taken it
	since   atomic.Int64       // since when it has heard nothing
	evicted atomic.Bool        // it shall leave
	done    func() bool        // of who sits
	unheard int                // knocks that may be in the socket still, or may yet come; the holder's
	reading atomic.Bool        // the one who sits does not sleep, and is about to ask done

	mu    sync.Mutex
	sits  bool
	stood bool // the file's deadline has been set
	fd    int  // to knock; -1 once closed
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

// mostUnheard bounds how many knocks are looked for at once: one that could not be sent is looked for in vain.
const mostUnheard = 4

var past = time.Unix(1, 0)

// newPorch takes an end over, also if it fails.
func newPorch(fd int) (*porch, error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil && domain != unix.AF_UNIX {
		err = errMessage
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // for Go's poller; the peer may change it, and nothing relies on it
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	p := &porch{f: os.NewFile(uintptr(fd), "shm"), fd: fd}
	if p.rc, err = p.f.SyscallConn(); err != nil {
		_ = p.f.Close()
		return nil, err
	}
	p.read = p.hear
	return p, nil
}

// openPorch is the active side's part: it gives the peer the other end. Without a porch everything works, too.
func (l *link) openPorch() {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(pair[1]) }()
	p, err := newPorch(pair[0])
	if err != nil {
		return
	}
	l.porch.Store(p)
	var b [headerLen]byte
	l.send(putHeader(&b, header{Kind: msgPorch}), pair[1])
}

// gotPorch is the passive side's.
func (l *link) gotPorch(fd int) error {
	if l.active || l.porch.Load() != nil || fd < 0 {
		return errMessage
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	p, err := newPorch(own)
	if err != nil {
		return err
	}
	l.porch.Store(p)
	return nil
}

// close is the end of a link. Who sits gets up.
func (p *porch) close() {
	p.mu.Lock()
	p.fd = -1
	p.mu.Unlock()
	_ = p.f.Close()
}

var knock = []byte{1}

// knock wakes the one who sits at the peer's. It is false if that is not possible now.
func (l *link) knock() bool {
	p := l.porch.Load()
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fd >= 0 && sendMessage(p.fd, knock, -1) == nil
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

// drop takes a knock out of the socket, and those that are left there from before. Nobody waits for one that is still to come: the word
// says it all, and the knock will only wake somebody for nothing. It is false if the peer is gone.
func (p *porch) drop(fd int) bool {
	for p.unheard = min(p.unheard+1, mostUnheard); p.unheard > 0; p.unheard-- {
		n, oobn, _, err := p.packet.receive(fd)
		if oobn > 0 {
			if d := descriptor(p.packet.oob[:oobn]); d >= 0 {
				_ = unix.Close(d)
			}
		}
		if err == unix.EAGAIN { //nolint:errorlint // a bare errno
			return true
		}
		if err != nil || n == 0 {
			return false
		}
	}
	return true
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
	if s.c.dev.link == nil {
		return false
	}
	p := s.c.dev.link.porch.Load()
	if p == nil {
		return false
	}
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

// Stand implements [verbs.Seat].
func (s *porchSeat) Stand() {
	if l := s.c.dev.link; l != nil {
		if p := l.porch.Load(); p != nil && p.holder.Load() == s.c {
			p.stand()
		}
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
	if missed {
		p.unheard = min(p.unheard+1, mostUnheard)
	}
	p.holder.Store(nil)
	if missed {
		c.notified()
	}
	c.dev.release()
}
