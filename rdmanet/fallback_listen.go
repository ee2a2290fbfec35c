package rdmanet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// samePortTries bounds how often a number that is free with TCP may be in use with RDMA.
const samePortTries = 16

// listenBoth takes one port number with TCP and RDMA. Where RDMA is not to be had, parts is empty.
func (lc *ListenConfig) listenBoth(ctx context.Context, attr *verbs.ListenAttr) (parts *cm.Listener, tcp net.Listener, err error) {
	var taken []net.Listener // kept until the end: a number that is free again may be picked again
	defer func() {
		for _, l := range taken {
			l.Close()
		}
	}()
	network, host := tcpListenAddr(attr)
	for try := 1; ; try++ {
		// TCP picks the number: its space is the fuller one.
		tcp, err = lc.Fallback.Listen(ctx, network, net.JoinHostPort(host, strconv.Itoa(int(attr.Local.Port()))))
		if err != nil {
			return nil, nil, err
		}
		at := *attr
		at.Local = netip.AddrPortFrom(attr.Local.Addr(), tcpAddrPort(tcp.Addr()).Port())
		parts, err = cm.Default().ListenBeside(ctx, lc.Device, at)
		switch {
		case err == nil:
			if parts.Unreached != nil {
				lc.tellTCP(tcp, parts.Unreached)
			}
			lc.tellSkipped(parts)
			return parts, tcp, nil
		case ctx.Err() == nil && (errors.Is(err, ErrNoDevice) || errors.Is(err, errors.ErrUnsupported)):
			lc.tellTCP(tcp, err)
			return new(cm.Listener), tcp, nil
		}
		taken = append(taken, tcp)
		if attr.Local.Port() != 0 || try == samePortTries || ctx.Err() != nil || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil, err
		}
	}
}

// tellTCP logs that other hosts reach the listener by TCP only.
func (lc *ListenConfig) tellTCP(tcp net.Listener, why error) {
	logger(lc.Logger).Warn("rdmanet: listening by TCP only", "addr", tcp.Addr().String(), "err", newError(PhaseRoute, why, nil))
}

// tcpListenAddr is what package net calls an address that attr listens on.
func tcpListenAddr(attr *verbs.ListenAttr) (network, host string) {
	switch ip := attr.Local.Addr(); {
	case attr.DualStack:
		return "tcp", ""
	case ip.Is4():
		return "tcp4", ip.String()
	default:
		return "tcp6", ip.String()
	}
}

func tcpAddrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}

// tcpHalf is a listener's TCP. What has not been accepted yet waits in the kernel's backlog, but for
// one connection, and those that Admit is asked about.
type tcpHalf struct {
	net.Listener
	ready    chan tcpAccepted // for Accept; unbuffered
	asking   chan struct{}    // one held by each connection that Admit is asked about
	waiting  atomic.Int64     // for Accept
	accepted atomic.Uint64
}

// tcpAccepted is what TCP's Accept returned.
type tcpAccepted struct {
	c   net.Conn
	err error
}

// pullTCP takes connections of TCP until the listener is closed.
func (l *Listener) pullTCP() {
	for {
		c, err := l.tcp.Accept()
		switch {
		case err != nil && l.ctx.Err() != nil:
			return
		case err != nil || l.lc.Admit == nil:
			l.deliverTCP(tcpAccepted{c, err})
			continue
		}
		select {
		case l.tcp.asking <- struct{}{}:
			go l.admitTCP(c) // the function is not ours, and may take its time
		case <-l.ctx.Done():
			resetTCP(c)
		}
	}
}

// admitTCP asks Admit, since who is kept out by RDMA must not come in by TCP.
func (l *Listener) admitTCP(c net.Conn) {
	defer func() { <-l.tcp.asking }()
	r := &Request{
		Local: AddrFromAddrPort(tcpAddrPort(c.LocalAddr())), Remote: AddrFromAddrPort(tcpAddrPort(c.RemoteAddr())),
		Provider: "tcp",
	}
	if err := l.lc.Admit(r); err != nil {
		l.rejected.Add(1)
		resetTCP(c)
		return
	}
	l.deliverTCP(tcpAccepted{c, nil})
}

// deliverTCP hands a to Accept, unless the listener is closed first.
func (l *Listener) deliverTCP(a tcpAccepted) {
	if a.c != nil {
		l.tcp.waiting.Add(1) // until Accept has it
	}
	select {
	case l.tcp.ready <- a:
	case <-l.ctx.Done():
		if a.c != nil {
			l.tcp.waiting.Add(-1)
			resetTCP(a.c)
		}
	}
}

// resetTCP ends a connection that nobody has accepted, as the kernel ends those in a backlog.
func resetTCP(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}
