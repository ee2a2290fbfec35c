package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/ring"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Listener takes stream connections.
type Listener struct {
	network string
	addr    *Addr
	lc      ListenConfig
	parts   *cm.Listener
	tcp     *tcpHalf // nil without Fallback
	ring    *ring.Config

	slots chan struct{} // one held by each connection that is being set up or waits
	queue chan *Conn    // set up; has room for every slot
	short chan error    // EMFILE or the like: for the next Accept
	begun chan struct{} // a set-up can be given up

	deadline verbs.Deadline
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	pulling  sync.WaitGroup

	mu     sync.Mutex // guards what follows and sending on queue
	closed bool
	setUps setUps
	dead   error // why no part takes requests any more
	living int   // parts that do
	ended  chan struct{}

	accepted, rejected, failed atomic.Uint64
}

// ListenerStats counts what became of requests to connect.
type ListenerStats struct {
	Accepted uint64 // returned by Accept
	TCP      uint64 // of these, by TCP (Fallback)
	Rejected uint64 // refused by Admit
	Dropped  uint64 // beyond the backlog
	Failed   uint64 // the peer died, spoke something else or did not answer, or something ran out
	Waiting  uint64 // for Accept, now; of TCP's those that the kernel has handed over
}

// String is a line for logs and debuggers.
func (s ListenerStats) String() string {
	return fmt.Sprintf("accepted %d (%d by TCP), rejected %d, dropped %d, failed %d, waiting %d",
		s.Accepted, s.TCP, s.Rejected, s.Dropped, s.Failed, s.Waiting)
}

func newListener(network string, lc ListenConfig, parts *cm.Listener, slots int, short chan error) *Listener {
	return newListenerOfBoth(network, lc, parts, nil, slots, short)
}

// newListenerOfBoth has TCP beside the parts, of which there may be none then.
func newListenerOfBoth(network string, lc ListenConfig, parts *cm.Listener, tcp net.Listener, slots int, short chan error) *Listener {
	l := &Listener{
		network: network,
		lc:      lc,
		parts:   parts,
		ring:    ringConfig(lc.ReadBuffer, lc.WriteBuffer, lc.BusyPoll, lc.KeepAlive, lc.KeepAliveConfig),
		slots:   make(chan struct{}, slots),
		queue:   make(chan *Conn, slots),
		short:   short,
		living:  len(parts.Parts),
		begun:   make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	l.setUps.init()
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if tcp != nil {
		l.addr = AddrFromAddrPort(tcpAddrPort(tcp.Addr()))
		l.tcp = &tcpHalf{Listener: tcp, ready: make(chan tcpAccepted), asking: make(chan struct{}, slots)}
		l.living++
		l.pulling.Go(l.pullTCP)
	}
	if len(parts.Parts) > 0 {
		l.addr = AddrFromAddrPort(parts.Addr())
	}
	for _, p := range parts.Parts {
		l.pulling.Go(func() { l.pull(p) })
	}
	return l
}

// logger is what a Logger field means.
func logger(l *slog.Logger) *slog.Logger {
	if l != nil {
		return l
	}
	return slog.Default()
}

// pull takes requests of one provider and sets them up as slots get free. With none
// left they wait in the provider's backlog, and beyond that are dropped.
func (l *Listener) pull(p cm.Part) {
	var h hurry
	for {
		id, err := p.GetRequest(l.ctx)
		if err != nil {
			l.lost(p, err)
			return
		}
		if !l.takeSlot(p, &h) {
			_ = id.Close() // which rejects
			return
		}
		if l.lc.Admit == nil {
			l.setUp(id)
		} else {
			go l.admit(id) // the function is not ours, and may take its time
		}
	}
}

// takeSlot waits for a slot, until the listener is closed. If there is none, set-ups whose peers do not answer
// make room: whoever sends requests with forged sources must not keep others out.
func (l *Listener) takeSlot(p cm.Part, h *hurry) bool {
	for {
		select {
		case l.slots <- struct{}{}:
			return true
		default:
		}
		age := answerTime
		if h.on(p.Stats().Dropped) {
			age = hurriedTime
		}
		wait, some := l.makeRoom(age)
		if some && wait <= 0 {
			continue
		}
		var later <-chan time.Time
		if some {
			later = time.After(wait)
		}
		select {
		case l.slots <- struct{}{}:
			return true
		case <-l.ctx.Done():
			return false
		case <-later:
		case <-l.begun:
		}
	}
}

// makeRoom gives up the oldest set-up, if it is of that age: its peer has had time to answer. It returns how long
// that is still to come, and whether there is a set-up.
func (l *Listener) makeRoom(age time.Duration) (wait time.Duration, some bool) {
	l.mu.Lock()
	u, wait := l.setUps.oldest(age)
	if u == nil || wait > 0 {
		l.mu.Unlock()
		return wait, u != nil
	}
	u.crowded = true
	l.mu.Unlock()
	u.cancel() // nothing happens if it came to stand just now
	return 0, true
}

// lost is told that a provider takes no more requests.
func (l *Listener) lost(p cm.Part, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	logger(l.lc.Logger).Warn("rdmanet: listener lost a provider", "addr", l.addr.String(), "provider", p.Provider, "err", err)
	if l.living--; l.living == 0 {
		l.dead = &cm.ProviderError{Provider: p.Provider, Device: p.Device, Err: err}
		close(l.ended)
	}
}

// admit asks Admit and goes on as it says.
func (l *Listener) admit(id verbs.CMID) {
	r := &Request{
		Local: AddrFromAddrPort(id.LocalAddr()), Remote: AddrFromAddrPort(id.RemoteAddr()),
		Provider: id.Provider().Name(), Device: id.Device().Name(),
	}
	if k, ok := id.(verbs.Credentialed); ok {
		r.Cred = (*Cred)(new(k.Cred()))
	}
	if err := l.lc.Admit(r); err != nil {
		l.rejected.Add(1)
		_ = id.Reject(nil) // Close would say that nobody listens
		_ = id.Close()
		<-l.slots
		return
	}
	l.setUp(id)
}

// setUp answers a request. It does not wait for the peer.
func (l *Listener) setUp(id verbs.CMID) {
	c := newConn(l.network, id, l.ring.KeepAlive)
	l.mu.Lock()
	l.setUps.add(c)
	l.mu.Unlock()
	cancel := ring.Server(id, l.ring, func(r *ring.Conn, err error) { l.done(c, r, err) })
	l.mu.Lock()
	pending := l.setUps.cancelable(c, cancel)
	closed := l.closed
	l.mu.Unlock()
	if !pending {
		return
	}
	if closed {
		cancel()
	}
	select {
	case l.begun <- struct{}{}:
	default:
	}
}

// done is told how setting up ended. It must not block.
func (l *Listener) done(c *Conn, r *ring.Conn, err error) {
	if err != nil {
		l.mu.Lock()
		crowded := l.setUps.remove(c)
		l.mu.Unlock()
		<-l.slots
		if errors.Is(err, net.ErrClosed) && !crowded {
			return // this listener's Close
		}
		l.failed.Add(1)
		if outOfResources(err) {
			tellShort(l.short, err)
		}
		return
	}
	c.ring = r
	c.opened()
	if !l.deliver(c) {
		<-l.slots
		go c.abort() // not here: this is the connection's own handler
	}
}

// tellShort keeps err for the next Accept, unless another one waits already.
func tellShort(short chan<- error, err error) {
	select {
	case short <- err:
	default:
	}
}

// deliver hands a connection to Accept, unless the listener is closed.
func (l *Listener) deliver(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setUps.remove(c)
	if l.closed {
		return false
	}
	l.queue <- c
	return true
}

// Accept waits for the next connection, a [*Conn]; with Fallback it may be a [*net.TCPConn]. A peer that dies or misbehaves while
// connecting does not make it fail. It does when files or memory run out, with an error that
// is Temporary, since those may come back.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, opError("accept", l.network, nil, l.addr, PhaseConnect, err)
	}
	return c, nil
}

func (l *Listener) accept() (net.Conn, error) {
	var tcp <-chan tcpAccepted
	if l.tcp != nil {
		tcp = l.tcp.ready
	}
	expired := l.deadline.Past()
	select { // what is over is over, also when connections wait
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	case <-expired:
		return nil, os.ErrDeadlineExceeded
	default:
	}
	select {
	case c := <-l.queue:
		<-l.slots
		l.accepted.Add(1)
		return c, nil
	case a := <-tcp:
		if a.err != nil {
			return nil, a.err
		}
		l.tcp.waiting.Add(-1)
		l.accepted.Add(1)
		l.tcp.accepted.Add(1)
		return a.c, nil
	case err := <-l.short:
		return nil, err
	case <-l.ended:
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.dead
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	case <-expired:
		return nil, os.ErrDeadlineExceeded
	}
}

// Addr returns the address that is listened on, a [*Addr], with the real port.
func (l *Listener) Addr() net.Addr { return l.addr }

// SetDeadline makes Accept fail with os.ErrDeadlineExceeded from t on. The zero time lifts that.
func (l *Listener) SetDeadline(t time.Time) error {
	if l.ctx.Err() != nil {
		return opError("set", l.network, nil, l.addr, PhaseConnect, net.ErrClosed)
	}
	l.deadline.Set(t)
	return nil
}

// Stats counts what the listener did so far.
func (l *Listener) Stats() ListenerStats {
	s := ListenerStats{
		Accepted: l.accepted.Load(), Rejected: l.rejected.Load(), Failed: l.failed.Load(),
		Waiting: uint64(len(l.queue)),
	}
	for _, p := range l.parts.Parts {
		s.Dropped += p.Stats().Dropped
	}
	if l.tcp != nil {
		s.TCP = l.tcp.accepted.Load()
		s.Waiting += uint64(l.tcp.waiting.Load())
	}
	return s
}

// Close gives the address up. Accept fails with [net.ErrClosed]; connections that
// wait for it are rejected or reset, accepted ones live on.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return opError("close", l.network, nil, l.addr, PhaseConnect, net.ErrClosed)
	}
	l.closed = true
	cancels := l.setUps.cancels()
	l.mu.Unlock()

	l.cancel()
	err := l.parts.Close()
	if l.tcp != nil {
		err = errors.Join(err, l.tcp.Close())
	}
	l.pulling.Wait()
	for _, cancel := range cancels {
		cancel()
	}
	for {
		select {
		case c := <-l.queue:
			<-l.slots
			c.abort()
			continue
		default:
		}
		break
	}
	l.deadline.Set(time.Time{}) // stops the timer
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return opError("close", l.network, nil, l.addr, PhaseConnect, err)
	}
	return nil
}
