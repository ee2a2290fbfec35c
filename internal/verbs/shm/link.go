//go:build linux

package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// link is one end of what joins two processes. One side is active: it has dialed, and only it asks for connections.
type link struct {
	dev    *device
	active bool
	peer   [16]byte // the other process
	cred   verbs.Cred
	f      *os.File
	rc     syscall.RawConn

	porch    *porch // nil: none
	knocker  knocker
	board    atomic.Pointer[mapping] // the peer's; nil until it has come
	segments [maxSegments]atomic.Pointer[mapping]
	dead     atomic.Bool

	tx struct {
		sync.Mutex
		fd       int // -1 once closed
		waiting  []message
		bytes    int
		flushing bool
		closing  bool // once all was sent
	}

	rx struct {
		sync.Mutex
		packet packet
		due    []*cq  // to be notified once no lock is held
		err    error  // the link is broken
		heard  uint64 // messages so far
	}

	mu       sync.Mutex
	err      error // why the link is dead
	conns    map[uint32]*cmid
	lastConn uint32
	dying    map[dyingRing]dying // that the peer may still use
	used     []bool              // numbers of segments of this side
	shared   map[uint32]*remoteRing

	asked     map[uint64]asked // questions that are out
	lastAsked uint64
}

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

// newLink makes an end of a link of a connected socket. Both ends begin with their boards.
func (d *device) newLink(fd int, active bool, peer [16]byte, cred verbs.Cred) (*link, error) {
	l := d.prepareLink(active, peer, cred)
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l.f = os.NewFile(uintptr(fd), "shm")
	rc, err := l.f.SyscallConn()
	if err != nil {
		_ = l.f.Close()
		return nil, err
	}
	l.rc, l.tx.fd = rc, fd
	d.link = l
	d.settled = false
	var b [headerLen]byte
	l.send(appendBody(putHeader(&b, header{Kind: msgSegment}), uint64(boardSize)), d.boardFd)
	_ = unix.Close(d.boardFd)
	d.boardFd = -1
	l.openPorch()
	return l, nil
}

// linked tells whether there is a living peer.
func (d *device) linked() bool { return d.link != nil && !d.link.dead.Load() }

// prepareLink makes what an end of a link knows.
func (d *device) prepareLink(active bool, peer [16]byte, cred verbs.Cred) *link {
	l := &link{
		dev: d, active: active, peer: peer, cred: cred, used: []bool{true},
		conns: make(map[uint32]*cmid), dying: make(map[dyingRing]dying), shared: make(map[uint32]*remoteRing), asked: make(map[uint64]asked),
	}
	l.tx.fd = -1
	l.knocker.fd = -1
	return l
}

// serves tells whether what was made of a device works with connections of the link.
func (d *device) serves(o *device) bool { return o == d || o.open && o.p == d.p }

// export makes a segment and gives it to the peer.
func (d *device) export(size int) (mem []byte, num uint32, err error) {
	mem, fd, err := newSegment(size)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	if num, err = d.give(fd, size); err != nil {
		dropSegment(mem)
		return nil, 0, err
	}
	return mem, num, nil
}

// give gives a segment to the peer.
func (d *device) give(fd, size int) (num uint32, err error) {
	l := d.link
	if !d.linked() {
		return 0, nil
	}
	l.mu.Lock()
	for int(num) < len(l.used) && l.used[num] {
		num++
	}
	if num == maxSegments {
		l.mu.Unlock()
		return 0, fmt.Errorf("more than %d arenas with one process: %w", maxSegments, syscall.ENOMEM)
	}
	if int(num) == len(l.used) {
		l.used = append(l.used, true)
	}
	l.used[num] = true
	l.mu.Unlock()
	var b [headerLen]byte
	l.send(appendBody(putHeader(&b, header{Kind: msgSegment, ID: num}), uint64(size)), fd)
	return num, nil
}

// unexport gives a segment back.
func (d *device) unexport(mem []byte, num uint32) {
	dropSegment(mem)
	d.tellGone(num)
}

// tellGone takes a segment from the peer. Its number is used again when the peer has unmapped it.
func (d *device) tellGone(num uint32) {
	if d.linked() && num != 0 {
		d.link.tell(header{Kind: msgNoSegment, ID: num})
	}
}

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

// close ends the link from this side, once what waits has been sent. The reader finds the end.
func (l *link) close() {
	l.dev.p.unlink(l)
	l.tx.Lock()
	defer l.tx.Unlock()
	l.tx.closing = true
	if l.tx.fd >= 0 && len(l.tx.waiting) == 0 {
		l.shutdown()
	}
}

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

// pump takes the messages that are there, inside a consumer's call.
func (l *link) pump() {
	_ = l.rc.Control(func(fd uintptr) {
		for {
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
		got := -1
		if oobn > 0 {
			got = descriptor(p.oob[:oobn])
		}
		if truncated {
			l.rx.err = errMessage
		} else {
			l.rx.err = l.handle(p.data[:n], got)
		}
		if got >= 0 {
			_ = unix.Close(got)
		}
	}
	if l.rx.err != nil {
		return false, l.rx.err
	}
	return true, nil
}

// descriptor takes the one descriptor out of a control message; others are closed.
func descriptor(oob []byte) int {
	got := -1
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for i := range cmsgs {
		fds, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if got < 0 {
				got = fd
			} else {
				_ = unix.Close(fd)
			}
		}
	}
	return got
}

// broken ends everything that the link carries.
func (l *link) broken(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	err = l.err
	l.dead.Store(true)
	conns := make([]*cmid, 0, len(l.conns))
	for _, c := range l.conns {
		conns = append(conns, c)
	}
	dead := l.dying
	l.dying = nil
	questions := l.asked
	l.asked = nil
	l.mu.Unlock()
	for _, d := range dead {
		d.forgotten(l.dev)
	}
	for _, a := range questions {
		if a.ring != nil {
			a.ring.unuse()
		}
	}
	for _, c := range conns {
		c.lost(err)
	}
}

// free unmaps what is the peer's. Nobody uses it any more.
func (l *link) free() {
	for i := range l.segments {
		if m := l.segments[i].Swap(nil); m != nil {
			m.giveUp()
		}
	}
}

// register gives a connection of the active side its number.
func (l *link) register(c *cmid) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	for {
		l.lastConn++
		if _, ok := l.conns[l.lastConn]; !ok && l.lastConn != 0 {
			break
		}
	}
	c.conn = l.lastConn
	l.conns[c.conn] = c
	return nil
}

// accept takes a connection with the number that the peer gave it.
func (l *link) accept(c *cmid) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.conns[c.conn] != nil:
		return errMessage
	}
	l.conns[c.conn] = c
	return nil
}

func (l *link) unregister(c *cmid) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[c.conn] == c {
		delete(l.conns, c.conn)
	}
}

func (l *link) connection(num uint32) *cmid {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[num]
}

// dyingRing names a ring that is no more.
type dyingRing struct {
	shared bool
	id     uint32 // of the connection or the lane
}

// dying is what is left of it.
type dying struct {
	block block
	lane  *lane // of a shared one
}

// forgotten is told that the peer does not use it any more.
func (d dying) forgotten(dev *device) {
	if d.lane != nil {
		d.lane.finish()
	}
	dev.rings.put(d.block)
}

// bye tells that a queue pair or shared receive queue is no more. Its ring is used again when the peer has
// forgotten it, and, since messages keep their order, what it was told of before.
func (l *link) bye(r dyingRing, d dying) {
	l.mu.Lock()
	dead := l.err != nil
	if !dead {
		l.dying[r] = d
	}
	l.mu.Unlock()
	if dead {
		d.forgotten(l.dev)
		return
	}
	h := header{Kind: msgBye, ID: r.id}
	if r.shared {
		h.Flag = 1
	}
	l.tell(h)
}

// forgotten is the answer.
func (l *link) forgotten(r dyingRing) {
	l.mu.Lock()
	d, ok := l.dying[r]
	delete(l.dying, r)
	l.mu.Unlock()
	if ok {
		d.forgotten(l.dev)
	}
}
