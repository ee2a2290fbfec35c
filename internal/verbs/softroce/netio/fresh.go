package netio

import "sync/atomic"

// A flow whose number has this bit uses a port that Fresh gave it.
const freshFlow = 1 << 31

// SetFresh is for implementations of [Conn]: the path uses a port that Fresh gave it, of number n below 1<<31. users,
// if not nil, counts the paths that use the port.
func (p *Path) SetFresh(n uint32, users *atomic.Int32) {
	if users != nil {
		users.Add(1)
	}
	p.leaveFresh(users)
	p.flow.Store(n | freshFlow)
}

// FreshPort returns what SetFresh was given last, unless SetFlow was called since.
func (p *Path) FreshPort() (n uint32, ok bool) {
	f := p.flow.Load()
	return f &^ freshFlow, f&freshFlow != 0
}

// leaveFresh gives up the port that the path used, for another one or nil.
func (p *Path) leaveFresh(next *atomic.Int32) {
	if old := p.fresh.Swap(next); old != nil {
		old.Add(-1)
	}
}
