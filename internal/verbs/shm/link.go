//go:build linux

package shm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

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
