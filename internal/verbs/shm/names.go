//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
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

// claim gets the name of a port and takes who comes to it.
func (p *Provider) claim(k portKey) (giveUp func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := bindName(fd, k); err != nil {
		_ = unix.Close(fd)
		return nil, err
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
	given := make(chan struct{})
	go p.acceptAll(rc, k, given)
	return sync.OnceFunc(func() {
		close(given)
		_ = f.Close()
	}), nil
}

// bindName takes a port's name, or says who has it. One that another user holds is no reason to have another port: whoever listens on
// several providers does without this one. Who holds it the kernel tells by a connection, so a holder who takes none may be anybody, and is no
// reason either: of a process of this user's the other providers know.
func bindName(fd int, k portKey) error {
	name := &unix.SockaddrUnix{Name: portName(k)}
	err := unix.Bind(fd, name)
	if !errors.Is(err, unix.EADDRINUSE) {
		return os.NewSyscallError("bind", err)
	}
	c, cred, e := dialName(k)
	if errors.Is(e, unix.ECONNREFUSED) && unix.Bind(fd, name) == nil {
		return nil // it was given up meanwhile
	}
	switch {
	case errors.Is(e, unix.ECONNREFUSED), errors.Is(e, unix.EAGAIN):
		return fmt.Errorf("%w: %w: %w", verbs.ErrNoDevice, strangerError{k.port}, unix.EADDRINUSE)
	case e != nil:
		return os.NewSyscallError("bind", err)
	}
	_ = unix.Close(c)
	if !trusted(uint32(cred.UID)) {
		return fmt.Errorf("%w: %w: %w", verbs.ErrNoDevice, &foreignError{k.port, cred.UID}, unix.EADDRINUSE)
	}
	return fmt.Errorf("port %d: %w by process %d", k.port, unix.EADDRINUSE, cred.PID)
}

// dialName connects to a port's name, and finds who holds it. It does not wait.
func dialName(k portKey) (fd int, cred verbs.Cred, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, cred, os.NewSyscallError("socket", err)
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: portName(k)})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, cred, os.NewSyscallError("connect", err)
	}
	if cred, err = credOf(fd); err != nil {
		_ = unix.Close(fd)
		return -1, cred, err
	}
	return fd, cred, nil
}

// Those who have come to a name and not introduced themselves: of this user or root, who wait for their turn, and of others, of each and in all,
// who are turned away beyond it.
const (
	maxHandshakes        = 64
	maxForeignHandshakes = 16
	maxStrangers         = 128
)

// acceptAll takes those who come to a name, until it is given up.
func (p *Provider) acceptAll(rc syscall.RawConn, k portKey, given <-chan struct{}) {
	slots := make(chan struct{}, maxHandshakes)
	var foreign byUser
	for {
		select {
		case slots <- struct{}{}:
		case <-given:
			return
		}
		var c int
		var failed error
		err := rc.Read(func(fd uintptr) bool {
			for {
				c, _, failed = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				switch {
				case errors.Is(failed, unix.EINTR), errors.Is(failed, unix.ECONNABORTED):
				default:
					return !errors.Is(failed, unix.EAGAIN)
				}
			}
		})
		if err != nil {
			return
		}
		if failed != nil {
			<-slots
			p.ports.short(k, failed)
			time.Sleep(50 * time.Millisecond) // no descriptors, or no memory: those who wait are not lost
			continue
		}
		cred, err := credOf(c)
		uid := uint32(cred.UID)
		leave := func() { <-slots }
		if err != nil || !trusted(uid) {
			<-slots
			if err != nil || !foreign.enter(uid, maxForeignHandshakes, maxStrangers) {
				_ = unix.Close(c)
				continue
			}
			leave = func() { foreign.leave(uid) }
		}
		go func() {
			defer leave()
			p.welcome(c, k)
		}()
	}
}

// dialing is a link that is there or being made.
type dialing struct {
	done chan struct{}
	d    *device // nil: it came to nothing
	err  error
}

// queuePatience bounds how long a dial that has other ways waits for a place in the queue of who holds a port: whose that is is not known
// before, and a process of this user's takes thousands in that time.
const queuePatience = 100 * time.Millisecond

// dial returns the device of the link with the process that listens at an address, held for the caller.
func (p *Provider) dial(ctx context.Context, k portKey, to address, anyUser bool) (*device, error) {
	fd, cred, err := dialName(k)
	begin := time.Now()
	for pause := time.Millisecond; errors.Is(err, unix.EAGAIN); pause = min(2*pause, 50*time.Millisecond) {
		switch waited := time.Since(begin); {
		case !anyUser && waited > min(queuePatience, p.patience.handshake):
			return nil, fmt.Errorf("%w: the process that holds port %d does not answer: %w", verbs.ErrNoDevice, k.port, syscall.ETIMEDOUT)
		case waited > p.patience.handshake:
			return nil, fmt.Errorf("the process that holds port %d does not answer: %w", k.port, syscall.ETIMEDOUT)
		}
		select { // its queue is full
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		fd, cred, err = dialName(k)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errNobody
	}
	if err != nil {
		return nil, err
	}
	if !anyUser && !trusted(uint32(cred.UID)) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: %w", verbs.ErrNoDevice, &foreignError{k.port, cred.UID})
	}
	his, err := p.introduce(ctx, fd, k, to, cred)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return p.linkTo(fd, his.Process, cred)
}

// linkTo returns the link with a process, made of the connection if there is none yet.
func (p *Provider) linkTo(fd int, id [16]byte, cred verbs.Cred) (*device, error) {
	for {
		p.mu.Lock()
		w := p.links[id]
		if w == nil {
			w = &dialing{done: make(chan struct{})}
			p.links[id] = w
			p.mu.Unlock()
			d, err := p.makeLink(fd, id, cred)
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
		// Numbers of processes are no secret to their peers: whoever claims one has to be the same user's.
		if w.err == nil && w.d.link.cred.UID == cred.UID && w.d.linked() && w.d.tryRetain() {
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

func (p *Provider) makeLink(fd int, id [16]byte, cred verbs.Cred) (*device, error) {
	d, err := p.newDevice()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if _, err := d.newLink(fd, true, id, cred); err != nil {
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
