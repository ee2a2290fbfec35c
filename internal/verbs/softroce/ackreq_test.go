package softroce

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestDatagramsAskForNoAcknowledgement: of all packets that are sent when connections are made and used, services looked up and
// datagrams sent, only requests of connections have the bit that asks for an acknowledgement (IBTA 9.2.1).
func TestDatagramsAskForNoAcknowledgement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{Delay: time.Millisecond})
		var mu sync.Mutex
		asked, datagrams := 0, map[uint32]int{} // by queue pair
		n.Filter(func(f *simnet.Frame) bool {
			mu.Lock()
			defer mu.Unlock()
			var p wire.Packet
			if err := p.Decode(f.Data); err != nil {
				t.Error(err)
				return false
			}
			switch {
			case p.Opcode.Service() == wire.ServiceUD:
				datagrams[p.DestQP]++
				if p.AckReq {
					t.Errorf("%v to queue pair %#x asks for an acknowledgement", p.Opcode, p.DestQP)
				}
			case p.AckReq:
				asked++
			}
			return false
		})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x, y := n.connect(t, l)
		x.ping(y)
		x.close()
		y.wait(2)
		y.close()
		require.NoError(t, l.Close())

		l = listenUD(t, n.b, netip.AddrPortFrom(addrB, 7174))
		to := lookUp(t, n.a, l, l.Addr(), 99)
		s := newUDSide(t, resolveUD(t, n.a, verbs.CMIDAttr{Remote: l.Addr()}))
		s.sayUD(to, "datagram")
		time.Sleep(time.Second)
		s.close()
		require.NoError(t, l.Close())
		time.Sleep(10 * time.Second) // answers are remembered for a while
		unused(t, n.a, n.b)
		require.Positive(t, asked)
		require.GreaterOrEqual(t, datagrams[wire.QPNGSI], 7, "REQ, REP, RTU, DREQ, DREP, SIDR_REQ and SIDR_REP")
		require.Equal(t, 1, datagrams[99])
	})
}
