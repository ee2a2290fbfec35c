package netio

import (
	"math/rand/v2"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// maxFresh bounds the sockets of Fresh. The lowest bits of a path's number tell which one it uses, the others
// whether it is still the same.
const (
	freshBits = 5
	maxFresh  = 1 << freshBits
)

// freshSock is a socket whose port nothing was sent from before the paths that use it took it.
type freshSock struct {
	txSock
	users atomic.Int32
}

// Fresh implements [Conn]. Where all ports are in use the path shares one: what others stay with reaches a process
// that runs, and that hands over what is for another one.
func (u *UDP) Fresh(p *Path) uint16 {
	v6 := p.Remote.Is6()
	f := familyIndex(v6)
	u.freshMu.Lock()
	defer u.freshMu.Unlock()
	p.leaveFresh(nil)
	i := u.freshPlace(f)
	if s := u.fresh[f]; i == len(s) || s[i].users.Load() == 0 {
		u.renew(v6, i)
	}
	if i == len(u.fresh[f]) { // none at all
		p.SetFlow(rand.Uint32())
		return 0
	}
	u.freshSeq++
	p.SetFresh((u.freshSeq<<freshBits|uint32(i))&^freshFlow, &u.fresh[f][i].users)
	return u.fresh[f][i].port
}

// freshPlace returns the place of a port that nobody uses, or of any. freshMu is held.
func (u *UDP) freshPlace(f int) int {
	for i, s := range u.fresh[f] {
		if s.users.Load() == 0 {
			return i
		}
	}
	n := len(u.fresh[f])
	if n < u.maxFresh {
		return n
	}
	return rand.IntN(max(n, 1))
}

// renew opens a socket for place i, if it can. freshMu is held.
func (u *UDP) renew(v6 bool, i int) {
	fd, port, err := txSocket(v6)
	if err != nil {
		return
	}
	f := familyIndex(v6)
	old := fd
	u.txMu.Lock()
	switch {
	case u.closed:
	case i == len(u.fresh[f]):
		u.fresh[f] = append(u.fresh[f], &freshSock{txSock: txSock{fd, port}})
		old = -1
	default:
		old = u.fresh[f][i].fd
		u.fresh[f][i].txSock = txSock{fd, port}
	}
	u.txMu.Unlock()
	if old >= 0 {
		_ = unix.Close(old)
	}
}

// source returns which of the family's sockets a path uses, for sourceSock. txMu is held.
func (u *UDP) source(f int, p *Path) int {
	if n, ok := p.FreshPort(); ok && int(n%maxFresh) < len(u.fresh[f]) {
		return maxSourcePorts + int(n%maxFresh)
	}
	return int(p.Flow() % uint32(len(u.tx[f])))
}

// sourceSock is socket n of a family. txMu is held.
func (u *UDP) sourceSock(f, n int) txSock {
	if n >= maxSourcePorts {
		return u.fresh[f][n-maxSourcePorts].txSock
	}
	return u.tx[f][n]
}
