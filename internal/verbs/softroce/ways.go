package softroce

import "sync/atomic"

// A process that is stopped keeps the flows that it has sockets of its own for: whatever comes from these UDP source
// ports goes to it, also what is for others of its host. So a connection takes one of few ports that are
// its peer process's part, and others only when none of these does.
const (
	partWays = 4 // of the source ports
	// partTries is how often another way is looked for among these.
	partTries = partWays
)

// partFlow is the flow of the n-th way in the part of the process that has a queue pair.
func partFlow(qpn, n uint32) uint32 { return qpn>>16*partWays + n%partWays }

// anotherWay leaves a way on which packets or answers vanish, for the tries-th time in a row.
func (r *rc) anotherWay(tries int) {
	if tries <= partTries {
		r.path.SetFlow(partFlow(r.destQPN, r.path.Flow()+1))
		return
	}
	r.path.SetFlow(uint32(r.q.dev.cfg.random64()))
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
