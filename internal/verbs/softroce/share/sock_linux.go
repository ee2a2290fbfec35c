package share

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// sendBuffer bounds what waits for a process that does not read: some hundred packets.
const sendBuffer = 1 << 20

func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return fd, nil
}

// file hands a descriptor to the runtime's poller.
func file(fd int, name string) (*os.File, syscall.RawConn, error) {
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, nil, unix.EBADF
	}
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, rc, nil
}

// dial connects to a name and finds who listens there, as the kernel says. It does not wait for the listener.
func dial(name string) (int, *unix.Ucred, error) {
	fd, err := socket()
	if err != nil {
		return -1, nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, os.NewSyscallError("connect", err)
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, os.NewSyscallError("getsockopt", err)
	}
	return fd, cred, nil
}

// listener is a name of ours, and the connections that came to it.
type listener struct {
	p      *Process
	target Target
	f      *os.File
	rc     syscall.RawConn

	mu     sync.Mutex
	closed bool
	conns  map[*os.File]int32 // whose they are
	counts map[int32]int      // of each process
}

// maxConns bounds the connections of one process to a name. It needs one, and others while that one ends.
const maxConns = 64

// listen claims the name of a target.
func (p *Process) listen(t Target) (*listener, error) {
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	name := p.name(t)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("listen", err)
	}
	f, rc, err := file(fd, name)
	if err != nil {
		return nil, err
	}
	l := &listener{p: p, target: t, f: f, rc: rc, conns: make(map[*os.File]int32), counts: make(map[int32]int)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		f.Close()
		return nil, net.ErrClosed
	}
	p.listeners[l] = struct{}{}
	p.wg.Go(l.accept)
	return l, nil
}

// close gives the name up. Those who are connected to it notice.
func (l *listener) close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	if closed {
		return
	}
	l.f.Close()
	for f := range conns {
		f.Close()
	}
	l.p.mu.Lock()
	delete(l.p.listeners, l)
	l.p.mu.Unlock()
}

// accept takes connections until the listener is closed.
func (l *listener) accept() {
	for {
		var failed error
		err := l.rc.Read(func(fd uintptr) bool {
			for {
				c, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				switch {
				case err == nil:
					l.serve(c)
				case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
				case errors.Is(err, unix.EAGAIN):
					return false
				default:
					failed = err
					return true
				}
			}
		})
		if err != nil || failed == nil {
			return
		}
		// No descriptors left, or no memory. Those who wait are not lost.
		l.p.tellShort(failed)
		time.Sleep(50 * time.Millisecond)
	}
}

// serve begins to take what comes over connection fd, if its other end is one of ours.
func (l *listener) serve(fd int) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || !trusted(cred) {
		l.p.foreign.Add(1)
		_ = unix.Close(fd)
		return
	}
	f, _, err := file(fd, "peer")
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Processes of other PID namespaces have the number 0, all of them.
	limit := maxConns
	if cred.Pid == 0 {
		limit *= MaxSlot
	}
	switch {
	case l.closed:
		f.Close()
		return
	case l.counts[cred.Pid] >= limit:
		l.p.refused.Add(1)
		f.Close()
		return
	}
	l.conns[f] = cred.Pid
	l.counts[cred.Pid]++
	l.p.wg.Go(func() { l.receive(f) })
}

// receive takes messages until the connection ends.
func (l *listener) receive(f *os.File) {
	var d decoder
	var pkt netio.Packet
	buf := make([]byte, maxLen+1) // one more tells a message that is too long
	for {
		n, err := f.Read(buf)
		if err != nil {
			break
		}
		if !d.decode(buf[:n], &pkt) {
			l.p.malformed.Add(1)
			continue
		}
		l.p.counters.received.Add(1)
		if l.p.cfg.Received != nil {
			l.p.cfg.Received(&pkt)
		}
	}
	f.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if pid, ok := l.conns[f]; ok {
		delete(l.conns, f)
		if l.counts[pid]--; l.counts[pid] == 0 {
			delete(l.counts, pid)
		}
	}
}

// peer is a connection to another process.
type peer struct {
	to Target
	f  *os.File
	rc syscall.RawConn

	// Of Process.mu.
	used    uint64
	watches map[*watch]struct{}

	mu    sync.Mutex
	buf   [maxLen]byte
	n     int
	err   error
	write func(fd uintptr) bool // made once
}

// watch waits for the end of a peer.
type watch struct {
	died func()
	over atomic.Bool // called, or not to be called any more
}

func newPeer(to Target, fd int) (*peer, error) {
	f, rc, err := file(fd, "peer")
	if err != nil {
		return nil, err
	}
	pe := &peer{to: to, f: f, rc: rc}
	pe.write = func(fd uintptr) bool {
		for {
			pe.err = unix.Send(int(fd), pe.buf[:pe.n], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if pe.err != unix.EINTR { //nolint:errorlint // a bare errno
				return true // a full queue is not waited for
			}
		}
	}
	return pe, nil
}

// send sends a packet, unless the queue is full.
func (pe *peer) send(pkt *netio.Packet) error {
	pe.mu.Lock()
	defer pe.mu.Unlock()
	pe.n = encode(pe.buf[:], pkt)
	if pe.n == 0 {
		return unix.EMSGSIZE
	}
	if err := pe.rc.Write(pe.write); err != nil {
		return os.ErrClosed // the one reason
	}
	return pe.err
}

// waitEnd returns when the other end is gone or this end is closed. Nothing is
// ever sent this way.
func (pe *peer) waitEnd() {
	var b [64]byte
	for {
		if _, err := pe.f.Read(b[:]); err != nil {
			return
		}
	}
}
