package softroce

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
