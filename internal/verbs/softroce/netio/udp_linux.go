package netio

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxSourcePorts = 16 // bounds Config.SourcePorts
	fewPorts       = 4  // as many it may always be
	freshPart      = 4  // of few files so many may be those of Fresh
)

// UDP carries packets over the kernel's UDP.
//
// It receives on wildcard sockets of UDP port 4791, which all processes of a user share, and sends
// from ports of its own: an answer always goes to port 4791, and a source port only picks the way
// through the network (and, among processes that share a port, the receiver).
type UDP struct {
	cfg   Config
	idler Idler // the handler, or nil
	gso   bool

	rx []*rxSock // of each family that the host has, IPv4 first

	txMu   sync.RWMutex // held for reading while a Send uses descriptors
	tx     [2][]txSock  // IPv4, IPv6
	fresh  [2][]*freshSock
	closed bool

	freshMu  sync.Mutex // before txMu; held while fresh changes
	freshSeq uint32
	maxFresh int

	hot atomic.Pointer[rxSock] // where traffic was last

	awayMu sync.Mutex
	away   *rxSock // whose goroutine is not woken
	seat   watch   // made when somebody sits for the first time
	seatAt *rxSock // what it watches
	sits   sitting

	prefMu    sync.Mutex
	pref      map[prefKey]*preferred // nil once closed
	prefSocks atomic.Pointer[[]*rxSock]

	groupMu    sync.Mutex
	groups     map[groupKey]*groupSock // nil once closed
	groupSocks atomic.Pointer[[]*rxSock]

	rxFree freeList[rxState]
	txFree freeList[txState]

	wg   sync.WaitGroup // reader goroutines and closing sockets
	once sync.Once

	badICRC, runts, unsent atomic.Uint64
}

var _ Conn = (*UDP)(nil)

type txSock struct {
	fd   int
	port uint16
}

// Listen opens the sockets and begins to receive. A host without one of the address
// families is served by the other. A port that is taken gives a [*PortBusyError].
func Listen(cfg Config) (*UDP, error) {
	if cfg.Handler == nil {
		return nil, errors.New("netio: no handler")
	}
	few := fewFiles()
	if cfg.MaxPreferred == 0 {
		cfg.MaxPreferred = (few + 1) / 2 // two descriptors each
	}
	cfg = cfg.withDefaults()
	cfg.SourcePorts = min(max(cfg.SourcePorts, 1), maxSourcePorts)
	if few != 0 {
		cfg.SourcePorts = min(cfg.SourcePorts, max(few/2, fewPorts))
	}
	u := &UDP{cfg: cfg, pref: make(map[prefKey]*preferred), maxFresh: maxFresh}
	if few != 0 {
		u.maxFresh = min(max(few/freshPart, 1), maxFresh)
	}
	u.idler, _ = cfg.Handler.(Idler)
	u.prefSocks.Store(new([]*rxSock))
	u.groups = make(map[groupKey]*groupSock)
	u.groupSocks.Store(new([]*rxSock))
	u.rxFree.new = newRxState
	u.txFree.new = newTxState
	u.sits.read = u.sitRead

	var firstErr error
	for _, v6 := range []bool{false, true} {
		if err := u.openFamily(v6); err != nil {
			if firstErr == nil || absent(firstErr) {
				firstErr = err
			}
			if !absent(err) {
				break
			}
		}
	}
	if len(u.rx) == 0 || firstErr != nil && !absent(firstErr) {
		_ = u.Close()
		if firstErr == nil {
			firstErr = unix.EAFNOSUPPORT
		}
		return nil, firstErr
	}
	for _, s := range u.rx {
		s.start()
	}
	return u, nil
}

// fewFiles returns how many descriptors may be taken for what is only faster, if that is less than
// the default: a small part of those that the process may have. Else it returns 0.
func fewFiles() int {
	const part, enough = 8, 128
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur >= part*enough {
		return 0
	}
	return max(int(l.Cur/part), 1)
}

// openFamily opens the sockets of one address family. On error there are none.
func (u *UDP) openFamily(v6 bool) error {
	fd, err := rxSocket(wildcard(v6), u.cfg.Port, !u.cfg.NoGRO)
	if errors.Is(err, unix.EADDRINUSE) {
		return portBusy(u.cfg.Port, v6)
	}
	if err != nil {
		return err
	}
	rx, err := u.newRxSock(fd, v6)
	if err != nil {
		return err
	}
	f := familyIndex(v6)
	for range u.cfg.SourcePorts {
		fd, port, err := txSocket(v6)
		if err != nil {
			rx.close()
			for _, t := range u.tx[f] {
				_ = unix.Close(t.fd)
			}
			u.tx[f] = nil
			return err
		}
		u.tx[f] = append(u.tx[f], txSock{fd, port})
	}
	u.gso = !u.cfg.NoGSO && hasGSO(u.tx[f][0].fd)
	u.rx = append(u.rx, rx)
	return nil
}

func familyIndex(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Stats returns what was dropped so far.
func (u *UDP) Stats() Stats {
	return Stats{BadICRC: u.badICRC.Load(), Runts: u.runts.Load(), Unsent: u.unsent.Load()}
}

// Close stops. It must not be called by the handler.
func (u *UDP) Close() error {
	u.once.Do(func() {
		u.txMu.Lock()
		u.closed = true
		for _, f := range u.tx {
			for _, t := range f {
				_ = unix.Close(t.fd)
			}
		}
		for _, f := range u.fresh {
			for _, t := range f {
				_ = unix.Close(t.fd)
			}
		}
		u.txMu.Unlock()

		u.prefMu.Lock()
		socks := append([]*rxSock{}, u.rx...)
		for _, p := range u.pref {
			if p.sock != nil {
				socks = append(socks, p.sock)
			}
		}
		u.pref = nil
		u.prefMu.Unlock()
		socks = append(socks, u.leaveGroups()...)
		for _, s := range socks {
			s.close()
		}
		u.seat.close()
		u.wg.Wait()
	})
	return nil
}

// bare strips an error of its wrapping, down to the errno where there is one.
func bare(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// freeList keeps a few of what is used by whichever goroutine comes.
type freeList[T any] struct {
	mu   sync.Mutex
	free [8]*T
	n    int
	new  func() *T
}

func (l *freeList[T]) get() *T {
	l.mu.Lock()
	if l.n == 0 {
		l.mu.Unlock()
		return l.new()
	}
	l.n--
	x := l.free[l.n]
	l.free[l.n] = nil
	l.mu.Unlock()
	return x
}

func (l *freeList[T]) put(x *T) {
	l.mu.Lock()
	if l.n < len(l.free) {
		l.free[l.n] = x
		l.n++
	}
	l.mu.Unlock()
}
