package rdmanet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/cm"
)

// Stats counts what a connection did, and tells which way it goes.
type Stats struct {
	Provider, Device string

	BytesRead, BytesWritten       uint64
	MessagesRead, MessagesWritten uint64 // RDMA messages with data

	CreditStalls uint64 // waits of a write for the peer to give space
	Retransmits  uint64 // packets sent again
	RNRs         uint64 // times the peer had no receive posted
	Spins        uint64 // reads that found data by polling
	Parks        uint64 // times a read or write slept
	Wakeups      uint64 // times one was woken

	ReadBuffer, WriteBuffer int // bytes registered now
}

// String is a line for logs and debuggers.
func (s Stats) String() string {
	return fmt.Sprintf("%s: read %d B in %d messages, wrote %d B in %d; %d credit stalls, %d retransmits, %d RNRs; "+
		"%d spins, %d parks, %d wakeups; buffers %d B and %d B", strings.TrimSpace(s.Provider+" "+s.Device),
		s.BytesRead, s.MessagesRead, s.BytesWritten, s.MessagesWritten, s.CreditStalls, s.Retransmits, s.RNRs,
		s.Spins, s.Parks, s.Wakeups, s.ReadBuffer, s.WriteBuffer)
}

func (s *Stats) add(o *Stats) {
	s.BytesRead += o.BytesRead
	s.BytesWritten += o.BytesWritten
	s.MessagesRead += o.MessagesRead
	s.MessagesWritten += o.MessagesWritten
	s.CreditStalls += o.CreditStalls
	s.Retransmits += o.Retransmits
	s.RNRs += o.RNRs
	s.Spins += o.Spins
	s.Parks += o.Parks
	s.Wakeups += o.Wakeups
	s.ReadBuffer += o.ReadBuffer
	s.WriteBuffer += o.WriteBuffer
}

// DeviceStats sums up the connections and the datagrams of a device since the program started, closed
// ones included. Only Conns, ReadBuffer and WriteBuffer are of the moment.
type DeviceStats struct {
	Stats
	Conns             uint64      // open now
	Datagrams         PacketStats // of PacketConns, on the device that each was first on
	Dials, DialErrors uint64
	Fallbacks         uint64 // dials that TCP served, because RDMA had failed or been slow on this device
	BadICRC           uint64 // packets dropped: changed on the way, or not RoCE
	BadKey            uint64 // requests refused: memory that is not there or not the peer's to access
	BadPacket         uint64 // packets dropped: malformed, or not what the peer may send
}

// String is a line for logs and debuggers.
func (d DeviceStats) String() string {
	return fmt.Sprintf("%s; %d connections; %d of %d dials failed, TCP served %d; packets dropped: %d by their ICRC, %d malformed; "+
		"%d requests refused; datagrams: %s", d.Stats, d.Conns, d.DialErrors, d.Dials, d.Fallbacks, d.BadICRC, d.BadPacket, d.BadKey, d.Datagrams)
}

// totals gathers the DeviceStats of one device.
type totals struct {
	provider, device  string
	dials, dialErrors atomic.Uint64
	fallbacks         atomic.Uint64

	mu   sync.Mutex
	live map[*Conn]struct{}
	past Stats // of closed connections

	livePackets map[*PacketConn]struct{}
	pastPackets PacketStats
}

var devices = struct {
	sync.Mutex
	m map[[2]string]*totals
}{m: map[[2]string]*totals{}}

// totalsOf returns the totals of a device. Where no device was found, both names are empty.
func totalsOf(provider, device string) *totals {
	devices.Lock()
	defer devices.Unlock()
	key := [2]string{provider, device}
	t := devices.m[key]
	if t == nil {
		t = &totals{provider: provider, device: device, live: map[*Conn]struct{}{}, livePackets: map[*PacketConn]struct{}{}}
		devices.m[key] = t
	}
	return t
}

// opened counts a connection in.
func (c *Conn) opened() {
	c.totals.mu.Lock()
	defer c.totals.mu.Unlock()
	c.totals.live[c] = struct{}{}
}

// closed counts a connection out, once.
func (c *Conn) closed() {
	t := c.totals
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.live[c]; !ok {
		return
	}
	delete(t.live, c)
	s := c.Stats()
	s.ReadBuffer, s.WriteBuffer = 0, 0
	t.past.add(&s)
}

// Stats counts what the connection did so far.
func (c *Conn) Stats() Stats {
	if !c.ok() {
		return Stats{}
	}
	return Stats(c.ring.Stats())
}

// AllStats sums up, for each device that was used or tried, what the whole process
// did on it. Dials for which no device was found are under an empty name.
func AllStats() []DeviceStats {
	// Also those that have no connection, since nothing that asks for one comes through.
	cm.Default().Counted(func(provider, device string) { totalsOf(provider, device) })
	devices.Lock()
	all := make([]*totals, 0, len(devices.m))
	for _, t := range devices.m {
		all = append(all, t)
	}
	devices.Unlock()
	slices.SortFunc(all, func(a, b *totals) int {
		return cmp.Or(cmp.Compare(a.provider, b.provider), cmp.Compare(a.device, b.device))
	})
	stats := make([]DeviceStats, len(all))
	for i, t := range all {
		stats[i] = t.stats()
	}
	return stats
}

func (t *totals) stats() DeviceStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := DeviceStats{
		Stats: t.past, Conns: uint64(len(t.live)),
		Dials: t.dials.Load(), DialErrors: t.dialErrors.Load(), Datagrams: t.pastPackets,
		Fallbacks: t.fallbacks.Load(),
	}
	for c := range t.livePackets {
		s := c.Stats()
		d.Datagrams.add(&s)
	}
	for c := range t.live {
		s := c.Stats()
		d.Stats.add(&s)
	}
	d.Provider, d.Device = t.provider, t.device
	n := cm.Default().Counters(t.provider, t.device)
	d.BadICRC, d.BadKey, d.BadPacket = n.BadICRC, n.BadKey, n.BadPacket
	return d
}
