package share

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// member is one of those who share a UDP port: what it gets from the network goes to the slot in
// the top byte of the destination QPN.
type member struct {
	p *Process
	u *netio.UDP

	mu     sync.Mutex
	psns   []uint32
	direct int
}

func (m *member) HandlePackets(ps []netio.Packet) {
	for i := range ps {
		if slot := ps[i].Data[5]; slot != m.p.Slot() {
			_ = m.p.HandOver(Target{Slot: slot}, &ps[i])
			continue
		}
		m.take(&ps[i], 1)
	}
}

// received takes what landed elsewhere, and asks for the rest of the flow.
func (m *member) received(p *netio.Packet) {
	m.take(p, 0)
	m.u.Prefer(p.Local, p.Remote)
}

func (m *member) take(p *netio.Packet, direct int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.psns = append(m.psns, binary.BigEndian.Uint32(p.Data[8:]))
	m.direct += direct
}

func (m *member) state() (n, direct int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.psns), m.direct
}

// TestOnePort has five members on one port and a sender with a queue pair at each: every packet finds
// its member, and soon without a detour.
func TestOnePort(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	port := uint16(c.LocalAddr().(*net.UDPAddr).Port)
	require.NoError(t, c.Close())

	var ms [5]*member
	for i := range ms {
		m := &member{}
		ms[i] = m
		ready := make(chan struct{}) // nothing comes before m is complete
		m.p = join(t, Config{Port: port, Received: func(p *netio.Packet) { <-ready; m.received(p) }})
		m.u, err = netio.Listen(netio.Config{Port: port, Handler: m})
		require.NoError(t, err)
		close(ready)
		t.Cleanup(func() { require.NoError(t, m.u.Close()) })
	}
	from, err := netio.Listen(netio.Config{Port: port + 1, RemotePort: port, SourcePorts: len(ms), Handler: &member{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, from.Close()) })

	for _, a := range []string{"127.0.0.1", "::1"} {
		for i, m := range ms {
			path := &netio.Path{Local: netip.MustParseAddr(a), Remote: netip.MustParseAddr(a)}
			path.SetFlow(uint32(i))
			b := netio.NewTxBatch()
			send := func(psn uint32) {
				h := b.Add(path, 12)
				clear(h)
				h[0], h[5] = 4, m.p.Slot()
				binary.BigEndian.PutUint32(h[8:], psn)
			}
			before, direct := m.state()
			send(0)
			require.NoError(t, from.Send(b))
			arrived := func(n int) func() bool {
				return func() bool { have, _ := m.state(); return have == before+n }
			}
			require.Eventually(t, arrived(1), 5*time.Second, 100*time.Microsecond)
			time.Sleep(5 * time.Millisecond) // for Prefer
			for psn := range uint32(50) {
				send(1 + psn)
			}
			require.NoError(t, from.Send(b))
			require.Eventually(t, arrived(51), 5*time.Second, 100*time.Microsecond)
			_, now := m.state()
			require.GreaterOrEqual(t, now-direct, 50, "without a detour")
			for psn := range 51 {
				require.EqualValues(t, psn, m.psns[before+psn])
			}
		}
	}
}
