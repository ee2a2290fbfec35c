package softroce

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
)

// Sharer is this process's part in sharing a network with other processes of
// its host, as [share.Process] has it.
type Sharer interface {
	Slot() uint8
	BindPort(ps verbs.PortSpace, addr netip.Addr, port uint16) (bound uint16, release func(), err error)
	HandOver(to share.Target, pkt *netio.Packet) error
	Watch(slot uint8, died func()) (stop func(), err error)
	Close() error
}

// localShare is the Sharer of a process that has its network for itself.
type localShare struct {
	slot   uint8
	random func() uint64

	mu    sync.Mutex
	bound map[listenKey][]netip.Addr
}

// listenKey is a port of a port space.
type listenKey struct {
	space verbs.PortSpace
	port  uint16
}

func newLocalShare(cfg *Config) *localShare {
	return &localShare{
		slot: 1 + uint8(cfg.random64()%share.MaxSlot), random: cfg.random64, bound: map[listenKey][]netip.Addr{},
	}
}

func (s *localShare) Slot() uint8 { return s.slot }

// Ports for those who ask for any.
const (
	firstFreePort = 32768
	freePorts     = 28232
)

func (s *localShare) BindPort(ps verbs.PortSpace, addr netip.Addr, port uint16) (uint16, func(), error) {
	addr = addr.Unmap().WithZone("")
	s.mu.Lock()
	defer s.mu.Unlock()
	if port != 0 {
		k := listenKey{ps, port}
		for _, a := range s.bound[k] {
			if addrsConflict(a, addr) {
				return 0, nil, fmt.Errorf("softroce: port %d of port space %v: %w", port, ps, syscall.EADDRINUSE)
			}
		}
		return port, s.add(k, addr), nil
	}
	start := s.random() % freePorts
	for i := range uint64(freePorts) {
		k := listenKey{ps, uint16(firstFreePort + (start+i)%freePorts)}
		if len(s.bound[k]) == 0 {
			return k.port, s.add(k, addr), nil
		}
	}
	return 0, nil, fmt.Errorf("softroce: no free port in port space %v: %w", ps, syscall.EADDRINUSE)
}

func (s *localShare) add(k listenKey, addr netip.Addr) (release func()) {
	s.bound[k] = append(s.bound[k], addr)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.bound[k]
		for i, a := range l {
			if a == addr {
				l = append(l[:i:i], l[i+1:]...)
				break
			}
		}
		if len(l) == 0 {
			delete(s.bound, k)
		} else {
			s.bound[k] = l
		}
	})
}

// addrsConflict tells whether two addresses cannot be bound to one port. The
// zero address is the wildcard of both families.
func addrsConflict(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid():
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a == b || a.IsUnspecified() || b.IsUnspecified()
}

func (s *localShare) HandOver(share.Target, *netio.Packet) error { return share.ErrUnclaimed }

func (s *localShare) Watch(uint8, func()) (func(), error) { return nil, share.ErrOwn }

func (s *localShare) Close() error { return nil }
