package share

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// maxPortPeers bounds the connections to ports of others. Those to slots are bounded by
// their number.
const maxPortPeers = 64

// sys is the part of a Process that has sockets.
type sys struct {
	prefix string // of names
	uid    int
	wg     sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listeners map[*listener]struct{}
	peers     map[Target]*peer
	clock     uint64 // counts uses of peers
}

func (p *Process) join() error {
	p.uid = os.Geteuid()
	p.prefix = namePrefix(p.cfg.Port, p.uid)
	p.listeners = make(map[*listener]struct{})
	p.peers = make(map[Target]*peer)
	for _, i := range rand.Perm(MaxSlot) {
		slot := uint8(i + 1)
		_, err := p.listen(Target{Slot: slot})
		if err == nil {
			p.slot = slot
			return nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("all %d slots for processes on UDP port %d are taken%s: %w", MaxSlot, p.cfg.Port, p.squatters(), unix.EADDRINUSE)
}

// squatters tells, in words, of other users who have taken slots of this one.
func (p *Process) squatters() string {
	n, uid := 0, 0
	for i := range MaxSlot {
		if fd, cred, err := dial(p.name(Target{Slot: uint8(i + 1)})); err == nil {
			_ = unix.Close(fd)
			if !trusted(cred) {
				n, uid = n+1, int(cred.Uid)
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d of them by others than this user (uid %d)", n, uid)
}

// namePrefix is what names begin with. The @ stands for the zero byte of an abstract name.
func namePrefix(port uint16, uid int) string {
	return fmt.Sprintf("@go-rdma/softroce/%d/%d/%d/", version, port, uid)
}

func (p *Process) name(t Target) string {
	if t.Slot != 0 {
		return fmt.Sprintf("%sslot/%d", p.prefix, t.Slot)
	}
	return fmt.Sprintf("%sport/%04x/%d", p.prefix, uint16(t.PortSpace), t.Port)
}

// claim gets the name of a port.
func (p *Process) claim(k portKey) (giveUp func(), err error) {
	t := Target{PortSpace: k.ps, Port: k.port}
	l, err := p.listen(t)
	if errors.Is(err, unix.EADDRINUSE) {
		e := &InUseError{Target: t, UID: -1}
		if fd, cred, err := dial(p.name(t)); err == nil {
			_ = unix.Close(fd)
			e.UID, e.PID = int(cred.Uid), int(cred.Pid)
		}
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	return l.close, nil
}

// trusted tells whether the process at the other end may give us packets and take ours.
func trusted(c *unix.Ucred) bool { return verbs.SameUser(c.Uid) }

// handOverTries bounds how often a new connection may end before it takes anything.
const handOverTries = 3

func (p *Process) handOver(to Target, pkt *netio.Packet) error {
	for tries := 0; ; {
		pe, fresh, err := p.peer(to)
		if err != nil {
			return err
		}
		err = pe.send(pkt)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, os.ErrClosed) && fresh: // by us, to make room
			return fmt.Errorf("%w: %w", ErrDropped, err)
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.ENOTCONN), errors.Is(err, os.ErrClosed):
			// It died, and another one may have the name by now. Or it is there and has too many connections: that
			// must not count as nobody's.
			p.forget(pe)
			if fresh {
				tries++
			}
			if tries == handOverTries {
				return fmt.Errorf("%w: %w", ErrDropped, err)
			}
		default: // EAGAIN: its queue is full
			return fmt.Errorf("%w: %w", ErrDropped, err)
		}
	}
}

// peer returns the connection to a target, and whether it is new.
func (p *Process) peer(to Target) (pe *peer, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, net.ErrClosed
	}
	p.clock++
	if pe := p.peers[to]; pe != nil {
		pe.used = p.clock
		return pe, false, nil
	}
	pe, err = p.connect(to)
	return pe, true, err
}

// connect makes the connection to a target. p.mu is held.
func (p *Process) connect(to Target) (*peer, error) {
	fd, cred, err := dial(p.name(to))
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, ErrUnclaimed
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDropped, err)
	case !trusted(cred):
		_ = unix.Close(fd)
		p.foreign.Add(1)
		return nil, fmt.Errorf("%w: uid %d", ErrForeign, cred.Uid)
	}
	pe, err := newPeer(to, fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDropped, err)
	}
	pe.used = p.clock
	if to.Slot == 0 {
		p.makeRoom()
	}
	p.peers[to] = pe
	p.wg.Go(func() {
		pe.waitEnd()
		p.gone(pe)
	})
	return pe, nil
}

// makeRoom closes the connection to a port that was not used for longest, if there
// are too many.
func (p *Process) makeRoom() {
	n := 0
	var oldest *peer
	for t, pe := range p.peers {
		if t.Slot != 0 {
			continue
		}
		n++
		if oldest == nil || pe.used < oldest.used {
			oldest = pe
		}
	}
	if n < maxPortPeers {
		return
	}
	delete(p.peers, oldest.to)
	oldest.f.Close()
}

// forget closes a connection whose other end is gone. Its goroutine tells the watchers.
func (p *Process) forget(pe *peer) {
	p.mu.Lock()
	if p.peers[pe.to] == pe {
		delete(p.peers, pe.to)
	}
	p.mu.Unlock()
	pe.f.Close()
}

// gone is called when a connection has ended.
func (p *Process) gone(pe *peer) {
	p.forget(pe)
	p.mu.Lock()
	ws := pe.watches
	pe.watches = nil
	if p.closed { // we left, not they
		ws = nil
	}
	p.mu.Unlock()
	for w := range ws {
		if w.over.CompareAndSwap(false, true) {
			w.died()
		}
	}
}

// watchTries bounds how often a process may end just when it is going to be watched.
const watchTries = 3

func (p *Process) watch(slot uint8, died func()) (stop func(), err error) {
	w := &watch{died: died}
	for range watchTries {
		pe, _, err := p.peer(Target{Slot: slot})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		alive := p.peers[pe.to] == pe
		if alive {
			if pe.watches == nil {
				pe.watches = make(map[*watch]struct{})
			}
			pe.watches[w] = struct{}{}
		}
		p.mu.Unlock()
		if !alive { // it ended just now
			continue
		}
		return func() {
			w.over.Store(true)
			p.mu.Lock()
			delete(pe.watches, w)
			p.mu.Unlock()
		}, nil
	}
	return nil, ErrUnclaimed
}

func (p *Process) leave() error {
	p.mu.Lock()
	p.closed = true
	var ls []*listener
	for l := range p.listeners {
		ls = append(ls, l)
	}
	var ps []*peer
	for _, pe := range p.peers {
		ps = append(ps, pe)
	}
	p.mu.Unlock()
	for _, l := range ls {
		l.close()
	}
	for _, pe := range ps {
		pe.f.Close()
	}
	p.wg.Wait()
	return nil
}
