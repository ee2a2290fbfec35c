//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// A port is an abstract Unix socket (unix(7)): the kernel sees to it that each has one owner, frees it when the process dies,
// vouches for who is at the other end, and keeps network namespaces apart.
func portName(k portKey) string {
	return fmt.Sprintf("@go-rdma/shm/%d/%04x/%d", version, uint16(k.ps), k.port)
}

// handshakePatience bounds how long a peer may take to introduce itself.
const handshakePatience = 10 * time.Second

// maxHandshakes bounds those who have not done so.
const maxHandshakes = 64

// trusted tells whether a process may be a peer: one of the same user. Each side looks, so that root's processes
// are peers of root's.
func trusted(c *unix.Ucred) bool { return int(c.Uid) == os.Geteuid() }

// foreignError says whose a port is.
type foreignError struct {
	port uint16
	uid  uint32
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("port %d is held by a process of uid %d: shared memory is for processes of one user (this is uid %d)", e.port, e.uid, os.Geteuid())
}

// claim gets the name of a port and takes who comes to it.
func (p *Provider) claim(k portKey) (giveUp func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: portName(k)}); err != nil {
		_ = unix.Close(fd)
		return nil, portTaken(k, os.NewSyscallError("bind", err))
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("listen", err)
	}
	f := os.NewFile(uintptr(fd), portName(k))
	rc, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	go p.acceptAll(rc, k)
	return func() { _ = f.Close() }, nil
}

// portTaken says by whom, if the port is.
func portTaken(k portKey, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	fd, cred, e := dialName(k)
	if e != nil {
		return err
	}
	_ = unix.Close(fd)
	if !trusted(cred) {
		return fmt.Errorf("%w: %w", &foreignError{k.port, cred.Uid}, unix.EADDRINUSE)
	}
	return fmt.Errorf("port %d: %w by process %d", k.port, unix.EADDRINUSE, cred.Pid)
}

// dialName connects to a port's name, and finds who holds it. It does not wait.
func dialName(k portKey) (fd int, cred *unix.Ucred, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: portName(k)})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, os.NewSyscallError("connect", err)
	}
	cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, os.NewSyscallError("getsockopt", err)
	}
	return fd, cred, nil
}

// acceptAll takes those who come to a name, until it is given up.
func (p *Provider) acceptAll(rc syscall.RawConn, k portKey) {
	slots := make(chan struct{}, maxHandshakes)
	for {
		var failed error
		err := rc.Read(func(fd uintptr) bool {
			for {
				c, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				switch {
				case err == nil:
					slots <- struct{}{}
					go func() {
						defer func() { <-slots }()
						p.welcome(c, k)
					}()
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
		p.ports.short(k, failed)
		time.Sleep(50 * time.Millisecond) // no descriptors, or no memory: those who wait are not lost
	}
}

// greeting is the first message, either way.
func (p *Provider) greeting() []byte {
	var b [headerLen]byte
	return appendBody(putHeader(&b, header{Kind: msgHello}), &hello{Magic: magic, Version: version, Process: p.id})
}

// greet reads the peer's.
func greet(f *os.File) (*hello, error) {
	b := make([]byte, maxMessage+1)
	n, err := f.Read(b)
	if err != nil {
		return nil, err
	}
	h, body, err := getHeader(b[:n])
	if err != nil {
		return nil, err
	}
	var his hello
	if err := getBody(body, &his); err != nil || h.Kind != msgHello || his.Magic != magic {
		return nil, errMessage
	}
	if his.Version != version {
		return nil, fmt.Errorf("peer speaks version %d of the protocol, this is version %d: %w", his.Version, version, syscall.EPROTONOSUPPORT)
	}
	return &his, nil
}

// pollable hands a descriptor to the runtime, for a greeting within a time. The copy leaves the caller's descriptor alone.
func pollable(fd int, until time.Time) (*os.File, error) {
	c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(c), "shm")
	if err := f.SetReadDeadline(until); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// welcome is the passive side's part in making a link.
func (p *Provider) welcome(fd int, k portKey) {
	his, err := p.exchange(fd, false, time.Now().Add(handshakePatience), nil)
	if err != nil {
		p.ports.short(k, err)
		_ = unix.Close(fd)
		return
	}
	// Who has a link with this process goes now, and it was not for nothing that none was made.
	if !goesOn(fd) {
		_ = unix.Close(fd)
		return
	}
	d, err := p.newDevice()
	if err != nil {
		p.ports.short(k, err)
		_ = unix.Close(fd)
		return
	}
	if _, err := d.newLink(fd, false, his.Process); err != nil {
		d.release()
		return
	}
	go d.link.serve()
	d.release() // it is the link's now
}

// goesOn waits for what follows the greeting, and leaves it there.
func goesOn(fd int) (yes bool) {
	f, err := pollable(fd, time.Now().Add(handshakePatience))
	if err != nil {
		return false
	}
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var b [1]byte
	_ = rc.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		yes = err == nil && n > 0
		return !errors.Is(err, unix.EAGAIN)
	})
	return yes
}

// exchange exchanges greetings. The passive side answers when it has checked.
func (p *Provider) exchange(fd int, first bool, until time.Time, done <-chan struct{}) (*hello, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	if !trusted(cred) {
		return nil, fmt.Errorf("a process of uid %d: %w", cred.Uid, syscall.EACCES)
	}
	f, err := pollable(fd, until)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if first {
		if err := sendMessage(fd, p.greeting(), -1); err != nil {
			return nil, err
		}
	}
	if done != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-done:
				_ = f.SetReadDeadline(time.Unix(1, 0))
			case <-over:
			}
		}()
	}
	his, err := greet(f)
	if !first && (err == nil || errors.Is(err, syscall.EPROTONOSUPPORT)) {
		if e := sendMessage(fd, p.greeting(), -1); err == nil {
			err = e
		}
	}
	return his, err
}

// dialing is a link that is there or being made.
type dialing struct {
	done chan struct{}
	d    *device // nil: it came to nothing
	err  error
}

// dial returns the device of the link with the process that holds a port, held for the caller.
func (p *Provider) dial(ctx context.Context, k portKey) (*device, error) {
	fd, cred, err := dialName(k)
	for pause := time.Millisecond; errors.Is(err, unix.EAGAIN); pause = min(2*pause, 50*time.Millisecond) {
		select { // its queue is full
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		fd, cred, err = dialName(k)
	}
	if err != nil {
		return nil, err
	}
	if !trusted(cred) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: %w", verbs.ErrNoDevice, &foreignError{k.port, cred.Uid})
	}
	until := time.Now().Add(handshakePatience)
	his, err := p.exchange(fd, true, until, ctx.Done())
	if err != nil {
		_ = unix.Close(fd)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("process %d, which holds port %d, does not answer: %w", cred.Pid, k.port, syscall.ETIMEDOUT)
		case errors.Is(err, net.ErrClosed), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, errMessage), errors.Is(err, io.EOF):
			return nil, syscall.ECONNREFUSED // it has just given the port up
		}
		return nil, err
	}
	return p.linkTo(fd, his.Process)
}

// linkTo returns the link with a process, made of the connection if there is none yet.
func (p *Provider) linkTo(fd int, id [16]byte) (*device, error) {
	for {
		p.mu.Lock()
		w := p.links[id]
		if w == nil {
			w = &dialing{done: make(chan struct{})}
			p.links[id] = w
			p.mu.Unlock()
			d, err := p.makeLink(fd, id)
			p.mu.Lock()
			if w.d, w.err = d, err; err != nil {
				delete(p.links, id)
			}
			p.mu.Unlock()
			close(w.done)
			return d, err
		}
		p.mu.Unlock()
		<-w.done // which waits for nobody
		if w.err == nil && w.d.linked() && w.d.tryRetain() {
			_ = unix.Close(fd)
			return w.d, nil
		}
		p.mu.Lock()
		if p.links[id] == w {
			delete(p.links, id)
		}
		p.mu.Unlock()
	}
}

func (p *Provider) makeLink(fd int, id [16]byte) (*device, error) {
	d, err := p.newDevice()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if _, err := d.newLink(fd, true, id); err != nil {
		d.release()
		return nil, err
	}
	go d.link.serve()
	return d, nil
}

// unlink forgets a link that ends.
func (p *Provider) unlink(l *link) {
	if !l.active {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.links[l.peer]; w != nil && w.d == l.dev {
		delete(p.links, l.peer)
	}
}
