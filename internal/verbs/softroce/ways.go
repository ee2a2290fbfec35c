package softroce

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// A process that is stopped keeps the flows that it has sockets of its own for: whatever comes from these UDP source
// ports goes to it, also what is for others of its host. So a connection takes one of few ports that are
// its peer process's part, and when none of these does a new one, which nobody can have a socket of his own for yet.
const (
	partWays = 4 // of the source ports
	// partTries is how often another way is looked for among these.
	partTries = partWays
)

// partFlow is the flow of the n-th way in the part of the process that has a queue pair.
func partFlow(qpn, n uint32) uint32 { return qpn>>16*partWays + n%partWays }

// sureTries is how often a sure way is tried before another one is made.
const sureTries = 8

// anotherWay leaves a way on which packets or answers vanish, for the tries-th time in a row.
func (r *rc) anotherWay(tries int) {
	d := r.q.dev
	if tries <= partTries {
		r.path.SetFlow(partFlow(r.destQPN, r.path.Flow()+1))
		return
	}
	if _, fresh := r.path.FreshPort(); fresh && (tries-partTries)%sureTries != 1 && d.here(r.path.Remote) {
		return
	}
	d.wayOut(r.path)
}

// here tells whether an address is this host's.
func (d *device) here(a netip.Addr) bool { return d.ownHost != nil && d.ownHost(a) }

// wayOut gives a path a new way. To this host it is one that surely leads to a process that runs, this one, which
// hands over what is for others.
func (d *device) wayOut(p *netio.Path) (port uint16) {
	port = d.conn.Fresh(p)
	if port != 0 && d.here(p.Remote) {
		d.conn.Prefer(p.Remote, netip.AddrPortFrom(p.Local, port))
	}
	return port
}

// sureWays are ways for datagrams to this host, one for each pair of addresses. They stay: no other
// process takes flows of datagrams for itself.
type sureWays struct {
	mu sync.Mutex
	m  map[ibcm.Path]sureWay
}

type sureWay struct {
	path *netio.Path
	port uint16
}

const maxSureWays = 4 // each costs sockets

// sureWay returns the way to a process of this host, or nil if there is none.
func (in *instance) sureWay(p ibcm.Path) *netio.Path {
	if !in.ownAddr(p.Remote) {
		return nil
	}
	s := &in.surely
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.m[p]
	switch {
	case ok: // once more, in case it had to give way to others
		in.dev.conn.Prefer(p.Remote, netip.AddrPortFrom(p.Local, w.port))
	case len(s.m) == maxSureWays:
		return nil
	default:
		w.path = &netio.Path{Local: p.Local, Remote: p.Remote, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit}
		if w.port = in.dev.wayOut(w.path); w.port == 0 {
			return nil
		}
		if s.m == nil {
			s.m = make(map[ibcm.Path]sureWay)
		}
		s.m[p] = w
	}
	return w.path
}

// handed tells from which UDP source port the packets of a connection come that others hand over.
type handed struct{ last atomic.Uint64 } // the port, and how many came from there in a row

// settledAfter is how many packets from one port are more than an attempt of a peer that looks for a way. What such
// attempts leave in the queue of a process that was stopped must not make it keep all ways for itself.
const settledAfter = 4 * probePackets

// settled takes a packet from port, and tells whether the peer stays with it.
func (h *handed) settled(port uint16) bool {
	for {
		old := h.last.Load()
		n := uint64(1)
		if uint16(old>>32) == port {
			n = min(old&0xffffffff+1, settledAfter)
		}
		if h.last.CompareAndSwap(old, uint64(port)<<32|n) {
			return n == settledAfter
		}
	}
}
