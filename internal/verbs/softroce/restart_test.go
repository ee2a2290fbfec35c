package softroce

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// mortal is the network of a host that can lose its power.
type mortal struct {
	netio.Conn
	netio.Handler
	dead atomic.Bool
}

func (m *mortal) open(h *simnet.Host) func(netio.Handler) (netio.Conn, error) {
	return func(handler netio.Handler) (netio.Conn, error) {
		m.Handler = handler
		c, err := h.Open(m)
		m.Conn = c
		return m, err
	}
}

func (m *mortal) HandlePackets(ps []netio.Packet) {
	if !m.dead.Load() {
		m.Handler.HandlePackets(ps)
	}
}

func (m *mortal) Send(b *netio.TxBatch) error {
	if m.dead.Load() {
		b.Reset()
		return nil
	}
	return m.Conn.Send(b)
}

// TestPeerRestarts: a host that loses its power again and again, and connects at once each time, is never refused
// for what it was before. The other end hears nothing of the deaths, and holds each old connection.
func TestPeerRestarts(t *testing.T) {
	const times = 100
	for name, listens := range map[string]bool{"client": false, "server": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := simnet.New(1, simnet.Options{Delay: 50 * time.Microsecond})
				stays := New(&Config{Open: n.Host(addrB).Open})
				restarts := n.Host(addrA)
				l := mustListen(t, stays, netip.AddrPortFrom(addrB, 7471), nil)
				var dead []func()
				guids, qpns, ids := map[uint64]bool{}, map[uint32]bool{}, map[uint32]bool{}
				for range times {
					m := &mortal{}
					p := New(&Config{Open: m.open(restarts)})
					from, to := p, l
					if listens {
						from, to = stays, mustListen(t, p, netip.AddrPortFrom(addrA, 7471), nil)
					}
					x := resolveSide(t, from, to.Addr())
					begin := time.Now()
					done := x.dial(background())
					y := accept(t, to)
					require.NoError(t, done())
					require.Less(t, time.Since(begin), 100*time.Millisecond)
					x.ping(y)
					y.ping(x)
					guids[p.inst.agent.GUID()] = true
					qpns[x.qp.Num()&0xffff] = true
					ids[x.id.(*cmid).conn.ID()&0xffffff] = true
					m.dead.Store(true)
					require.NoError(t, m.Conn.Close()) // its port is another's from now on
					dead = append(dead, func() {
						x.close()
						y.close()
						if listens {
							require.NoError(t, to.Close())
						}
					})
				}
				stays.mu.Lock()
				require.Zero(t, stays.inst.agent.Stats().StaleREQs)
				stays.mu.Unlock()
				// By any one of these alone the other end, or another implementation of it, could tell them apart.
				require.Len(t, guids, times)
				require.Greater(t, len(qpns), times*9/10)
				require.Greater(t, len(ids), times*9/10)
				for _, end := range dead {
					end()
				}
				require.NoError(t, l.Close())
				unused(t, stays)
			})
		})
	}
}
