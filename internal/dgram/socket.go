package dgram

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Config says what a socket is made of.
type Config struct {
	// Resolve finds a device, as cm's Manager does. A zero Remote binds an identifier.
	Resolve func(ctx context.Context, devices string, attr verbs.CMIDAttr) (verbs.CMID, error)
	Devices string

	Local     netip.Addr // none: any
	LocalPort uint16     // of a socket that is dialed; 0: any

	TrafficClass uint8
	ReadBuffer   int           // payload of posted receives, in bytes; 0: 1 MiB
	WriteBuffer  int           // payload of sends under way, in bytes; 0: of 256 full ones
	BusyPoll     time.Duration // as rc's

	// PrivateData goes with lookups.
	PrivateData []byte

	// Intern makes what Datagram.From shall be. It is asked once for each peer, not for each datagram.
	Intern func(Addr) net.Addr

	// Admit is asked about each lookup of this socket. Nil admits all.
	Admit func(id verbs.CMID) error
}

// Socket sends and receives datagrams. All its methods may be called from several goroutines.
type Socket struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines and calls that Close waits for

	eps    atomic.Pointer[[]*endpoint] // never changed, but replaced
	making sync.Mutex                  // of endpoints

	rmu sync.Mutex // of whoever reads
	reading
	rd *verbs.Waiter

	wmu        sync.Mutex // of whoever writes
	wr         *verbs.Waiter
	wrDeadline verbs.Deadline // the same, for those who wait for lookups

	peers   peers
	closing bool           // guarded by peers.mu
	handles sync.WaitGroup // that are open

	remote   *Addr                  // as it was dialed; nil: all
	dialedTo Addr                   // canonical
	dialed   atomic.Pointer[target] // nil: datagrams of all come
	lookupOn atomic.Pointer[deviceName]

	readBytes, writeBytes atomic.Int64
	busy                  atomic.Int64
	noLoopback            atomic.Bool
	sources               addrSet // of what was sent to groups

	mu         sync.Mutex // guards what follows
	groups     []*membership
	listeners  []verbs.Listener
	retired    []*endpoint // stopped, whose memory a reader or writer may have
	pastDrops  uint64      // of endpoints that are no more
	lookupAddr netip.AddrPort
	retirees   atomic.Int32
	lost       atomic.Pointer[failure] // why there is no endpoint

	read, written, readTotal, writtenTotal, bad atomic.Uint64
}

// New makes a socket. It has no queue pair yet.
func New(cfg *Config) *Socket {
	s := &Socket{cfg: *cfg, rd: verbs.NewWaiter(), wr: verbs.NewWaiter()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.eps.Store(new([]*endpoint))
	s.readBytes.Store(int64(cfg.ReadBuffer))
	if cfg.ReadBuffer <= 0 {
		s.readBytes.Store(defaultBytes)
	}
	s.writeBytes.Store(int64(max(cfg.WriteBuffer, 0)))
	s.busy.Store(int64(cfg.BusyPoll))
	s.spin = rc.NewSpinner()
	s.peers.init(s)
	return s
}

// begin keeps Close waiting until tasks.Done, unless the socket is closed.
func (s *Socket) begin() bool {
	s.peers.mu.Lock()
	defer s.peers.mu.Unlock()
	if s.closing {
		return false
	}
	s.tasks.Add(1)
	return true
}

// Open makes the queue pair that is bound to the local address. A socket that has none gets one when it needs it.
func (s *Socket) Open(ctx context.Context, devices string) error {
	if !s.begin() {
		return net.ErrClosed
	}
	defer s.tasks.Done()
	_, err := s.bind(ctx, devices, verbs.PSUDP, s.cfg.Local, netip.Addr{})
	return err
}

// bind returns the endpoint for a local address, or for what goes to a group.
func (s *Socket) bind(ctx context.Context, devices string, space verbs.PortSpace, local, group netip.Addr) (*endpoint, error) {
	attr := verbs.CMIDAttr{PortSpace: space, TrafficClass: s.cfg.TrafficClass}
	if local.IsValid() {
		attr.Local = netip.AddrPortFrom(local, 0)
	}
	if group.IsValid() {
		attr.Remote = netip.AddrPortFrom(group, 0)
	}
	id, err := s.cfg.Resolve(ctx, devices, attr)
	if err != nil {
		return nil, err
	}
	defer id.Close()
	if group.IsValid() {
		local = id.LocalAddr().Addr()
	}
	return s.endpoint(ctx, epKey{id.Device(), space, local})
}

// endpoint returns the endpoint for a key, which may be new.
func (s *Socket) endpoint(ctx context.Context, key epKey) (*endpoint, error) {
	s.making.Lock()
	defer s.making.Unlock()
	old := *s.eps.Load()
	for _, e := range old {
		if e.key == key && e.failed.Load() == nil {
			return e, nil
		}
	}
	e, err := s.newEndpoint(ctx, key, key.dev.Name())
	if err != nil {
		return nil, err
	}
	e.key.dev = e.id.Device()
	eps := append(slices.Clip(old), e)
	s.eps.Store(&eps)
	s.lost.Store(nil)
	s.rd.Wake()
	return e, nil
}

// Dial makes a peer the only one: what others send is not read. It waits until the peer is found.
func (s *Socket) Dial(ctx context.Context, to Addr) error {
	s.remote, s.dialedTo = &to, to.canonical()
	h, err := s.reach(ctx, to, false)
	if err != nil {
		return err
	}
	h.unref()
	return nil
}

// Local is the address of the queue pair that was made first, with the number of it, and, of a socket that was dialed, the port it
// was looked up from.
func (s *Socket) Local() Addr {
	a := Addr{IP: s.cfg.Local}
	if eps := *s.eps.Load(); len(eps) > 0 {
		e := eps[0]
		a.QPN, a.QKey = e.num, qkeyOf(e.key.space)
		if e.key.local.IsValid() {
			a.IP = e.key.local
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remote != nil && s.lookupAddr.IsValid() {
		a.IP, a.Port = s.lookupAddr.Addr(), s.lookupAddr.Port()
	}
	if a.IP.IsValid() && !a.IP.IsUnspecified() {
		a.GID = a.IP.WithZone("").As16()
	}
	return a
}

// Remote is the only peer, with the queue pair that it was last found at.
func (s *Socket) Remote() (a Addr, ok bool) {
	if s.remote == nil {
		return a, false
	}
	a = s.remote.canonical()
	if d := s.dialed.Load(); d != nil {
		a.QPN = d.qpn
	}
	return a.canonical(), true
}

// Device tells where the socket is: on the device of its first queue pair or, while there is none, on that of the first lookup.
func (s *Socket) Device() (provider, device string) {
	if eps := *s.eps.Load(); len(eps) > 0 {
		return eps[0].dev.Provider(), eps[0].dev.Name()
	}
	if d := s.lookupOn.Load(); d != nil {
		return d.provider, d.device
	}
	return "", ""
}

type deviceName struct{ provider, device string }

// MaxPayload is the longest datagram that all queue pairs of the socket can send, in bytes. A way may allow less.
func (s *Socket) MaxPayload() int {
	limit := 4096
	for _, e := range *s.eps.Load() {
		limit = min(limit, e.mtu)
	}
	return limit
}

// fail is told that an endpoint is of no use any more, and has it made anew.
func (s *Socket) fail(e *endpoint, err error) {
	if !errors.Is(err, syscall.ENODEV) {
		err = fmt.Errorf("queue pair %#x failed (%w): %w", e.num, err, syscall.ECONNRESET)
	}
	if !e.failed.CompareAndSwap(nil, &failure{err}) || !s.begin() {
		return
	}
	go func() {
		defer s.tasks.Done()
		s.remake(e)
	}()
}

// remakePause is how long a queue pair that failed at once is not made anew.
const remakePause = time.Second

// remake puts a new endpoint in the place of one that failed. Its queue pair has another number, which those who
// know the old one notice by having no answers.
func (s *Socket) remake(e *endpoint) {
	_ = e.stop() // it has failed
	s.peers.forget(e)
	err := e.failed.Load().err
	if !errors.Is(err, syscall.ENODEV) {
		if age := now() - e.born; age < int64(remakePause) {
			t := time.NewTimer(remakePause - time.Duration(age))
			defer t.Stop()
			select {
			case <-t.C:
			case <-s.ctx.Done():
			}
		}
		var ne *endpoint
		if ne, err = s.endpoint(s.ctx, e.key); err == nil {
			s.rejoin(e, ne)
		}
	}
	s.making.Lock()
	eps := slices.Clone(*s.eps.Load())
	eps = slices.DeleteFunc(eps, func(o *endpoint) bool { return o == e })
	if len(eps) == 0 {
		s.lost.Store(&failure{err})
	}
	s.mu.Lock() // Stats finds it in one of the two
	s.eps.Store(&eps)
	s.retired = append(s.retired, e)
	s.mu.Unlock()
	s.making.Unlock()
	s.retirees.Add(1)
	s.rd.Wake()
	s.wr.Wake()
}

// freeRetired gives up the memory of endpoints that are no more. s.rmu is held, and the reader looks at no datagram.
func (s *Socket) freeRetired() {
	if s.retirees.Load() == 0 || !s.wmu.TryLock() {
		return
	}
	defer s.wmu.Unlock()
	s.freeRetiredLocked()
}

func (s *Socket) freeRetiredLocked() {
	s.mu.Lock()
	es := s.retired
	s.retired = nil
	for _, e := range es {
		s.pastDrops += e.dropped()
	}
	s.mu.Unlock()
	s.retirees.Add(-int32(len(es)))
	for _, e := range es {
		_ = e.free() // nobody is left to tell
	}
}

// hopeless is the error of a socket that has lost its devices.
func (s *Socket) hopeless(eps []*endpoint) error {
	if f := s.lost.Load(); f != nil && len(eps) == 0 {
		return f.err
	}
	return nil
}

// lingerTime is how long Close waits for the device to send what was written.
const lingerTime = 200 * time.Millisecond

// Close ends everything. Who waits gets net.ErrClosed. What was written before has left the device, or is given up after a short time.
func (s *Socket) Close() error {
	s.peers.mu.Lock()
	if s.closing {
		s.peers.mu.Unlock()
		return net.ErrClosed
	}
	s.closing = true
	s.peers.mu.Unlock()
	s.cancel()
	s.rd.Close(net.ErrClosed)
	s.wr.Close(net.ErrClosed)
	s.wrDeadline.Set(time.Time{})
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	s.mu.Lock()
	ls := s.listeners
	s.mu.Unlock()
	for _, l := range ls {
		keep(l.Close())
	}
	s.tasks.Wait()
	s.rmu.Lock()
	defer s.rmu.Unlock()
	s.wmu.Lock()
	s.linger()
	s.peers.clear()
	s.freeRetiredLocked()
	eps := *s.eps.Load()
	drops := uint64(0)
	for _, e := range eps {
		keep(e.stop())
		drops += e.drops.Load()
		keep(e.tx.free(e))
	}
	s.mu.Lock() // Stats finds them here or there
	s.eps.Store(new([]*endpoint))
	s.pastDrops += drops
	s.mu.Unlock()
	s.wmu.Unlock()
	s.handles.Wait() // a writer that comes too late may have some, and gives them back
	for _, e := range eps {
		keep(e.free())
	}
	s.reading.last, s.reading.at, s.reading.from.e = nil, nil, nil
	return first
}

// linger waits until the device has sent what it was given.
func (s *Socket) linger() {
	end := time.Now().Add(lingerTime)
	pause := 20 * time.Microsecond
	for _, e := range *s.eps.Load() {
		for e.failed.Load() == nil && e.tx.reap() == nil && e.tx.head != e.tx.tail && time.Now().Before(end) {
			time.Sleep(pause)
			pause = min(2*pause, 5*time.Millisecond)
		}
	}
}

// SetReadDeadline makes reads fail from t on; the zero time lifts that.
func (s *Socket) SetReadDeadline(t time.Time) error {
	if s.ctx.Err() != nil {
		return net.ErrClosed
	}
	s.rd.SetDeadline(t)
	return nil
}

// SetWriteDeadline is the same for writes.
func (s *Socket) SetWriteDeadline(t time.Time) error {
	if s.ctx.Err() != nil {
		return net.ErrClosed
	}
	s.wr.SetDeadline(t)
	s.wrDeadline.Set(t)
	return nil
}

// SetReadBuffer says how much payload the posted receives have room for. Less takes effect as datagrams are read, more than a
// queue pair has room for is not had.
func (s *Socket) SetReadBuffer(bytes int) error {
	switch {
	case bytes <= 0:
		return syscall.EINVAL
	case s.ctx.Err() != nil:
		return net.ErrClosed
	}
	s.readBytes.Store(int64(bytes))
	if s.rmu.TryLock() { // who reads will see it
		defer s.rmu.Unlock()
		for _, e := range *s.eps.Load() {
			if e.failed.Load() == nil {
				if err := e.rx.extend(e, e.depth()); err != nil && !errors.Is(err, net.ErrClosed) {
					return err
				}
			}
		}
	}
	return nil
}

// SetWriteBuffer bounds what is under way. More than 256 datagrams never are.
func (s *Socket) SetWriteBuffer(bytes int) error {
	switch {
	case bytes <= 0:
		return syscall.EINVAL
	case s.ctx.Err() != nil:
		return net.ErrClosed
	}
	s.writeBytes.Store(int64(bytes))
	return nil
}

// SetLoopback says whether what the socket sends to groups that it is a member of comes back to it. It does at first.
func (s *Socket) SetLoopback(on bool) error {
	if s.ctx.Err() != nil {
		return net.ErrClosed
	}
	s.noLoopback.Store(!on)
	return nil
}

// Stats counts what a socket did.
type Stats struct {
	Read, Written           uint64 // datagrams
	BytesRead, BytesWritten uint64
	Dropped                 uint64 // they met no receive, or nothing could be made of them; 0 where a device does not tell the former
}

// Stats counts what the socket did so far.
func (s *Socket) Stats() Stats {
	st := Stats{
		Read: s.read.Load(), Written: s.written.Load(),
		BytesRead: s.readTotal.Load(), BytesWritten: s.writtenTotal.Load(), Dropped: s.bad.Load(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Dropped += s.pastDrops
	for _, e := range append(slices.Clip(*s.eps.Load()), s.retired...) {
		st.Dropped += e.dropped()
	}
	return st
}
