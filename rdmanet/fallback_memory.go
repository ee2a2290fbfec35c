package rdmanet

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// detourTime is how long RDMA is left alone where TCP had to serve.
	detourTime = time.Minute
	// probeTime is how long one dial then has to find out whether RDMA works, before others do, too.
	probeTime = 5 * time.Second
	// maxDetours bounds what is remembered.
	maxDetours = 1024
)

// target is where RDMA failed, and what it was tried with.
type target struct {
	device string
	local  netip.Addr
	remote netip.AddrPort
}

// detour is what is known of a destination that TCP served.
type detour struct {
	until  time.Time // RDMA is not tried before
	cause  string    // as it was told
	device *totals
}

// memory of detours. It lasts beyond their time, so that the same cause is told once.
type memory struct {
	mu sync.Mutex
	m  map[target]*detour
}

// detours are the process's: a Dialer may be a value of a moment.
var detours memory

func (x *dialing) target(a netip.AddrPort) target {
	return target{x.Device, x.local.Addr(), a}
}

// worth returns the addresses that RDMA should be tried for. If there are none, known is the device on which it failed.
func (m *memory) worth(x *dialing, addrs []netip.AddrPort) (worth []netip.AddrPort, known *totals) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, a := range addrs {
		d := m.m[x.target(a)]
		if d != nil && now.Before(d.until) {
			known = d.device
			continue
		}
		if d != nil {
			d.until = now.Add(probeTime) // this one finds out for all
		}
		worth = append(worth, a)
	}
	return worth, known
}

// forget is told that RDMA works.
func (m *memory) forget(x *dialing, a netip.AddrPort) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, x.target(a))
}

// remember is told that TCP had to serve, and tells whether the cause is news.
func (m *memory) remember(x *dialing, addrs []netip.AddrPort, device *totals, cause string) (news bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil {
		m.m = make(map[target]*detour)
	}
	until := time.Now().Add(detourTime)
	for _, a := range addrs {
		to := x.target(a)
		d := m.m[to]
		if d == nil {
			m.makeRoom()
			d = new(detour)
			m.m[to] = d
		}
		if d.cause != cause {
			news = true
		}
		*d = detour{until, cause, device}
	}
	return news
}

// makeRoom leaves out what ends first.
func (m *memory) makeRoom() {
	if len(m.m) < maxDetours {
		return
	}
	var first target
	var until time.Time
	for to, d := range m.m {
		if until.IsZero() || d.until.Before(until) {
			first, until = to, d.until
		}
	}
	delete(m.m, first)
}
