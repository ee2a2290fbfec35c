package netio

import (
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// prefKey is a flow that shall come to this process.
type prefKey struct {
	local  netip.Addr
	remote netip.AddrPort
}

// preferred is a flow's socket, or the memory of a failure to open one.
type preferred struct {
	sock *rxSock
	at   int64 // of the failure
}

const (
	prefIdle  = time.Second // a socket idle for as long gives way to a new one
	prefRetry = time.Second // pause after a failure
)

// Prefer opens a socket that only receives, bound to local and connected to remote: the kernel prefers
// it to the sockets that the processes share. While it is being made, packets of
// other flows may reach this process, and packets of the flow may overtake each other.
func (u *UDP) Prefer(local netip.Addr, remote netip.AddrPort) {
	k := prefKey{local, remote}
	u.prefMu.Lock()
	defer u.prefMu.Unlock()
	if u.pref == nil {
		return
	}
	t := now()
	if p := u.pref[k]; p != nil {
		if p.sock != nil || t-p.at < int64(prefRetry) {
			return
		}
		delete(u.pref, k)
	}
	if len(u.pref) >= u.cfg.MaxPreferred && !u.evict(t) {
		return
	}
	p := &preferred{at: t}
	u.pref[k] = p
	fd, err := u.connected(local, remote)
	if err != nil {
		return
	}
	s, err := u.newRxSock(fd, local.Is6())
	if err != nil {
		return
	}
	p.sock = s
	u.publish()
	s.start()
}

// evict makes room by giving up the flow that is idle for longest. It returns false if none is.
func (u *UDP) evict(t int64) bool {
	var oldest prefKey
	since := t - int64(prefIdle)
	found := false
	for k, p := range u.pref {
		at := p.at
		if p.sock != nil {
			at = p.sock.used.Load()
		}
		if at <= since {
			oldest, since, found = k, at, true
		}
	}
	if !found {
		return false
	}
	s := u.pref[oldest].sock
	delete(u.pref, oldest)
	if s != nil {
		u.publish()
		// Not here: its handler may be waiting for what our caller holds.
		u.wg.Go(s.close)
	}
	return true
}

// publish makes the list that Poll reads.
func (u *UDP) publish() {
	l := make([]*rxSock, 0, len(u.pref))
	for _, p := range u.pref {
		if p.sock != nil {
			l = append(l, p.sock)
		}
	}
	u.prefSocks.Store(&l)
}

// connected opens the socket of a preferred flow.
func (u *UDP) connected(local netip.Addr, remote netip.AddrPort) (int, error) {
	// A socket that is bound to an address and not yet connected takes all that comes to the
	// address; one bound to the wildcard only its share. So the address comes
	// with connect(2) where that chooses the right one.
	bind := local
	if chosen, err := source(remote.Addr()); err == nil && chosen.WithZone("") == local.WithZone("") {
		bind = wildcard(local.Is6())
	}
	fd, err := rxSocket(bind, u.cfg.Port, !u.cfg.NoGRO)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, sockaddr(remote.Addr(), remote.Port(), scopeOf(remote.Addr()))); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}
