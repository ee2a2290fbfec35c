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

// patience bounds how long a peer whose process may be stopped keeps one waiting.
type patience struct {
	handshake time.Duration // for it to take a connection, and to introduce itself
	answer    time.Duration // that it says nothing, though asked, while a request to connect waits for its answer
}

// defaultPatience has requests to connect fail as soon as those on a connection do.
var defaultPatience = patience{handshake: 10 * time.Second, answer: peerPatience}

// silentError is what comes of a process that says nothing: it is stopped, or hangs.
func silentError(cred verbs.Cred, port uint16) error {
	return fmt.Errorf("process %d, which holds port %d, does not answer: %w", cred.PID, port, syscall.ETIMEDOUT)
}

// errNobody is what comes of an address that nobody listens at. Others may, on a network.
var errNobody = fmt.Errorf("%w: %w", verbs.ErrNoDevice, &verbs.RejectError{Reason: verbs.RejInvalidServiceID})

// verdicts on who wants a link.
const (
	welcome = iota
	nobodyListens
	wrongUser // the listener takes its own user's processes and root's
	tooMany   // links with processes of the user
)

// greeting is the first message, either way.
func (p *Provider) greeting(to address, verdict uint32) []byte {
	var b [headerLen]byte
	return appendBody(putHeader(&b, header{Kind: msgHello}), &hello{Magic: magic, Version: version, Process: p.id, To: to, Verdict: verdict})
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
	if err := p.receive(fd, k); err != nil {
		p.ports.short(k, err)
	}
}

// receive makes a link of a connection, or closes it.
func (p *Provider) receive(fd int, k portKey) error {
	his, cred, err := p.consider(fd, k)
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	// Who has a link with this process goes now, and it was not for nothing that none was made.
	if !p.goesOn(fd) {
		p.foreign.remove(cred.UID)
		return unix.Close(fd)
	}
	d, err := p.newDevice()
	if err != nil {
		p.foreign.remove(cred.UID)
		_ = unix.Close(fd)
		return err
	}
	if _, err := d.newLink(fd, false, his.Process, cred); err != nil {
		p.foreign.remove(cred.UID)
		d.release()
		return err
	}
	go func() {
		defer p.foreign.remove(cred.UID)
		d.link.serve()
	}()
	d.release() // it is the link's now
	return nil
}

// consider hears who wants a link, and answers. Whoever is welcome is counted.
func (p *Provider) consider(fd int, k portKey) (*hello, verbs.Cred, error) {
	cred, err := credOf(fd)
	if err != nil {
		return nil, cred, err
	}
	f, err := pollable(fd, time.Now().Add(p.patience.handshake))
	if err != nil {
		return nil, cred, err
	}
	defer f.Close()
	his, err := greet(f)
	if err != nil && !errors.Is(err, syscall.EPROTONOSUPPORT) {
		return nil, cred, err
	}
	verdict := uint32(welcome)
	if err == nil {
		switch l := p.ports.listener(k, his.To.addrPort().Addr()); {
		case l == nil:
			verdict, err = nobodyListens, errNobody
		case !l.takes(cred):
			verdict, err = wrongUser, syscall.EACCES
		default:
			if err = p.foreign.add(cred.UID); err != nil {
				verdict = tooMany
			}
		}
	}
	if e := sendMessage(fd, p.greeting(address{}, verdict), -1); e != nil && err == nil {
		p.foreign.remove(cred.UID)
		err = e
	}
	return his, cred, err
}

// goesOn waits for what follows the greeting, and leaves it there.
func (p *Provider) goesOn(fd int) (yes bool) {
	f, err := pollable(fd, time.Now().Add(p.patience.handshake))
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

// introduce is the active side's part: it tells who wants to speak to whom, and hears whether it may.
func (p *Provider) introduce(ctx context.Context, fd int, k portKey, to address, cred verbs.Cred) (*hello, error) {
	f, err := pollable(fd, time.Now().Add(p.patience.handshake))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	if err := sendMessage(fd, p.greeting(to, welcome), -1); err != nil && !gone(err) {
		return nil, os.NewSyscallError("send", err)
	}
	his, err := greet(f)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, silentError(cred, k.port)
	case gone(err), errors.Is(err, errMessage):
		return nil, errNobody // it has just given the port up
	default:
		return nil, err
	}
	switch his.Verdict {
	case welcome:
		return his, nil
	case wrongUser:
		return nil, fmt.Errorf("%w: process %d, which holds port %d, is of uid %d and takes no other users' processes (this is uid %d)",
			verbs.ErrNoDevice, cred.PID, k.port, cred.UID, os.Geteuid())
	case tooMany:
		return nil, fmt.Errorf("%w: process %d, which holds port %d, is connected to as many processes of uid %d as it takes",
			verbs.ErrNoDevice, cred.PID, k.port, os.Geteuid())
	}
	return nil, errNobody
}

// gone tells whether an error means that the other end of a socket was closed.
func gone(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF)
}
