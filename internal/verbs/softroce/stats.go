package softroce

import (
	"sync/atomic"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// counters count what a device dropped and what it had to repair. Packets that
// fit no queue pair, or not the one they name, leave no other trace.
type counters struct {
	malformed    atomic.Uint64 // wrong length, unknown opcode, transport version, pad
	unknownQP    atomic.Uint64 // no queue pair of that number
	wrongType    atomic.Uint64 // opcode of another transport service
	wrongState   atomic.Uint64 // queue pair not connected, or in the error state
	wrongPKey    atomic.Uint64
	wrongQKey    atomic.Uint64
	wrongAddr    atomic.Uint64 // not from the peer's address, or not to the queue pair's
	staleAcks    atomic.Uint64 // responses to what is not outstanding
	outOfOrder   atomic.Uint64 // requests ahead of the expected PSN
	duplicates   atomic.Uint64 // requests behind it
	refused      atomic.Uint64 // requests answered by NAK 0x61 to 0x63
	notReady     atomic.Uint64 // requests answered by an RNR NAK
	retransmits  atomic.Uint64 // packets sent again
	timeouts     atomic.Uint64 // retransmission timeouts
	rnrs         atomic.Uint64 // RNR NAKs received
	sequence     atomic.Uint64 // PSN sequence NAKs received
	gaps         atomic.Uint64 // responses received that show the loss of others before them
	noReceive    atomic.Uint64 // datagrams that met no receive
	shortReceive atomic.Uint64 // datagrams that met a receive too small for them
	sendErrors   atomic.Uint64 // batches that the network refused
	overruns     atomic.Uint64 // completion queues that overflowed
}

// counters sums up for those above. Packets for a queue pair that is gone or in the error state are
// left out: closing connections has them.
func (d *device) counters() verbs.DeviceCounters {
	s := &d.stats
	c := verbs.DeviceCounters{
		BadKey: s.refused.Load(),
		BadPacket: s.malformed.Load() + s.wrongType.Load() + s.wrongPKey.Load() +
			s.wrongQKey.Load() + s.wrongAddr.Load(),
	}
	if n, ok := d.conn.(interface{ Stats() netio.Stats }); ok {
		ns := n.Stats()
		c.BadICRC = ns.BadICRC
		c.BadPacket += ns.Runts
	}
	return c
}

// Counted implements [verbs.Counter].
func (p *Provider) Counted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counted == nil {
		return nil
	}
	return []string{p.cfg.name()}
}

// Counters implements [verbs.Counter].
func (p *Provider) Counters(device string) verbs.DeviceCounters {
	if device != p.cfg.name() {
		return verbs.DeviceCounters{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.past
	for in := range p.counted {
		addCounters(&c, in.dev.counters())
	}
	return c
}

func addCounters(to *verbs.DeviceCounters, c verbs.DeviceCounters) {
	to.BadICRC += c.BadICRC
	to.BadKey += c.BadKey
	to.BadPacket += c.BadPacket
}
